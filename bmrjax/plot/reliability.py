"""Whether predicted probabilities come true."""

from typing import TYPE_CHECKING

import numpy as np

from bmrjax.infer.prediction import Prediction
from bmrjax.plot.axes import BLUE, GREY, ORANGE, clean_axes, new_figure, titled
from bmrjax.run.calibration import interval_coverage, predicted_classes, reliability_bins

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def calibration(prediction: Prediction, *, num_bins: int = 20) -> "Figure":
    """Plot a reliability diagram: how often predictions come true, against how probable they were.

    Of classes: the fraction of right predictions in bins of the highest probability, with the expected
    calibration error (ECE) in the title, and how many rows are in each bin. Of numbers: the fraction of
    values within central predictive intervals.

    Args:
        prediction: Of `Result.predict` on held-out data with their targets; of numbers, with
            ``return_samples=True``.
        num_bins: Bins over [0, 1], for classes.

    Returns:
        The figure. ArviZ has smooth calibration curves of classes, ``arviz.plot_ppc_pava``, and probability
        integral transforms of numbers, ``arviz.plot_ppc_pit``, of ``result.to_arviz(key, x, y)``.

    Raises:
        ValueError: For more than one label per row, or numbers without samples.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> probs, labels = np.array([[0.8, 0.2]] * 4), np.array([0, 0, 0, 1])
        >>> prediction = bmr.infer.Prediction(probs, np.zeros(4), labels, is_probability=True)
        >>> bmr.plot.calibration(prediction).axes[0].get_title()
        'ECE 0.050 on 4 rows'

    References:
        Guo, Pleiss, Sun and Weinberger (2017), On calibration of modern neural networks.
    """
    if prediction.is_probability and prediction.mean.ndim != 2:
        raise ValueError(
            f"plot.calibration: the probabilities have shape {prediction.mean.shape}; it draws one label per "
            "row."
        )
    if not prediction.is_probability and prediction.samples is None:
        raise ValueError(
            "plot.calibration: of numbers it needs draws; call predict(..., return_samples=True)."
        )
    figure = new_figure((5.0, 4.8 if prediction.is_probability else 4.2))
    if prediction.is_probability:
        found = reliability_bins(*predicted_classes(prediction), num_bins=num_bins)
        rows = int(found["count"].sum())
        error = np.sum(np.abs(found["observed"] - found["expected"]) * found["count"]) / rows
        title, x, y = (
            f"ECE {error:.3f} on {rows:,} rows",
            "Probability of the predicted class",
            "Right",
        )
        ax, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        below.bar(found["expected"], found["count"] / rows, width=0.7 / num_bins, color=GREY)
        below.set_ylabel("Rows")
        axes = [ax, below]
    else:
        found = interval_coverage(prediction)
        title = f"Intervals on {int(found['count'][0]):,} held-out values"
        x, y = "Probability of the interval", "Fraction of values in it"
        ax = figure.subplots()
        axes = [ax]
    least = min(float(found["expected"].min()) - 0.05, 0.5) if prediction.is_probability else 0.0
    ax.plot([least, 1], [least, 1], "--", color=GREY, linewidth=1, zorder=1)
    ax.vlines(found["expected"], found["expected"], found["observed"], color=ORANGE, zorder=2)
    ax.scatter(found["expected"], found["observed"], color=BLUE, s=30, zorder=3)
    ax.set_xlim(max(least, 0.0), 1.01)
    ax.set_ylim(-0.02, 1.03)
    ax.set_ylabel(y)
    axes[-1].set_xlabel(x)
    titled(ax, title, inches=4.2)
    for each in axes:
        clean_axes(each)
    return figure

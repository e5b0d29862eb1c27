"""Whether predicted probabilities come true."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bmrjax.infer.prediction import Prediction
from bmrjax.plot.axes import BLUE, COLOURS, GREY, ORANGE, clean_axes, new_figure, titled
from bmrjax.run.calibration import interval_coverage, predicted_classes, reliability_bins

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def calibration(
    prediction: Prediction | Mapping[str, Prediction], *, num_bins: int = 20
) -> "Figure":
    """Plot a reliability diagram: how often predictions come true, against how probable they were.

    Of classes: the fraction of right predictions in bins of the highest probability, with the expected
    calibration error (ECE) in the title, and how many rows are in each bin. Of numbers: the fraction of
    values within central predictive intervals.

    Args:
        prediction: Of `Result.predict` on held-out data with their targets; of numbers, with
            ``return_samples=True``. Or several of them by name, one colour each; bins with less than 1 % of
            the rows are left out then.
        num_bins: Bins over [0, 1], for classes.

    Returns:
        The figure. ArviZ has smooth calibration curves of classes, ``arviz.plot_ppc_pava``, and probability
        integral transforms of numbers, ``arviz.plot_ppc_pit``, of ``result.to_arviz(key, x, y)``.

    Raises:
        ValueError: For more than one label per row, for numbers without samples, or for classes and numbers
            in one figure.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> probs, labels = np.array([[0.8, 0.2]] * 4), np.array([0, 0, 0, 1])
        >>> prediction = bmr.infer.Prediction(probs, np.zeros(4), labels, is_probability=True)
        >>> bmr.plot.calibration(prediction).axes[0].get_title(loc="left")
        'ECE 0.050 on 4 rows'

    References:
        Guo, Pleiss, Sun and Weinberger (2017), On calibration of modern neural networks.
    """
    named = prediction if isinstance(prediction, Mapping) else {"": prediction}
    classes = {one.is_probability for one in named.values()}
    if len(classes) != 1:
        raise ValueError(
            "plot.calibration: it draws predictions of classes, or of numbers, and at least one of them."
        )
    (of_classes,) = classes
    found = {name: _reliability(one, num_bins) for name, one in named.items()}
    figure = new_figure((5.0, 4.8 if of_classes else 4.2))
    if of_classes:
        ax, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        below.set_ylabel("Fraction of\nrows")
        axes, x, y = [ax, below], "Probability of the predicted class", "Fraction right"
        lowest = min(float(bins.expected.min()) for bins in found.values())
        least = max(min(lowest - 0.05, 0.5), 0.0)
    else:
        ax = figure.subplots()
        axes, x, y = [ax], "Probability of the interval", "Fraction of values in it"
        least = 0.0
    ax.plot([least, 1], [least, 1], "--", color=GREY, linewidth=1, zorder=1)
    if len(found) == 1:
        (bins,) = found.values()
        ax.vlines(bins.expected, bins.expected, bins.observed, color=ORANGE, zorder=2)
        ax.scatter(bins.expected, bins.observed, color=BLUE, s=30, zorder=3)
        if of_classes:
            axes[1].bar(bins.expected, bins.share, width=0.7 / num_bins, color=GREY)
        titled(ax, bins.title, inches=4.2)
    else:
        for (name, bins), colour in zip(found.items(), cycle(COLOURS), strict=False):
            some = bins.share >= 0.01
            line = {"marker": "o", "markersize": 4, "color": colour, "linewidth": 1.2}
            ax.plot(bins.expected[some], bins.observed[some], label=f"{name}: {bins.title}", **line)
            if of_classes:
                axes[1].plot(bins.expected, bins.share, **line)
        ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    ax.set_xlim(least, 1.01)
    ax.set_ylim(-0.02, 1.03)
    ax.set_ylabel(y)
    axes[-1].set_xlabel(x)
    for each in axes:
        clean_axes(each)
    return figure


class _Bins(NamedTuple):
    """What one prediction says, and how often it is right."""

    expected: np.ndarray
    observed: np.ndarray
    share: np.ndarray
    title: str


def _reliability(prediction: Prediction, num_bins: int) -> _Bins:
    """Return the bins of classes, or the coverage of intervals."""
    if prediction.is_probability and prediction.mean.ndim != 2:
        raise ValueError(
            f"plot.calibration: the probabilities have shape {prediction.mean.shape}; it draws one label per "
            "row."
        )
    if not prediction.is_probability and prediction.samples is None:
        raise ValueError(
            "plot.calibration: of numbers it needs draws; call predict(..., return_samples=True)."
        )
    if not prediction.is_probability:
        found = interval_coverage(prediction)
        title = f"Intervals on {int(found['count'][0]):,} held-out values"
        share = np.ones(len(found["count"]))
    else:
        found = reliability_bins(*predicted_classes(prediction), num_bins=num_bins)
        rows = int(found["count"].sum())
        share = found["count"] / rows
        error = np.sum(np.abs(found["observed"] - found["expected"]) * share)
        title = f"ECE {error:.3f} on {rows:,} rows"
    return _Bins(found["expected"], found["observed"], share, title)

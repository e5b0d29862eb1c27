"""Predicted numbers with their intervals, beside what was observed."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike

from bmrjax.infer.prediction import Prediction
from bmrjax.plot.axes import BLUE, clean_axes, new_figure, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def predictions(
    prediction: Prediction,
    observed: ArrayLike | None = None,
    *,
    x: ArrayLike | None = None,
    prob: float = 0.9,
) -> "Figure":
    """Plot predicted numbers with their intervals, in order, and what was observed there.

    Args:
        prediction: Of `Result.predict`, of one number per row.
        observed: The observed values, in the unit of the prediction; (data,). None
            draws the prediction alone.
        x: What is on the horizontal axis, such as the time; (data,). By default the number of the row, which
            suits a series. The predicted mean shows observed against predicted values.
        prob: Probability of the interval; `Result.predict` has to have computed its two quantiles.

    Returns:
        A figure with the mean as a line, the interval of the posterior predictive as a band, and the observed
        values as points; how many of them are in the band is in its title.

    Raises:
        ValueError: For class probabilities, for more than one number per row, for arrays of other lengths, or
            for quantiles that the prediction does not have.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> mean = np.array([1.0, 2.0, 3.0])
        >>> found = bmr.infer.Prediction(
        ...     mean, np.zeros(3), mean, is_probability=False, levels=(0.05, 0.95),
        ...     at_levels=np.stack([mean - 1, mean + 1]),
        ... )
        >>> bmr.plot.predictions(found, np.array([1.5, 2.0, 9.0])).axes[0].get_title(loc="left")
        '2 of 3 values within the 90% interval'
    """
    if prediction.is_probability:
        raise ValueError("plot.predictions: these are class probabilities; see plot.calibration.")
    shape = np.shape(prediction.mean)
    rows = shape[0] if shape else 0
    if np.size(prediction.mean) != rows or not rows:
        raise ValueError(
            f"plot.predictions: the means have shape {shape}; it draws one number per row."
        )
    low, high = (np.ravel(bound) for bound in prediction.interval(prob))
    places = np.arange(rows) if x is None else _values(x, rows, "x")
    order = np.argsort(places, kind="stable")
    figure = new_figure((7.2, 3.2))
    ax = figure.subplots()
    band = {"color": BLUE, "alpha": 0.18, "linewidth": 0, "label": f"{100 * prob:g}% interval"}
    ax.fill_between(places[order], low[order], high[order], **band)
    ax.plot(places[order], np.ravel(prediction.mean)[order], color=BLUE, label="Predicted mean")
    if observed is not None:
        seen = _values(observed, rows, "observed")
        inside = int(((low <= seen) & (seen <= high)).sum())
        titled(ax, f"{inside:,} of {rows:,} values within the {100 * prob:g}% interval")
        ax.scatter(places, seen, color="#555555", s=9, zorder=3, label="Observed")
    ax.set_xlabel("Row" if x is None else "x")
    # Beside the axes: a series may lie anywhere in them.
    ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    clean_axes(ax)
    return figure


def _values(values: ArrayLike, rows: int, name: str) -> np.ndarray:
    """Return one value per row."""
    found = np.asarray(values)
    if found.size != rows:
        raise ValueError(
            f"plot.predictions: {name} has shape {found.shape}; the prediction has {rows} rows."
        )
    return found.ravel()

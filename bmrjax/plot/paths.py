"""What each point of a path keeps and costs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bmrjax.plot.axes import BLUE, ORANGE, TITLES, clean_axes, log_axis, new_figure
from bmrjax.plot.network_paths import network_path
from bmrjax.run.result import Result
from bmrjax.trained.network_reduction import NetworkReduction
from bmrjax.trained.unit_reduction import UnitReduction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def path(
    result: Result | NetworkReduction | UnitReduction, *, metric: str | None = None
) -> "Figure":
    """Plot what each point of a path costs against what it keeps, from dense to sparse.

    Args:
        result: Of a run, with a path; points that the run did not stay at are hollow. Or of
            `bmrjax.reduce_network`; points that held-out rows do not show to be as good as the dense
            network are hollow. The point that the result is at is marked.
        metric: Name of a held-out metric, such as ``"nll"``; accuracy or RMSE by default, where there is one.

    Returns:
        A figure with what is kept on a logarithmic axis, the dense model on the left. Of a run: the
        VFE, blue, and the metric, orange with squares, on the right axis. Of a trained network: the rise of
        the held-out loss since the dense network, measured, with 95 % intervals, beside predicted; and the
        metric in a panel of its own. The axis of the loss ends a little above what was measured, so that
        a prediction that is far too large leaves it.

    Raises:
        ValueError: If the result has no path, or no such metric.

    Example:
        >>> import bmrjax as bmr
        >>> points = [bmr.Point(i, 90.0 - i, 100 // i, 100, {"rmse": 0.5}, {}, {}) for i in (1, 2, 3)]
        >>> result = bmr.Result({}, {}, {}, 10, path=points)
        >>> [axes.get_ylabel() for axes in bmr.plot.path(result).axes]
        ['VFE, nats per data point', 'RMSE, held out']
    """
    if isinstance(result, NetworkReduction | UnitReduction):
        return network_path(result, metric=metric)
    points = result.path
    if not points:
        raise ValueError("path: this result has no path, so there is nothing to plot.")
    known = {name for point in points for name in point.metrics}
    if metric is not None and metric not in known:
        raise ValueError(f"path: the path has no metric '{metric}'; it has {sorted(known)}.")
    if metric is None:
        metric = next((m for m in ("accuracy", "rmse") if m in points[-1].metrics), None)
    figure = new_figure((7.2, 3.8))
    left = figure.subplots()
    clean_axes(left)
    vfe = [point.vfe / result.num_data for point in points]
    here = _along(left, result, vfe, BLUE, "o")
    left.set_ylabel("VFE, nats per data point", color=BLUE, fontsize=9.5)
    left.tick_params(axis="y", colors=BLUE)
    left.set_xlabel(f"Elements kept, of {points[0].total:,}")
    axes = [left]
    if metric is not None:
        right: Any = left.twinx()
        axes.append(right)
        _along(right, result, [p.metrics.get(metric, math.nan) for p in points], ORANGE, "s")
        right.set_ylabel(f"{TITLES.get(metric, metric)}, held out", color=ORANGE, fontsize=9.5)
        right.tick_params(axis="y", colors=ORANGE, labelsize=9)
        right.spines["top"].set_visible(False)
    if min(point.kept for point in points) > 0:
        for ax in axes:
            log_axis(ax, "x", inches=6.0)
    else:
        left.set_xscale("symlog", linthresh=1)
    left.invert_xaxis()  # the other axes share it
    if here or any(point.taken_back for point in points):
        # Above the axes, where no point lies.
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 2}
        left.legend(frameon=False, fontsize=9, **place)
    return figure


def _along(ax: "Axes", result: Result, values: Sequence[float], color: str, marker: str) -> bool:
    """Draw a measure along the path; return whether the point of the result is on it."""
    points = result.path
    kept = [point.kept for point in points]
    stayed = [i for i, point in enumerate(points) if not point.taken_back]
    left = [i for i, point in enumerate(points) if point.taken_back]
    now = [i for i, p in enumerate(points) if p.vfe == result.vfe and p.kept == result.num_kept]
    along = [kept[i] for i in stayed], [values[i] for i in stayed]
    ax.plot(*along, "-", color=color, linewidth=1, alpha=0.6, zorder=1)
    ax.scatter(*along, color=color, marker=marker, s=25, zorder=2)
    hollow = {"facecolors": "none", "edgecolors": color, "marker": marker, "s": 25, "zorder": 2}
    label = "taken back" if left else None
    ax.scatter([kept[i] for i in left], [values[i] for i in left], label=label, **hollow)
    if now:
        i = now[-1]
        ring = {"facecolors": "none", "edgecolors": "black", "s": 110, "zorder": 3}
        ax.scatter(kept[i], values[i], label=f"this result: {kept[i]:,} kept", **ring)
    return bool(now)

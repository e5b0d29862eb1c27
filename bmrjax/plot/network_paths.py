"""The path of a trained network from dense to sparse; see `bmrjax.plot.path`."""

from typing import TYPE_CHECKING

import numpy as np

from bmrjax.plot.axes import (
    BLUE,
    GREY,
    ORANGE,
    TITLES,
    clean_axes,
    log_axis,
    new_figure,
    titled,
)
from bmrjax.trained.network_reduction import NetworkReduction
from bmrjax.trained.unit_reduction import UnitReduction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def network_path(found: NetworkReduction | UnitReduction, *, metric: str | None = None) -> "Figure":
    """Plot what each point of the path costs against what it keeps; see `bmrjax.plot.path`.

    Args:
        found: From `bmrjax.reduce_network`.
        metric: Name of a metric of the path; by default the first one beside the loss, where there is one.

    Raises:
        ValueError: If the path has no such metric.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> found = bmr.reduce_network(network, (x, y), keep=0.5)
        >>> axes = bmr.plot.path(found).axes[0]
        >>> [text.get_text() for text in axes.get_legend().get_texts()]
        ['predicted', 'measured', 'this network: 50.0 % kept']
    """
    known = list(found.path[0].metrics)
    if metric is not None and metric not in known:
        raise ValueError(f"path: the path has no metric '{metric}'; it has {known}.")
    if metric is None:
        metric = next((name for name in known if name != "loss"), None)
    figure = new_figure((5.4 if metric is None else 9.0, 3.6))
    axes = np.atleast_1d(figure.subplots(1, 1 if metric is None else 2))
    loss = axes[0]
    kept = [100 * point.kept for point in found.path]
    measured = np.array([point.measured for point in found.path])
    error = 1.96 * np.array([point.standard_error for point in found.path])
    predicted = [point.predicted for point in found.path]
    loss.plot(kept, predicted, "--", color=GREY, linewidth=1.2, label="predicted")
    loss.errorbar(kept, measured, error, fmt="none", ecolor=BLUE, elinewidth=1, zorder=1)
    _points(loss, found, measured, BLUE, "measured")
    low, high = float(np.min(measured - error)), float(np.max(measured + error))
    margin = 0.08 * max(high - low, 1e-6)
    loss.set_ylim(low - margin, high + margin)
    titled(loss, "Rise of the held-out loss, nats per row", inches=3.6)
    if metric is not None:
        values = np.array([point.metrics.get(metric, np.nan) for point in found.path])
        _points(axes[1], found, values, ORANGE, "")
        titled(axes[1], f"{TITLES.get(metric, metric)}, held out", inches=3.6)
    what = "Parameters" if isinstance(found, UnitReduction) else "Judged weights"
    for ax in axes:
        log_axis(ax, "x", inches=3.6)
        ax.invert_xaxis()
        ax.set_xlabel(f"{what} kept, %")
        clean_axes(ax)
    loss.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _points(
    ax: "Axes",
    found: NetworkReduction | UnitReduction,
    values: np.ndarray,
    colour: str,
    label: str,
) -> None:
    """Draw a value per point, hollow where it is not as good as the dense network; mark the chosen one."""
    kept = [100 * point.kept for point in found.path]
    ax.plot(kept, values, color=colour, linewidth=1, alpha=0.6, zorder=1)
    faces = [colour if point.as_good else "white" for point in found.path]
    ax.scatter(kept, values, color=faces, edgecolors=colour, s=25, zorder=2, label=label or None)
    at = found.chosen
    ring = {"facecolors": "none", "edgecolors": "black", "s": 110, "zorder": 3}
    ax.scatter(kept[at], values[at], label=f"this network: {kept[at]:.1f} % kept", **ring)

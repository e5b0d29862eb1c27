"""Plots of runs: curves, layers, coefficients and paths."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.plot.axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    TITLES,
    clean_axes,
    log_axis,
    new_figure,
    new_panels,
    rows_height,
    titled,
)
from bmrjax.run.page_words import short_names
from bmrjax.run.result import Result
from bmrjax.run.trade_off import TradeOff

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def learning_curves(result: Result) -> "Figure":
    """Plot the VFE, the held-out metrics and the kept fraction over the epochs.

    Epochs of rounds that were taken back are drawn light.

    Args:
        result: With a history of at least one epoch.

    Returns:
        A figure with a panel for the VFE, one for what was kept (where anything could be
        removed), and one for each held-out metric that the history has.

    Raises:
        ValueError: If the result has no history.

    Example:
        >>> import bmrjax as bmr
        >>> rows = [{"epoch": i, "vfe": 90.0 / i, "kept": 9, "taken_back": False} for i in (1, 2, 3)]
        >>> figure = bmr.plot.learning_curves(bmr.Result({}, {}, {}, 10, history=rows))
        >>> [axes.get_title().split(",")[0] for axes in figure.axes]
        ['VFE']
    """
    from matplotlib.ticker import MaxNLocator

    history = result.history
    if not history:
        raise ValueError(
            "learning_curves: this result has no history, so there is nothing to plot."
        )
    metrics = [name for name in TITLES if any(name in row for row in _measured(result))]
    panels = ["vfe", *metrics, *(["kept"] if result.num_total else [])]
    figure, axes = new_panels(len(panels))
    for name, ax in zip(panels, axes, strict=True):
        if name == "vfe":
            rows = [{**row, "vfe": row["vfe"] / result.num_data} for row in history]
            titled(ax, "VFE, nats per data point (mean over an epoch)")
            _curve(ax, rows, "vfe", BLUE)
            if min(row["vfe"] for row in rows) > 0:
                log_axis(ax, "y", inches=2.6)
        elif name == "kept":
            rows = [{**row, "kept": row["kept"] / result.num_total} for row in history]
            titled(ax, f"Fraction kept, of {result.num_total:,}")
            _curve(ax, rows, "kept", GREEN)
            if min(row["kept"] for row in rows) > 0:
                log_axis(ax, "y", inches=2.6)
        else:
            rows = [row for row in _measured(result) if name in row]
            titled(ax, f"{TITLES[name]}, held out")
            _curve(ax, rows, name, ORANGE, marker=".")
        ax.set_xlabel("Epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if any(row["taken_back"] for row in history):
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].legend(handles, labels, frameon=False)
    return figure


def sparsity_per_layer(result: Result) -> "Figure":
    """Plot the removed fraction of each layer, with the number of elements that it keeps.

    Args:
        result: Of a run with masks.

    Returns:
        A figure with one horizontal bar per layer, the first layer on top.

    Raises:
        ValueError: If the result has no masks.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> keep = {"w": jnp.array([True, False, False, True])}
        >>> figure = bmr.plot.sparsity_per_layer(bmr.Result({}, keep, {"w": "first layer"}, 10))
        >>> figure.axes[0].get_title()
        'Sparsity 50.0%: 2 of 4 kept'
    """
    if not result.keep:
        raise ValueError(
            "sparsity_per_layer: this result has no masks, so there is nothing to plot."
        )
    kept: dict[str, list[int]] = {}
    for name, mask in result.keep.items():
        counts = kept.setdefault(result.layers.get(name, name), [0, 0])
        counts[0] += int(np.asarray(mask).sum())
        counts[1] += mask.size
    names = list(kept)
    fractions = [1 - left / total for left, total in kept.values()]
    rows = range(len(names))
    figure = new_figure((8.0, 1.3 + 0.4 * len(names)))
    ax = figure.subplots()
    ax.barh(rows, fractions, color=BLUE, height=0.7)
    ax.barh(rows, [1 - f for f in fractions], left=fractions, color="#DDDDDD", height=0.7)
    for i, (left, total) in enumerate(kept.values()):
        ax.text(1.01, i, f"{left:,} of {total:,} kept", va="center", color="#333333", fontsize=9)
    ax.set_yticks(rows, short_names(names))
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("Fraction removed")
    title = f"Sparsity {result.sparsity:.1%}: {result.num_kept:,} of {result.num_total:,} kept"
    titled(ax, title, inches=5.0)
    clean_axes(ax)
    ax.spines["left"].set_visible(False)
    ax.tick_params(left=False)
    return figure


def coefficients(
    result: Result, *inputs: Any, site: str | None = None, prob: float = 0.9, most: int = 40
) -> "Figure":
    """Plot posterior means and intervals of the elements that are kept, by name.

    Args:
        result: With its program; see `Result.summary`, whose table is drawn.
        *inputs: Arguments of the program, as for `Result.posterior`.
        site: Name of the site to draw; by default all that were judged.
        prob: Probability of the intervals.
        most: How many elements are drawn at most, those with the largest means.

    Returns:
        A figure with a point and a line per element, in the order of the site, and the number of removed
        elements in its title. Of the draws with zeros in them, ArviZ has a forest plot,
        ``arviz.plot_forest(result.to_arviz(key, x))``.

    Raises:
        ValueError: For a site that is not there, or if nothing is kept.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program():
        ...     numpyro.sample("beta", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        >>> def guide():
        ...     numpyro.sample("beta", dist.Normal(jnp.array([2.0, 0.1, -1.0]), 0.2).to_event(1))
        >>> result = bmr.Result(
        ...     {}, {"beta": jnp.array([True, False, True])}, {}, 100, unpruned_model=program,
        ...     unpruned_guide=guide, columns=("dose", "age", "weight"),
        ... )
        >>> axes = bmr.plot.coefficients(result).axes[0]
        >>> [label.get_text() for label in axes.get_yticklabels()], axes.get_title()
        (['dose', 'weight'], '2 of 3 kept')
    """
    table: Any = result.summary(*inputs, prob=prob)
    sites = list(dict.fromkeys(table["site"])) if len(table) else []
    if site is not None:
        if site not in sites:
            raise ValueError(f"coefficients: there is no site '{site}'; there are {sites}.")
        table, sites = table[table["site"] == site], [site]
    total, table = len(table), table[table["kept"]] if len(table) else table
    if not len(table):
        raise ValueError("coefficients: nothing is kept, so there is nothing to plot.")
    kept = len(table)
    largest = table["mean"].abs().sort_values(ascending=False).index[:most]
    table = table.loc[sorted(largest)]
    names = [
        row.element if len(sites) == 1 else f"{row.site}[{row.element}]"
        for row in table[["site", "element"]].itertuples()
    ]
    low, high = (table[title] for title in table.columns[5:7])
    figure = new_figure((6.4, rows_height(len(table))))
    ax = figure.subplots()
    ax.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
    ax.hlines(range(len(table)), low, high, color=BLUE, linewidth=2, zorder=2)
    ax.scatter(table["mean"], range(len(table)), color=BLUE, s=28, zorder=3)
    ax.set_yticks(range(len(table)), short_names(names))
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_xlabel(f"Posterior mean, {100 * prob:g}% interval")
    shown = f", the {most} largest shown" if kept > most else ""
    titled(ax, f"{kept:,} of {total:,} kept{shown}")
    clean_axes(ax)
    return figure


def path(result: Result, *, metric: str | None = None) -> "Figure":
    """Plot the VFE, and a held-out metric on a second axis, against what is kept, along the path.

    Args:
        result: With a path. The point that the result is at is marked; points that the run did not
            stay at are hollow.
        metric: Name of the metric, such as ``"nll"``; accuracy or RMSE by default, where the run has it.

    Returns:
        A figure with the number kept on a logarithmic axis; the run goes from right to left. The VFE is blue,
        on the left; the metric is orange, with squares, on the right.

    Raises:
        ValueError: If the result has no path, or no such metric.

    Example:
        >>> import bmrjax as bmr
        >>> points = [bmr.Point(i, 90.0 - i, 100 // i, 100, {"rmse": 0.5}, {}, {}) for i in (1, 2, 3)]
        >>> result = bmr.Result({}, {}, {}, 10, path=points)
        >>> [axes.get_ylabel() for axes in bmr.plot.path(result).axes]
        ['VFE, nats per data point', 'RMSE, held out']
    """
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


def trade_off_curve(curve: TradeOff) -> "Figure":
    """Plot a held-out metric over the removed fraction, with its knee.

    Args:
        curve: From `bmrjax.trade_off`.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> curve = bmr.TradeOff("rmse", np.array([0, 0.5, 0.9]), np.array([0.4, 0.41, 0.9]), np.arange(3))
        >>> bmr.plot.trade_off_curve(curve).axes[0].get_title()
        'RMSE, held out'
    """
    figure = new_figure((5.6, 3.6))
    ax = figure.subplots()
    ax.plot(100 * curve.sparsity, curve.value, color=BLUE, marker=".")
    x, y = 100 * curve.sparsity[curve.knee], curve.value[curve.knee]
    ax.plot([x], [y], "o", color=ORANGE, label=f"knee: {x:.1f} % removed, {y:.4g}")
    ax.set_xlabel("Removed, %")
    titled(ax, f"{TITLES.get(curve.metric, curve.metric)}, held out", inches=4.6)
    ax.legend(frameon=False, fontsize=9)
    clean_axes(ax)
    return figure


def _measured(result: Result) -> list[dict[str, Any]]:
    """Return the epochs with held-out metrics, those of the path among them, in order."""
    rows = {row["epoch"]: row for row in result.history}
    for point in result.path:
        row = {"epoch": point.epoch, "taken_back": False}
        rows[point.epoch] = {**row, **rows.get(point.epoch, {}), **point.metrics}
    return [rows[epoch] for epoch in sorted(rows)]


def _curve(
    ax: "Axes", rows: Sequence[dict[str, Any]], name: str, colour: str, marker: str = ""
) -> None:
    stayed = [row for row in rows if not row["taken_back"]]
    ax.plot(*_xy(stayed, name), color=colour, marker=marker)
    # A round that was taken back hangs on to the last epoch before it.
    last: list[dict[str, Any]] = []
    light: list[list[dict[str, Any]]] = []
    back = False
    for row in rows:
        if not row["taken_back"]:
            last, back = [row], False
        elif back:
            light[-1].append(row)
        else:
            light.append([*last, row])
            back = True
    for i, run in enumerate(light):
        label = "taken back" if i == 0 else None
        ax.plot(*_xy(run, name), color=colour, marker=marker, alpha=0.3, linewidth=1, label=label)


def _xy(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    return [row["epoch"] for row in rows], [row[name] for row in rows]

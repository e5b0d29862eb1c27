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
)
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
            ax.set_title("VFE, nats per data point (mean over an epoch)")
            if min(row["vfe"] for row in rows) > 0:
                log_axis(ax, "y")
            _curve(ax, rows, "vfe", BLUE)
        elif name == "kept":
            rows = [{**row, "kept": row["kept"] / result.num_total} for row in history]
            ax.set_title(f"Fraction kept, of {result.num_total:,}")
            if min(row["kept"] for row in rows) > 0:
                log_axis(ax, "y")
            _curve(ax, rows, "kept", GREEN)
        else:
            rows = [row for row in _measured(result) if name in row]
            ax.set_title(f"{TITLES[name]}, held out")
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
        A figure with one horizontal bar a layer, the first layer on top.
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
    figure = new_figure((8.0, 1.2 + 0.4 * len(names)))
    ax = figure.subplots()
    ax.barh(names, fractions, color=BLUE, height=0.7)
    ax.barh(names, [1 - f for f in fractions], left=fractions, color="#DDDDDD", height=0.7)
    for i, (left, total) in enumerate(kept.values()):
        ax.text(1.01, i, f"{left:,} of {total:,} kept", va="center", color="#333333")
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("Fraction removed")
    ax.set_title(
        f"Sparsity {result.sparsity:.1%}: {result.num_kept:,} of {result.num_total:,} kept"
    )
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
        elements in its title.

    Raises:
        ValueError: For a site that is not there, or if nothing is kept.
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
    figure = new_figure((6.0, 1.2 + 0.25 * len(table)))
    ax = figure.subplots()
    ax.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
    ax.hlines(range(len(table)), low, high, color=BLUE, zorder=2)
    ax.scatter(table["mean"], range(len(table)), color=BLUE, s=25, zorder=3)
    ax.set_yticks(range(len(table)), names)
    ax.invert_yaxis()
    ax.set_xlabel(f"Posterior mean, {100 * prob:g} % interval")
    shown = f", the {most} largest" if kept > most else ""
    ax.set_title(f"{kept:,} of {total:,} kept{shown}")
    clean_axes(ax)
    return figure


def path(result: Result) -> "Figure":
    """Plot the VFE, and accuracy or RMSE, against what is kept, at the points of the path.

    Args:
        result: With a path. The point that the result is at is marked; points that the run did not
            stay at are hollow.

    Returns:
        A figure with the number kept on a logarithmic axis; the run goes from right to left.
    """
    points = result.path
    if not points:
        raise ValueError("path: this result has no path, so there is nothing to plot.")
    metric = next((m for m in ("accuracy", "rmse") if m in points[-1].metrics), None)
    figure, axes = new_panels(1 if metric is None else 2)
    values = {"vfe": [point.vfe / result.num_data for point in points]}
    if metric is not None:
        values[metric] = [point.metrics.get(metric, math.nan) for point in points]
    kept = [point.kept for point in points]
    stayed = [i for i, point in enumerate(points) if not point.taken_back]
    left = [i for i, point in enumerate(points) if point.taken_back]
    now = [i for i, p in enumerate(points) if p.vfe == result.vfe and p.kept == result.num_kept]
    for (name, ys), ax in zip(values.items(), axes, strict=True):
        color = BLUE if name == "vfe" else ORANGE
        along = [kept[i] for i in stayed], [ys[i] for i in stayed]
        ax.plot(*along, "-", color=GREY, linewidth=0.8, zorder=1)
        ax.scatter(*along, color=color, s=25, zorder=2)
        hollow = {"facecolors": "none", "edgecolors": color, "s": 25, "zorder": 2}
        label = "taken back" if left else None
        ax.scatter([kept[i] for i in left], [ys[i] for i in left], label=label, **hollow)
        if now:
            i = now[-1]
            ring = {"facecolors": "none", "edgecolors": "black", "s": 110, "zorder": 3}
            ax.scatter(kept[i], ys[i], label=f"this result: {kept[i]:,} kept", **ring)
        ax.set_title("VFE, nats per data point" if name == "vfe" else f"{TITLES[name]}, held out")
        ax.set_xlabel(f"Elements kept, of {points[0].total:,}")
        if min(kept) > 0:
            log_axis(ax, "x")
        else:
            ax.set_xscale("symlog", linthresh=1)
    if now or left:
        axes[0].legend(frameon=False)
    return figure


def trade_off_curve(curve: TradeOff) -> "Figure":
    """Plot a held-out metric over the removed fraction, with its knee.

    Args:
        curve: From `bmrjax.trade_off`.
    """
    figure = new_figure((5.2, 3.6))
    ax = figure.subplots()
    ax.plot(100 * curve.sparsity, curve.value, color=BLUE, marker=".")
    x, y = 100 * curve.sparsity[curve.knee], curve.value[curve.knee]
    ax.plot([x], [y], "o", color=ORANGE, label=f"knee: {x:.1f} % removed, {y:.4g}")
    ax.set_xlabel("Removed, %")
    ax.set_title(f"{TITLES.get(curve.metric, curve.metric)}, held out")
    ax.legend(frameon=False)
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

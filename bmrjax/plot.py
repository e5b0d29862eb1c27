"""Plots of a result. They need matplotlib, and draw on no screen.

Each function returns a `matplotlib.figure.Figure`, for ``figure.savefig(path)``. In a notebook it is
shown as the value of a cell, once the notebook has run ``%matplotlib inline``.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.judge.free_energy_report import FreeEnergyReport
from bmrjax.run.result import Result
from bmrjax.run.trade_off import TradeOff

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that readers with any colour vision tell apart (Okabe and Ito, 2008).
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
_PURPLE = "#CC79A7"
_TITLES = {"accuracy": "Accuracy", "rmse": "RMSE", "nll": "NLL, nats per data point", "ece": "ECE"}


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
    metrics = [name for name in _TITLES if any(name in row for row in _measured(result))]
    panels = ["vfe", *metrics, *(["kept"] if result.num_total else [])]
    figure, axes = _panels(len(panels))
    for name, ax in zip(panels, axes, strict=True):
        if name == "vfe":
            rows = [{**row, "vfe": row["vfe"] / result.num_data} for row in history]
            ax.set_title("VFE, nats per data point (mean over an epoch)")
            if min(row["vfe"] for row in rows) > 0:
                _log(ax, "y")
            _curve(ax, rows, "vfe", _BLUE)
        elif name == "kept":
            rows = [{**row, "kept": row["kept"] / result.num_total} for row in history]
            ax.set_title(f"Fraction kept, of {result.num_total:,}")
            if min(row["kept"] for row in rows) > 0:
                _log(ax, "y")
            _curve(ax, rows, "kept", _GREEN)
        else:
            rows = [row for row in _measured(result) if name in row]
            ax.set_title(f"{_TITLES[name]}, held out")
            _curve(ax, rows, name, _ORANGE, marker=".")
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
    figure = _figure((8.0, 1.2 + 0.4 * len(names)))
    ax = figure.subplots()
    ax.barh(names, fractions, color=_BLUE, height=0.7)
    ax.barh(names, [1 - f for f in fractions], left=fractions, color="#DDDDDD", height=0.7)
    for i, (left, total) in enumerate(kept.values()):
        ax.text(1.01, i, f"{left:,} of {total:,} kept", va="center", color="#333333")
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("Fraction removed")
    ax.set_title(
        f"Sparsity {result.sparsity:.1%}: {result.num_kept:,} of {result.num_total:,} kept"
    )
    _clean(ax)
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
    figure = _figure((6.0, 1.2 + 0.25 * len(table)))
    ax = figure.subplots()
    ax.axvline(0.0, color=_GREY, linewidth=0.8, zorder=1)
    ax.hlines(range(len(table)), low, high, color=_BLUE, zorder=2)
    ax.scatter(table["mean"], range(len(table)), color=_BLUE, s=25, zorder=3)
    ax.set_yticks(range(len(table)), names)
    ax.invert_yaxis()
    ax.set_xlabel(f"Posterior mean, {100 * prob:g} % interval")
    shown = f", the {most} largest" if kept > most else ""
    ax.set_title(f"{kept:,} of {total:,} kept{shown}")
    _clean(ax)
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
    figure, axes = _panels(1 if metric is None else 2)
    values = {"vfe": [point.vfe / result.num_data for point in points]}
    if metric is not None:
        values[metric] = [point.metrics.get(metric, math.nan) for point in points]
    kept = [point.kept for point in points]
    stayed = [i for i, point in enumerate(points) if not point.taken_back]
    left = [i for i, point in enumerate(points) if point.taken_back]
    now = [i for i, p in enumerate(points) if p.vfe == result.vfe and p.kept == result.num_kept]
    for (name, ys), ax in zip(values.items(), axes, strict=True):
        color = _BLUE if name == "vfe" else _ORANGE
        along = [kept[i] for i in stayed], [ys[i] for i in stayed]
        ax.plot(*along, "-", color=_GREY, linewidth=0.8, zorder=1)
        ax.scatter(*along, color=color, s=25, zorder=2)
        hollow = {"facecolors": "none", "edgecolors": color, "s": 25, "zorder": 2}
        label = "taken back" if left else None
        ax.scatter([kept[i] for i in left], [ys[i] for i in left], label=label, **hollow)
        if now:
            i = now[-1]
            ring = {"facecolors": "none", "edgecolors": "black", "s": 110, "zorder": 3}
            ax.scatter(kept[i], ys[i], label=f"this result: {kept[i]:,} kept", **ring)
        ax.set_title("VFE, nats per data point" if name == "vfe" else f"{_TITLES[name]}, held out")
        ax.set_xlabel(f"Elements kept, of {points[0].total:,}")
        if min(kept) > 0:
            _log(ax, "x")
        else:
            ax.set_xscale("symlog", linthresh=1)
    if now or left:
        axes[0].legend(frameon=False)
    return figure


def inclusion(found: FitReduction, *, most: int = 40) -> "Figure":
    """Plot inclusion probabilities, and the averaged means and intervals beside them, by name.

    Args:
        found: From `bmrjax.reduce_fit`.
        most: How many elements are drawn at most, the most probable ones.

    Returns:
        A figure with two panels that share their rows; elements of the chosen submodel are dark.
    """
    table: Any = found.table()
    total = len(table)
    chosen = table["kept"]
    table = table.loc[sorted(table.nlargest(most, "inclusion_prob").index)]
    one_site = table["site"].nunique() == 1
    names = [
        row.element if one_site else f"{row.site}[{row.element}]"
        for row in table[["site", "element"]].itertuples()
    ]
    prob = table.get("measured_inclusion_prob", table["inclusion_prob"])
    rows, colors = range(len(table)), [_BLUE if kept else _GREY for kept in table["kept"]]
    figure = _figure((8.0, 1.2 + 0.25 * len(table)))
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(rows, prob, color=colors, height=0.6)
    left.axvline(0.5, color=_GREY, linewidth=0.8, linestyle=":")
    left.set_xlim(0, 1)
    left.set_xlabel("Inclusion probability")
    left.set_yticks(rows, names)
    left.invert_yaxis()
    left.set_title(f"{int(chosen.sum()):,} of {total:,} in the chosen submodel")
    right.axvline(0.0, color=_GREY, linewidth=0.8, zorder=1)
    right.hlines(rows, table["2.5 %"], table["97.5 %"], color=colors, zorder=2)
    right.scatter(table["mean"], rows, color=colors, s=25, zorder=3)
    right.set_xlabel("Mean over submodels, 95 % interval")
    for ax in (left, right):
        _clean(ax)
    return figure


def sizes(found: FitReduction, *, seed: int = 0) -> "Figure":
    """Plot the expected log predictive density of submodels against their size.

    Args:
        found: From `bmrjax.reduce_fit`, with a program.
        seed: Of the draws; see `FitReduction.path`.

    Returns:
        A figure of the difference from the best size, with a standard error; the chosen size is marked, and
        sizes whose estimate is not reliable are hollow.
    """
    table: Any = found.path(seed=seed)
    size, value = table["size"], table["difference"]
    figure = _figure((5.2, 3.6))
    ax = figure.subplots()
    ax.axhline(0.0, color=_GREY, linewidth=0.8, linestyle=":")
    ax.errorbar(size, value, table["difference_error"], color=_BLUE, zorder=2)
    reliable = table["pareto_k"] <= 0.7
    face = [_BLUE if trusted else "white" for trusted in reliable]
    ax.scatter(size, value, color=face, edgecolors=_BLUE, s=30, zorder=3)
    chosen = int(found.models()["size"].iloc[0])
    if chosen in list(size):
        at = float(value[size == chosen].iloc[0])
        ring = {"facecolors": "none", "edgecolors": "black", "s": 110, "zorder": 4}
        ax.scatter(chosen, at, label=f"chosen: {chosen}", **ring)
        ax.legend(frameon=False)
    ax.set_xlabel("Candidates in the submodel")
    ax.set_title("Expected log predictive density, nats from the best")
    _clean(ax)
    return figure


def trade_off_curve(curve: TradeOff) -> "Figure":
    """Plot a held-out metric over the removed fraction, with its knee.

    Args:
        curve: From `bmrjax.trade_off`.
    """
    figure = _figure((5.2, 3.6))
    ax = figure.subplots()
    ax.plot(100 * curve.sparsity, curve.value, color=_BLUE, marker=".")
    x, y = 100 * curve.sparsity[curve.knee], curve.value[curve.knee]
    ax.plot([x], [y], "o", color=_ORANGE, label=f"knee: {x:.1f} % removed, {y:.4g}")
    ax.set_xlabel("Removed, %")
    ax.set_title(f"{_TITLES.get(curve.metric, curve.metric)}, held out")
    ax.legend(frameon=False)
    _clean(ax)
    return figure


def free_energy(report: FreeEnergyReport) -> "Figure":
    """Plot predicted against actual VFE over the pruning rate, and the orders against each other.

    Args:
        report: From `bmrjax.free_energy_report`, with the order ``"bmr"``.

    Returns:
        A figure with two panels: along the largest ΔF, what was predicted and what was measured, with
        a dashed line where the criterion stops; and the VFE (solid) with its part from the data
        (dashed) by each order. Where curves shoot up, as the last elements go, the axes cut them off.

    Raises:
        ValueError: If the report has no curve for ``"bmr"``.

    References:
        Beckers et al. (2024), figures 2 and 3.
    """
    if "bmr" not in report.curves:
        raise ValueError("plot.free_energy: the report has no curve 'bmr'; leave it in `orders`.")
    figure, (left, right) = _panels(2)
    colours = dict(zip(report.curves, (_BLUE, _ORANGE, _GREEN, _PURPLE), strict=False))
    main, rates = report.curves["bmr"], {}
    for name, curve in report.curves.items():
        rates[name] = curve.removed / max(report.num_kept, 1)
    left.plot(rates["bmr"], main.predicted, "--", color=_GREY, label="predicted by ΔF")
    left.plot(rates["bmr"], main.actual, color=_BLUE, label="measured")
    left.axvline(report.rate, color="black", linestyle=":", linewidth=1, label="criterion stops")
    left.set_title("Largest ΔF first")
    for name, curve in report.curves.items():
        label = {"bmr": "ΔF", "snr": "SNR", "spr": "SPR"}.get(name, name)
        right.plot(rates[name], curve.actual, color=colours[name], label=label)
        right.plot(rates[name], curve.expected_nll, "--", color=colours[name], linewidth=1)
    right.set_title("VFE (solid), its part from the data (dashed)")
    values = np.concatenate([c.actual for c in report.curves.values()])
    inner = np.concatenate([c.expected_nll for c in report.curves.values()])
    low, start = min(np.nanmin(values), np.nanmin(inner), np.min(main.predicted)), report.start
    margin = 0.5 * max(start - low, 1e-6)
    for ax in (left, right):
        ax.set_ylim(low - 0.1 * margin, start + margin)
        ax.set_xlabel("Fraction removed, of what was kept")
        ax.set_ylabel("nats")
        ax.legend(frameon=False, fontsize=8)
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


def _log(ax: "Axes", axis: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    which = getattr(ax, f"{axis}axis")
    getattr(ax, f"set_{axis}scale")("log")
    which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    which.set_major_formatter(StrMethodFormatter("{x:,g}"))
    which.set_minor_formatter(NullFormatter())


def _figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"Plots need the package matplotlib ({error}). Install it by pip install 'bmrjax[plots]'."
        ) from None
    return Figure(figsize=size, dpi=120, layout="constrained")


def _panels(count: int) -> tuple["Figure", list["Axes"]]:
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = _figure((4.2 * columns, 3.2 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    for ax in axes[:count]:
        _clean(ax)
    return figure, axes[:count]


def _clean(ax: "Axes") -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)

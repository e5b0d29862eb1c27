"""Curves over the epochs of a run, or of several."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from bmrjax.plot.axes import BLUE, COLOURS, GREEN, ORANGE, TITLES, log_axis, new_panels, titled
from bmrjax.run.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def learning_curves(
    result: Result | Mapping[str, Result], *, panels: Sequence[str] | None = None
) -> "Figure":
    """Plot the VFE, the held-out metrics and the kept fraction over the epochs, of one run or several.

    Epochs of rounds that were taken back are drawn light.

    Args:
        result: With a history of at least one epoch; or several of them by name, one colour each.
        panels: Which panels, of ``"vfe"``, ``"kept"`` and the names of metrics; by default all.

    Returns:
        A figure with a panel for the VFE, one for each held-out metric that a history has, and one for what
        was kept (where anything could be removed).

    Raises:
        ValueError: If a result has no history, or for a panel that there is not.

    Example:
        >>> import bmrjax as bmr
        >>> rows = [{"epoch": i, "vfe": 90.0 / i, "kept": 9, "taken_back": False} for i in (1, 2, 3)]
        >>> first, other = bmr.Result({}, {}, {}, 10, history=rows), bmr.Result({}, {}, {}, 20, history=rows)
        >>> figure = bmr.plot.learning_curves({"first": first, "other": other})
        >>> [axes.get_title(loc="left").split(",")[0] for axes in figure.axes]
        ['VFE']
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['first', 'other']
    """
    from matplotlib.ticker import MaxNLocator

    results = dict(result) if isinstance(result, Mapping) else {"": result}
    for name, one in results.items():
        if not one.history:
            which = f"'{name}'" if name else "this result"
            raise ValueError(
                f"learning_curves: {which} has no history, so there is nothing to plot."
            )
    known = _panels(results)
    if wrong := [name for name in panels or () if name not in known]:
        raise ValueError(f"learning_curves: there are no panels {wrong}; there are {known}.")
    chosen = known if panels is None else list(panels)
    figure, axes = new_panels(len(chosen))
    for name, ax in zip(chosen, axes, strict=True):
        titled(ax, _title(name, list(results.values())))
        lowest = math.inf
        for (label, one), colour in zip(results.items(), cycle(COLOURS), strict=False):
            rows = _rows(one, name)
            if len(results) == 1:
                colour = {"vfe": BLUE, "kept": GREEN}.get(name, ORANGE)
            if rows:
                _curve(ax, rows, name, colour, "" if name in ("vfe", "kept") else ".", label)
            lowest = min([lowest, *(row[name] for row in rows)])
        if name in ("vfe", "kept") and lowest > 0:
            log_axis(ax, "y", inches=2.6)
        ax.set_xlabel("Epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    found = {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if len(results) > 1:
        place = {"loc": "outside lower center", "ncols": min(len(found), 5)}
        figure.legend(list(found.values()), list(found), frameon=False, fontsize=9, **place)
    elif found:
        axes[0].legend(list(found.values()), list(found), frameon=False)
    return figure


def _panels(results: Mapping[str, Result]) -> list[str]:
    """Return the names of the panels that there are for some results."""
    measured = [_measured(result) for result in results.values()]
    metrics = [name for name in TITLES if any(name in row for rows in measured for row in rows)]
    judged = any(result.num_total for result in results.values())
    return ["vfe", *metrics, *(["kept"] if judged else [])]


def _title(name: str, results: Sequence[Result]) -> str:
    if name == "vfe":
        return "VFE, nats per data point (mean over an epoch)"
    if name != "kept":
        return f"{TITLES[name]}, held out"
    totals = {result.num_total for result in results if result.num_total}
    return f"Fraction kept, of {totals.pop():,}" if len(totals) == 1 else "Fraction kept"


def _rows(result: Result, name: str) -> list[dict[str, Any]]:
    """Return the epochs at which a panel has a value."""
    if name == "vfe":
        return [{**row, "vfe": row["vfe"] / result.num_data} for row in result.history]
    if name == "kept":
        total = result.num_total
        return [{**row, "kept": row["kept"] / total} for row in result.history if total]
    return [row for row in _measured(result) if name in row]


def _measured(result: Result) -> list[dict[str, Any]]:
    """Return the epochs with held-out metrics, those of the path among them, in order."""
    rows = {row["epoch"]: row for row in result.history}
    for point in result.path:
        row = {"epoch": point.epoch, "taken_back": False}
        rows[point.epoch] = {**row, **rows.get(point.epoch, {}), **point.metrics}
    return [rows[epoch] for epoch in sorted(rows)]


def _curve(
    ax: "Axes", rows: Sequence[dict[str, Any]], name: str, colour: str, marker: str, label: str
) -> None:
    """Draw the epochs that stayed, and the others light."""
    stayed = [row for row in rows if not row["taken_back"]]
    ax.plot(*_xy(stayed, name), color=colour, marker=marker, label=label or None)
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
        back_label = "taken back" if i == 0 and not label else None
        light_line = {"color": colour, "marker": marker, "alpha": 0.3, "linewidth": 1}
        ax.plot(*_xy(run, name), label=back_label, **light_line)


def _xy(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    return [row["epoch"] for row in rows], [row[name] for row in rows]

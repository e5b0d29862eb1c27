"""The sections of a page that say what was removed, at what price."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool

from bmrjax.report import Chart, Section, Table
from bmrjax.report.charts import agreement_chart, curves_chart
from bmrjax.run.element_names import element_names, named_axes
from bmrjax.run.page_words import finite, shown_nats, shown_number
from bmrjax.run.path_rounds import MeasuredRound

# Rows of a table, and elements that are listed one by one.
_MOST_ROWS, _MOST_ELEMENTS = 200, 400
_SIGN = "ΔF is positive where the evidence favours removal, in nats."


def removals_section(
    result: Any,
    rounds: Sequence[MeasuredRound],
    each: Mapping[str, tuple[Any, Any]],
    metrics: Sequence[Mapping[str, float]],
    *,
    unit: str,
    leads: Mapping[str, Bool[np.ndarray, "units inputs"]] = MappingProxyType({}),
) -> Section | None:
    """Return what each round, layer, unit and element lost; None for a result without masks.

    Args:
        result: A `Result`.
        rounds: From `path_rounds.path_rounds`.
        each: From `path_rounds.removal_of_each`.
        metrics: Held-out metrics of each point of the path.
        unit: What is kept or removed, such as "weights".
        leads: Which weights lead from an input to an output, by the site of a network's first layer, where
            that is known.
    """
    if not result.keep:
        return None
    blocks = [_layers(result, each, unit)]
    if rounds:
        blocks.append(_rounds(result, rounds, metrics, unit))
    blocks += [*_undone(result), *_inputs(result, each, leads), *_units(result, each)]
    blocks += _elements(result, each)
    text = f"By name, with the predicted evidence difference and what was measured. {_SIGN}"
    return Section("removed", "What was removed", text, blocks)


def agreement_section(rounds: Sequence[MeasuredRound], free_energy: Any) -> Section | None:
    """Return predicted against measured free energy; None if neither rounds nor a report have both.

    Args:
        rounds: From `path_rounds.path_rounds`.
        free_energy: A `FreeEnergyReport`, or None.
    """
    blocks = []
    rows = [
        {
            "predicted": one.predicted,
            "measured": one.measured,
            "hollow": one.taken_back,
            "title": f"point {one.before} to {one.after}",
        }
        for one in rounds
        if finite(one.predicted) is not None and finite(one.measured) is not None
    ]
    if rows:
        blocks.append(
            Chart(
                "Rounds of the run",
                f"{len(rows)} rounds: the predicted against the measured fall of the free energy, in nats. "
                + "; ".join(
                    f"{row['title']}: {shown_nats(row['predicted'])} predicted, "
                    f"{shown_nats(row['measured'])} measured"
                    for row in rows[:12]
                ),
                agreement_chart(rows, x="Predicted (ΔF)", y="Measured fall of the VFE"),
            )
        )
    text = (
        "On the dashed line, reduction did what it predicted. A round lies above it where the training that "
        "followed lowered the free energy further, and below where it removed what was needed."
    )
    if free_energy is not None:
        curve = free_energy.curves.get("bmr") or next(iter(free_energy.curves.values()))
        part = curve.removed / max(free_energy.num_kept, 1)
        low = min(np.nanmin(curve.actual), np.min(curve.predicted), free_energy.start)
        most = free_energy.start + max(free_energy.start - low, 1e-6)
        rows = [
            {"x": float(x), "y": float(y), "curve": name}
            for name, values in (("measured", curve.actual), ("predicted by ΔF", curve.predicted))
            for x, y in zip(part, values, strict=True)
            if np.isfinite(y) and y <= most  # the last elements would hide the rest
        ]
        x = "Fraction removed, of what was kept"
        blocks.append(
            Chart(
                "Without re-fitting", free_energy.summary(), curves_chart(rows, x=x, y="VFE, nats")
            )
        )
        text = f"{text} {free_energy.summary()}"
    return (
        Section("free-energy", "Predicted and measured free energy", text, blocks)
        if blocks
        else None
    )


def _layers(result: Any, each: Mapping[str, tuple[Any, Any]], unit: str) -> Table:
    found: dict[str, list[float]] = {}
    for name, mask in result.keep.items():
        kept, total, gain = found.setdefault(result.layers.get(name, name), [0, 0, 0.0])
        delta_f = each[name][1]
        gone = ~np.asarray(mask)
        # Not known where one of them is not: a sum without it would be another number.
        gain += float(delta_f[gone].sum()) if gone.any() else 0.0
        found[result.layers.get(name, name)] = [
            kept + int(np.asarray(mask).sum()),
            total + np.asarray(mask).size,
            gain,
        ]
    return Table(
        caption=f"Layers. ΔF is the sum over the {unit} that were removed, each when it was removed.",
        columns=["Layer", "Kept", "Of", "Removed", "ΔF, nats"],
        rows=[
            [
                name,
                f"{kept:,.0f}",
                f"{total:,.0f}",
                1 - kept / max(total, 1),
                shown_nats(gain) or "–",
            ]
            for name, (kept, total, gain) in list(found.items())[:_MOST_ROWS]
        ],
        numeric=frozenset({1, 2, 3, 4}),
    )


def _rounds(
    result: Any, rounds: Sequence[MeasuredRound], metrics: Sequence[Mapping[str, float]], unit: str
) -> Table:
    score = next((name for name in ("nll", "rmse") if any(name in m for m in metrics)), None)
    columns = ["Round", f"{unit.capitalize()} removed", "Where", "ΔF, nats", "VFE fell by, nats"]
    rows = []
    for one in rounds:
        by_layer: dict[str, int] = {}
        for name, places in one.removed.items():
            layer = result.layers.get(name, name)
            by_layer[layer] = by_layer.get(layer, 0) + len(places)
        where = [f"{layer}:\u00a0{count:,}" for layer, count in by_layer.items()]
        more = f"\nand {len(where) - 4} more" if len(where) > 4 else ""
        before, after = result.path[one.before], result.path[one.after]
        row = [
            f"Point {one.before} to {one.after}, epochs {before.epoch} to {after.epoch}",
            f"{one.count:,}",
            "\n".join(where[:4]) + more,
            shown_nats(one.predicted) or "–",
            shown_nats(one.measured) or "–",
        ]
        if score is not None:
            pair = [metrics[i].get(score) for i in (one.before, one.after)]
            row.append("–" if None in pair else shown_nats(pair[1] - pair[0]))  # type: ignore[operator]
        rows.append([*row, "taken back" if one.taken_back else "kept"])
    if score is not None:
        columns.append({"nll": "NLL per data point rose by", "rmse": "RMSE rose by"}[score])
    return Table(
        caption="Rounds. The measured fall of the free energy includes the training between the points.",
        columns=[*columns, "Outcome"],
        rows=rows[:_MOST_ROWS],
        numeric=frozenset({1, 3, 4, 5} if score is not None else {1, 3, 4}),
    )


def _undone(result: Any) -> Iterator[Table]:
    """Yield what the history says of rounds that were taken back and are not on the path."""
    on_path = {point.epoch for point in result.path if point.taken_back}
    groups: list[tuple[int, list[Mapping[str, Any]]]] = []
    kept, before = result.num_total, False
    for row in result.history:
        if not row.get("taken_back"):
            kept, before = row.get("kept", kept), False
        elif before:
            groups[-1][1].append(row)
        else:
            groups.append((kept, [row]))
            before = True
    rows = [
        [
            f"{group[0]['epoch']} to {group[-1]['epoch']}"
            if len(group) > 1
            else f"{group[0]['epoch']}",
            f"{start:,}",
            f"{group[-1].get('kept', start):,}",
            shown_number(group[-1]["vfe"] / result.num_data),
        ]
        for start, group in groups
        if not on_path & {row["epoch"] for row in group}
        # A state that was trained beside the reduced one is no round.
        and group[-1].get("kept", start) != start
    ]
    if rows:
        yield Table(
            caption="Rounds that were taken back: the free energy did not fall after them.",
            columns=["Epochs", "Kept before", "Kept in the round", "Loss per data point, nats"],
            rows=rows[:_MOST_ROWS],
            numeric=frozenset({1, 2, 3}),
        )


def _inputs(
    result: Any, each: Mapping[str, tuple[Any, Any]], leads: Mapping[str, Any]
) -> Iterator[Table]:
    """Yield what each input lost in the first layer of a network, counted as in `plot.inputs`."""
    axes = _axes(result)
    for name, along in axes.items():
        if "." not in name or len(along) != 2 or along[1] is None:
            continue
        keep, delta_f = np.asarray(result.keep[name]), each[name][1]
        gone = ~keep
        read = leads.get(name)
        known = read is not None and read.shape == keep.shape
        used = keep & read if known else keep
        rows = []
        for j, column in enumerate(along[1]):
            kept = int(used[:, j].sum())
            gain = float(delta_f[gone[:, j], j].sum())
            rows.append(
                [
                    column,
                    f"{kept:,}",
                    f"{len(keep):,}",
                    1 - kept / len(keep),
                    shown_nats(gain) or "–",
                ]
            )
        yield Table(
            caption=f"Inputs, by the weights of {name} that read them"
            + (" and lead to an output" if known else "")
            + ". An input without any is not used.",
            columns=[
                "Input",
                "Weights in use" if known else "Weights kept",
                "Of",
                "Removed",
                "ΔF, nats",
            ],
            rows=rows[:_MOST_ROWS],
            numeric=frozenset({1, 2, 3, 4}),
            summary="" if len(rows) <= 30 else f"{len(rows):,} inputs",
        )


def _units(result: Any, each: Mapping[str, tuple[Any, Any]]) -> Iterator[Table]:
    """Yield what each unit of the matrices of networks lost."""
    rows, total = [], 0
    for name, mask in result.keep.items():
        keep = np.asarray(mask)
        if "." not in name or keep.ndim < 2:
            continue
        axis = keep.ndim - 1 if name.endswith("kernel") else 0
        # One row per unit, whatever its weights are.
        keep = np.moveaxis(keep, axis, 0).reshape(keep.shape[axis], -1)
        delta_f = np.moveaxis(each[name][1], axis, 0).reshape(keep.shape)
        total += len(keep)
        for k in range(min(len(keep), _MOST_ROWS - len(rows))):
            kept, gain = int(keep[k].sum()), float(delta_f[k][~keep[k]].sum())
            rows.append(
                [
                    f"{name}, unit {k}",
                    f"{kept:,}",
                    f"{keep.shape[1]:,}",
                    1 - kept / keep.shape[1],
                    shown_nats(gain) or "–",
                ]
            )
    if rows:
        shown = f", the first {len(rows):,} shown" if total > len(rows) else ""
        yield Table(
            caption="Units, filters and heads, by the weights that lead into them.",
            columns=["Unit", "Weights kept", "Of", "Removed", "ΔF, nats"],
            rows=rows,
            numeric=frozenset({1, 2, 3, 4}),
            summary=f"{total:,} units{shown}",
        )


def _elements(result: Any, each: Mapping[str, tuple[Any, Any]]) -> Iterator[Table]:
    """Yield the elements one by one, where there are few."""
    names = [n for n in result.keep if "." not in n]
    total = sum(np.asarray(result.keep[n]).size for n in names)
    if not names or total > _MOST_ELEMENTS:
        return
    rows, axes = [], _axes(result)
    for site in names:
        keep, (at, delta_f) = np.asarray(result.keep[site]).ravel(), map(np.ravel, each[site])
        elements = element_names(np.shape(result.keep[site]), axes[site])
        for element, kept, point, gain in zip(elements, keep, at, delta_f, strict=True):
            reached = "" if kept else "before the path" if point < 0 else f"point {point}"
            rows.append(
                [
                    element if len(names) == 1 else f"{site}[{element}]",
                    "kept" if kept else "removed",
                    reached,
                    "" if kept else shown_nats(gain) or "–",
                ]
            )
    yield Table(
        caption="Elements. ΔF is that of the moment before removal; what a round cost is in the table above.",
        columns=["Element", "Outcome", "Gone at", "ΔF, nats"],
        rows=rows,
        numeric=frozenset({3}),
        summary="" if len(rows) <= 30 else f"{len(rows):,} elements",
    )


def _axes(result: Any) -> dict[str, Any]:
    shapes = {name: tuple(np.shape(mask)) for name, mask in result.keep.items()}
    return named_axes(shapes, result.columns, result.class_names)

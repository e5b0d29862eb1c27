"""The section of a page that goes along the path of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from bmrjax.report import Explorer, Measure, PathStep, Section, Table
from bmrjax.run.page_words import LABELS, finite, shown_bytes, shown_number
from bmrjax.run.path_costs import PointCost

_TEXT = (
    "Each point is a state of the run that result.at(i) restores. Move the slider, or select a point in a "
    "chart."
)
_HOLLOW = "Hollow points are rounds that the run took back."


def present_point(result: Any) -> int | None:
    """Return the number of the point that a result is at; None if it is not on its path."""
    for i in reversed(range(len(result.path))):
        if result.path[i].vfe == result.vfe and result.path[i].kept == result.num_kept:
            return i
    return None


def path_section(
    result: Any,
    metrics: Sequence[Mapping[str, float]],
    costs: Mapping[int, PointCost],
    *,
    unit: str,
    chosen: str = "",
    note: str = "",
) -> Section | None:
    """Return the section; None for a result without a path.

    Args:
        result: A `Result`.
        metrics: Held-out metrics of each point of its path.
        costs: Of some of its points.
        unit: What is kept or removed, such as "weights".
        chosen: Why the result is at its point, in a sentence.
        note: What else is to be said about the numbers.
    """
    path = result.path
    if not path:
        return None
    # From dense to sparse, each number of elements in the order in which it was reached.
    order = sorted(range(len(path)), key=lambda i: -path[i].kept)
    here = present_point(result)
    steps = [
        PathStep(
            title=f"Point {i}, after epoch {path[i].epoch}",
            kept=path[i].kept,
            mark=_mark(i, here, taken_back=path[i].taken_back),
            hollow=path[i].taken_back,
        )
        for i in order
    ]
    measures = [
        _measure("kept", f"{unit.capitalize()} kept", order, lambda i: path[i].kept, _count),
        _measure("removed", "Removed", order, lambda i: _removed(path[i]), _percent),
        _measure(
            "vfe",
            "VFE per data point, nats",
            order,
            lambda i: path[i].vfe / result.num_data,
            lambda value: f"{value:.4g}",
        ),
    ]
    for name, label in LABELS.items():
        if any(name in found for found in metrics):
            measures.append(
                _measure(
                    name,
                    label,
                    order,
                    lambda i, name=name: metrics[i].get(name),
                    lambda value, name=name: shown_number(value, name),
                )
            )
    measures += _of_costs(order, costs)
    explorer = Explorer(
        axis=f"{unit.capitalize()} kept",
        steps=steps,
        measures=measures,
        present=order.index(here) if here is not None else len(order) - 1,
    )
    table = Table(
        caption="All points of the path, from dense to sparse.",
        columns=["Point", *(measure.label for measure in measures), "Remark"],
        rows=[
            [step.title, *(measure.shown[j] or "–" for measure in measures), step.mark]
            for j, step in enumerate(steps)
        ],
        numeric=frozenset(range(1, 1 + len(measures))),
        summary="All points as a table",
    )
    hollow = _HOLLOW if any(step.hollow for step in steps) else ""
    text = " ".join(part for part in (_TEXT, chosen, hollow, note) if part)
    return Section("path", "Along the path", text, [explorer, table])


def _of_costs(order: Sequence[int], costs: Mapping[int, PointCost]) -> list[Measure]:
    if not costs:
        return []
    found = [
        _measure(
            "bytes",
            "Bytes of the compact network",
            order,
            lambda i: costs[i].bytes if i in costs else None,
            shown_bytes,
        ),
        _measure(
            "flops",
            "FLOPs per data point",
            order,
            lambda i: costs[i].flops if i in costs else None,
            _count,
        ),
    ]
    device = next((cost.device for cost in costs.values() if cost.latency is not None), None)
    if device is not None:
        found.append(
            _measure(
                "latency",
                f"Latency of 256 data points, ms ({device})",
                order,
                lambda i: costs[i].latency if i in costs else None,
                lambda value: f"{value:.3g}",
            )
        )
    return found


def _measure(name: str, label: str, order: Sequence[int], value: Any, shown: Any) -> Measure:
    values = [value(i) for i in order]
    return Measure(
        name,
        label,
        ["" if v is None else shown_number(v) if finite(v) is None else shown(v) for v in values],
        [finite(v) for v in values],
    )


def _removed(point: Any) -> float:
    return 1 - point.kept / point.total if point.total else 0.0


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _mark(i: int, here: int | None, *, taken_back: bool) -> str:
    return "this result" if i == here else "taken back" if taken_back else ""

"""The page that explains the reduction of a trained network; see `NetworkReduction.report`."""

from typing import Any

import numpy as np

from bmrjax.report import Chart, Explorer, Measure, Page, PathStep, Section, Table
from bmrjax.report.charts import agreement_chart
from bmrjax.run.page_words import finite, shown_nats, shown_number
from bmrjax.run.result_page import findings_section, made_section

_MOST_ROWS = 200


def network_page(found: Any, *, title: str, command: str) -> Page:
    """Return what a report shows.

    Args:
        found: A `NetworkReduction`.
        title: Heading.
        command: How the network was reduced.
    """
    total = sum(mask.size for mask in found.masks.values())
    point, dense = found.path[found.chosen], found.path[0]
    kept = sum(int(mask.sum()) for mask in found.masks.values())
    names = list(point.metrics)
    figures = [
        ("Weights kept", f"{kept:,}", f"of {total:,} that were judged"),
        ("Removed", f"{1 - point.kept:.1%}", ""),
    ]
    figures += [
        (
            f"{name.capitalize()}, held out",
            shown_number(point.metrics[name], name),
            f"dense {shown_number(dense.metrics[name], name)}",
        )
        for name in names
    ]
    sections = [
        _path(found, total),
        _arrays(found),
        _agreement(found),
        findings_section(found.findings),
        made_section({"Temperature": f"{found.temperature:.3g}"}, command),
    ]
    return Page(
        title=title,
        lead=(
            f"{kept:,} of {total:,} judged weights stay; the held-out loss changed by "
            f"{point.measured:+.4f} ± {point.standard_error:.4f} nats per row. Nothing was trained again."
        ),
        figures=figures,
        sections=sections,
    )


def _path(found: Any, total: int) -> Section:
    path = found.path

    def measure(name: str, label: str, values: list[float], shown: Any) -> Measure:
        values_or_none = [finite(float(value)) for value in values]
        return Measure(name, label, [shown(v) for v in values], values_or_none)

    kept = [point.kept * total for point in path]
    measures = [
        measure("kept", "Weights kept", kept, lambda v: f"{v:,.0f}"),
        measure("removed", "Removed", [1 - p.kept for p in path], lambda v: f"{v:.1%}"),
    ]
    for name in path[found.chosen].metrics:
        measures.append(
            measure(
                f"metric-{name}",
                f"{name.capitalize()}, held out",
                [p.metrics.get(name, np.nan) for p in path],
                lambda v, name=name: shown_number(v, name),
            )
        )
    for name, label in (
        ("measured", "Rise of the held-out loss per row, nats"),
        ("predicted", "The same, as predicted"),
        ("delta_f", "ΔF over all data, nats"),
    ):
        measures.append(measure(name, label, [getattr(p, name) for p in path], shown_number))
    steps = [
        PathStep(
            f"Point {i}",
            round(count),
            "this network" if i == found.chosen else "as good as dense" if p.as_good else "",
            hollow=not p.as_good,
        )
        for i, (p, count) in enumerate(zip(path, kept, strict=True))
    ]
    rows = [
        [step.title, *(m.shown[i] for m in measures), step.mark] for i, step in enumerate(steps)
    ]
    text = (
        "Each point is a network that result.network_at(i) returns. Hollow points are worse than the dense "
        "network, as far as the held-out rows can tell."
    )
    blocks = [
        Explorer("Weights kept", steps, measures, found.chosen),
        Table(
            "All points of the path.",
            ["Point", *(m.label for m in measures), "Remark"],
            rows,
            frozenset(range(1, 1 + len(measures))),
            summary="All points as a table",
        ),
    ]
    return Section("path", "Along the path", text, blocks)


def _arrays(found: Any) -> Section:
    lost: Any = found.removals()
    gain = lost.groupby("array")["delta_f"].sum() if len(lost) else {}
    rows = [
        [
            name,
            f"{int(mask.sum()):,}",
            f"{mask.size:,}",
            1 - float(mask.mean()),
            shown_nats(float(gain[name])) if name in gain else "–",
        ]
        for name, mask in list(found.masks.items())[:_MOST_ROWS]
    ]
    blocks = [
        Table(
            "Arrays. ΔF is the sum over the weights that were removed, each when it was removed.",
            ["Array", "Kept", "Of", "Removed", "ΔF, nats"],
            rows,
            frozenset({1, 2, 3, 4}),
        )
    ]
    if found.not_judged:
        others = list(found.not_judged.items())[:_MOST_ROWS]
        blocks.append(
            Table(
                "Arrays that were not judged.",
                ["Array", "Why"],
                [list(pair) for pair in others],
                summary=f"{len(found.not_judged):,} arrays were not judged",
            )
        )
    text = "ΔF is the change of the log evidence, positive where it favours removal; removals() lists all."
    return Section("removed", "What was removed", text, blocks)


def _agreement(found: Any) -> Section:
    rows = [
        {
            "predicted": float(p.predicted),
            "measured": float(p.measured),
            "hollow": not p.as_good,
            "title": f"point {i}, {p.kept:.1%} kept",
        }
        for i, p in enumerate(found.path)
        if np.isfinite(p.predicted) and np.isfinite(p.measured)
    ]
    described = "; ".join(
        f"{row['title']}: {row['predicted']:.4g} predicted, {row['measured']:.4g} measured"
        for row in rows
    )
    chart = Chart(
        "Rise of the loss",
        described,
        agreement_chart(rows, x="Predicted rise", y="Measured rise", unit="nats per row"),
    )
    text = (
        "The rise of the loss since the dense network, as the curvature predicts it, and as it was measured "
        "on held-out rows."
    )
    return Section("loss", "Predicted and measured loss", text, [chart])

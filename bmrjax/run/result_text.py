"""The text that stands for a result where it is printed."""

from collections.abc import Mapping
from typing import Any

from bmrjax.run.inspection import Inspection
from bmrjax.run.point import kept_counts


def result_text(result: Any) -> str:
    """Return what is left, how well it fits, which sites were judged, and what is wrong."""
    head = f"Result: {result.num_kept} of {result.num_total} elements kept"
    if result.num_total:
        head += f" ({result.sparsity:.1%} removed)"
    lines = [head]
    if result.vfe is not None:
        tempered = ""
        if result.temperature != 1:
            tempered = f", at temperature {result.temperature:g}"
        lines.append(
            f"VFE {result.vfe:.6g} nats, {result.vfe / result.num_data:.4f} per data point{tempered}"
        )
    if result.metrics:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
        lines.append(f"held out: {metrics}")
    removed = [f"{name} {part:.1%}" for name, part in result.sparsity_per_layer.items()]
    if removed:
        more = f", and {len(removed) - 8} more" if len(removed) > 8 else ""
        lines.append(f"removed: {', '.join(removed[:8])}{more}")
    length = f"{len(result.history)} epochs, {len(result.path)} points on the path"
    if result.num_skipped:
        length += f", {result.num_skipped} steps skipped (not finite)"
    lines += [length, *_judged(result.inspection, result.keep)]
    findings = result.diagnose()
    if findings:
        lines += ["findings:", *(f"  {finding}" for finding in findings)]
    return "\n  ".join(lines)


def _judged(inspection: Inspection, keep: Mapping[str, Any]) -> list[str]:
    """Return which sites were judged, with what is left of them, and why others were not, for `Result`."""
    judged = []
    for name in inspection.judged:
        if name in keep:
            kept, total = kept_counts({name: keep[name]})
            judged.append(f"'{name}' {kept} of {total}")
    lines = []
    if judged:
        more = f", and {len(judged) - 6} more" if len(judged) > 6 else ""
        lines.append(f"judged: {', '.join(judged[:6])}{more}")
    others = inspection.not_judged
    lines += [f"not judged: '{site.name}': {site.why}" for site in others[:6]]
    return [*lines, "... bmr.inspect(...) lists all"] if len(others) > 6 else lines

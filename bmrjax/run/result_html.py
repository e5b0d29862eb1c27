"""The head of a result as HTML, for notebooks: small, and without scripts."""

from html import escape
from typing import Any

from bmrjax.run.page_words import LABELS, shown_number
from bmrjax.run.point import kept_counts

_MOST_LAYERS, _MOST_FINDINGS = 12, 6
_BAR = (
    "display:inline-block;vertical-align:middle;width:8em;height:.6em;border-radius:3px;"
    "background:linear-gradient(90deg,#0072B2 {part:.1%},rgba(128,128,128,.3) 0)"
)
_CELL = 'style="text-align:{};padding:.15em .8em .15em 0"'


def result_html(result: Any) -> str:
    """Return what is left, how well it fits, what each layer lost, and what is wrong.

    Args:
        result: A `Result`.
    """
    head = "Result"
    if result.num_total:
        head = f"{result.num_kept:,} of {result.num_total:,} elements kept ({result.sparsity:.1%} removed)"
    facts = []
    if result.vfe is not None:
        facts.append(f"VFE {shown_number(result.vfe / result.num_data)} nats per data point")
    facts += [
        f"{LABELS.get(name, name)}: {shown_number(value, name)}"
        for name, value in result.metrics.items()
    ]
    facts.append(f"{len(result.history)} epochs, {len(result.path)} points on the path")
    parts = [f"<p><strong>{escape(head)}</strong><br>{escape(' · '.join(facts))}</p>"]
    layers: dict[str, dict[str, Any]] = {}
    for name, mask in result.keep.items():
        layers.setdefault(result.layers.get(name, name), {})[name] = mask
    if layers:
        parts.append(_table(layers))
    findings = result.diagnose()
    if findings:
        shown = "".join(
            f"<li><strong>{escape(one.code)}</strong>: {escape(one.message)} {escape(one.advice)}</li>"
            for one in findings[:_MOST_FINDINGS]
        )
        more = len(findings) - _MOST_FINDINGS
        shown += f"<li>and {more} more: result.diagnose()</li>" if more > 0 else ""
        parts.append(f"<p>Findings</p><ul>{shown}</ul>")
    return f'<div class="bmrjax-result">{"".join(parts)}</div>'


def _table(layers: dict[str, dict[str, Any]]) -> str:
    left, right = _CELL.format("left"), _CELL.format("right")
    rows = [
        f"<tr><th {left}>Layer</th><th {right}>Kept</th><th {right}>Of</th><th {left}>Removed</th></tr>"
    ]
    for name, masks in list(layers.items())[:_MOST_LAYERS]:
        kept, total = kept_counts(masks)
        part = 1 - kept / total if total else 0.0
        bar = f'<span style="{_BAR.format(part=part)}"></span> {part:.1%}'
        rows.append(
            f"<tr><td {left}>{escape(name)}</td><td {right}>{kept:,}</td><td {right}>{total:,}</td>"
            f"<td {left}>{bar}</td></tr>"
        )
    more = len(layers) - _MOST_LAYERS
    if more > 0:
        rows.append(f'<tr><td colspan="4" {left}>and {more} more layers</td></tr>')
    return f"<table>{''.join(rows)}</table>"

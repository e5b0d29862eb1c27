"""Charts as Vega-Lite, from plain numbers. Colours are those of the page, in its light and its dark form."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bmrjax.report.blocks import Explorer, Measure

BLUE, ORANGE, GREEN = "var(--blue)", "var(--orange)", "var(--green)"
MUTED, LINE = "var(--muted)", "var(--line)"

CHART_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "view": {"stroke": "transparent"},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "gridColor": LINE,
        "domainColor": LINE,
        "tickColor": LINE,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 260,
        "titleLimit": 320,
    },
    "legend": {"labelColor": MUTED, "titleColor": MUTED, "orient": "top", "labelFontSize": 12},
}
_WIDTH: dict[str, Any] = {
    "width": "container",
    "autosize": {"type": "fit-x", "contains": "padding"},
}


def path_chart(explorer: Explorer, measure: Measure) -> dict[str, Any]:
    """Return the chart of one measure along a path; its signal `at` says which point is marked.

    Args:
        explorer: The path.
        measure: One of its measures.
    """
    rows = [
        {"i": i, "kept": step.kept, "value": value, "hollow": step.hollow, "title": step.title}
        | {"shown": shown}
        for i, (step, value, shown) in enumerate(
            zip(explorer.steps, measure.values, measure.shown, strict=True)
        )
        if value is not None
    ]
    # All charts of a path have one horizontal axis, also where a measure is not known everywhere.
    kept = [step.kept for step in explorer.steps]
    low, high = min(kept), max(kept)
    domain = [low, high] if low < high else [low / 1.1, high * 1.1 or 1.0]
    scale: dict[str, Any] = {"reverse": True, "nice": False, "domain": domain}
    scale["type"] = "log" if low > 0 else "symlog"
    x = {
        "field": "kept",
        "type": "quantitative",
        "scale": scale,
        "axis": {
            "title": explorer.axis,
            "format": ",.3~r",
            "values": log_ticks(low, high),
            "labelOverlap": "greedy",
        },
    }
    y = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": False, "nice": True},
        "axis": {"title": None, "tickCount": 4, "format": ",.4~r"},
    }
    tooltip = [
        {"field": "title", "title": "Point"},
        {"field": "kept", "title": explorer.axis, "format": ","},
        {"field": "shown", "title": measure.label},
    ]
    here = "datum.i === at"
    return {
        **_WIDTH,
        "height": 130,
        "params": [{"name": "at", "value": explorer.present}],
        "data": {"values": rows},
        "encoding": {"x": x, "y": y, "order": {"field": "i"}},
        "layer": [
            {
                "transform": [{"filter": "!datum.hollow"}],
                "mark": {"type": "line", "color": BLUE, "strokeWidth": 1.5},
            },
            {
                "transform": [{"filter": here}],
                "mark": {"type": "rule", "color": ORANGE, "strokeWidth": 1.5},
                "encoding": {"y": {}},
            },
            {
                "mark": {
                    "type": "point",
                    "size": 50,
                    "stroke": BLUE,
                    "opacity": 1,
                    "cursor": "pointer",
                },
                "encoding": {
                    "fill": {
                        "condition": {"test": "datum.hollow", "value": "var(--panel)"},
                        "value": BLUE,
                    },
                    "tooltip": tooltip,
                },
            },
            {
                "transform": [{"filter": here}],
                "mark": {
                    "type": "point",
                    "size": 140,
                    "fill": ORANGE,
                    "stroke": "var(--panel)",
                    "opacity": 1,
                },
                "encoding": {"tooltip": tooltip},
            },
        ],
    }


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from low to high, at most about six; 0 where the axis begins there.

    Example:
        >>> log_ticks(120, 2780), log_ticks(0, 40), log_ticks(3, 8_000_000)
        ([200, 500, 1000, 2000], [0, 1, 2, 5, 10, 20], [10, 1000, 100000])
    """
    powers = range(math.floor(math.log10(max(low, 1))), math.ceil(math.log10(max(high, 2))) + 1)
    ticks: list[float] = [digit * 10**power for power in powers for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if max(low, 1) <= tick <= high]
    if len(ticks) > 6:
        ticks = [tick for tick in ticks if str(tick)[0] == "1"]
        ticks = ticks[:: -(-len(ticks) // 4)]
    return [*([0] if low <= 0 else []), *(ticks or [low, high])]


def agreement_chart(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: str, unit: str = "nats"
) -> dict[str, Any]:
    """Return a scatter of predicted against measured values, with the line on which they agree.

    Args:
        rows: Each with ``"predicted"``, ``"measured"``, ``"title"``, and ``"hollow"`` where taken back.
        x: Title of the predicted values.
        y: Title of the measured values.
        unit: Of both.
    """
    values = [row[k] for row in rows for k in ("predicted", "measured")]
    low, high = min(*values, 0.0), max(*values, 0.0)
    pad = 0.05 * (high - low or 1.0)
    domain = [low - pad, high + pad]
    line = [{"predicted": end, "measured": end} for end in domain]
    tooltip = [
        {"field": "title", "title": "Round"},
        {"field": "predicted", "title": f"{x}, {unit}", "format": ",.4~g"},
        {"field": "measured", "title": f"{y}, {unit}", "format": ",.4~g"},
    ]
    return {
        **_WIDTH,
        "height": 260,
        "encoding": {
            "x": _axis("predicted", f"{x}, {unit}", domain),
            "y": _axis("measured", f"{y}, {unit}", domain),
        },
        "layer": [
            {
                "data": {"values": line},
                "mark": {"type": "line", "strokeDash": [4, 4], "color": MUTED, "clip": True},
            },
            {
                "data": {"values": list(rows)},
                "mark": {"type": "point", "size": 70, "stroke": BLUE, "opacity": 1},
                "encoding": {
                    "fill": {
                        "condition": {"test": "datum.hollow", "value": "var(--panel)"},
                        "value": BLUE,
                    },
                    "tooltip": tooltip,
                },
            },
        ],
    }


def curves_chart(rows: Sequence[Mapping[str, Any]], *, x: str, y: str) -> dict[str, Any]:
    """Return curves over one axis.

    Args:
        rows: Each with ``"x"``, ``"y"`` and ``"curve"``, the name of the curve, in the order of the legend.
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
    """
    names = list(dict.fromkeys(row["curve"] for row in rows))
    colour = {
        "field": "curve",
        "type": "nominal",
        "scale": {"domain": names, "range": [BLUE, ORANGE, GREEN, MUTED][: len(names)]},
        "legend": {"title": None},
    }
    return {
        **_WIDTH,
        "height": 260,
        "data": {"values": list(rows)},
        "mark": {"type": "line", "strokeWidth": 1.8},
        "encoding": {
            "x": _axis("x", x),
            "y": _axis("y", y),
            "color": colour,
            "strokeDash": {
                "field": "curve",
                "type": "nominal",
                "scale": {"domain": names, "range": [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]},
                "legend": {"title": None},
            },
        },
    }


def reliability_chart(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: str, least: float = 0.0
) -> dict[str, Any]:
    """Return a reliability diagram: what was predicted against how often it came true.

    Args:
        rows: Each with ``"expected"`` and ``"observed"``, both between 0 and 1, and ``"count"``.
        x: Title of the predicted values.
        y: Title of what was observed.
        least: Left end of the horizontal axis.
    """
    tooltip = [
        {"field": "expected", "title": x, "format": ".3f"},
        {"field": "observed", "title": y, "format": ".3f"},
        {"field": "count", "title": "Rows", "format": ","},
    ]
    diagonal = [{"expected": end, "observed": end} for end in (least, 1.0)]
    size: dict[str, Any] = {"value": 60}
    if len({row["count"] for row in rows}) > 1:
        scale = {"range": [20, 320], "zero": True}
        size = {"field": "count", "type": "quantitative", "scale": scale, "legend": None}
    return {
        **_WIDTH,
        "height": 260,
        "encoding": {
            "x": _axis("expected", x, [least, 1.0]),
            "y": _axis("observed", y, [0.0, 1.0]),
        },
        "layer": [
            {
                "data": {"values": diagonal},
                "mark": {"type": "line", "strokeDash": [4, 4], "color": MUTED},
            },
            {
                "data": {"values": list(rows)},
                "layer": [
                    {
                        "mark": {"type": "rule", "color": ORANGE, "strokeWidth": 1.5},
                        "encoding": {"y2": {"field": "expected"}},
                    },
                    {
                        "mark": {"type": "point", "filled": True, "color": BLUE, "opacity": 1},
                        "encoding": {"size": size, "tooltip": tooltip},
                    },
                ],
            },
        ],
    }


def intervals_chart(rows: Sequence[Mapping[str, Any]], *, x: str) -> dict[str, Any]:
    """Return points with intervals, one row each, by name.

    Args:
        rows: Each with ``"name"``, ``"mean"``, ``"low"``, ``"high"`` and ``"kept"``.
        x: Title of the horizontal axis.
    """
    found: list[dict[str, Any]] = []
    # Two rows of one name would be drawn as one.
    seen: dict[str, int] = {}
    for row in rows:
        seen[row["name"]] = seen.get(row["name"], -1) + 1
        found.append({**row, "name": row["name"] + "\u200b" * seen[row["name"]]})
    tooltip = [{"field": "name", "title": "Element"}] + [
        {"field": key, "title": key, "format": ".4~g"} for key in ("mean", "low", "high")
    ]
    colour = {"condition": {"test": "datum.kept", "value": BLUE}, "value": MUTED}
    return {
        **_WIDTH,
        "height": {"step": 22},
        "data": {"values": found},
        "encoding": {
            "y": {
                "field": "name",
                "type": "nominal",
                "sort": None,
                "axis": {"title": None, "domain": False, "ticks": False, "grid": True},
            },
            "tooltip": tooltip,
        },
        "layer": [
            {"mark": {"type": "rule", "color": MUTED}, "encoding": {"x": {"datum": 0.0}, "y": {}}},
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {
                    "x": _axis("low", x),
                    "x2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {"x": {"field": "mean", "type": "quantitative"}, "color": colour},
            },
        ],
    }


def _axis(field: str, title: str, domain: Sequence[float] | None = None) -> dict[str, Any]:
    scale: dict[str, Any] = {"zero": False} if domain is None else {"domain": list(domain)}
    return {
        "field": field,
        "type": "quantitative",
        "scale": scale,
        "axis": {"title": title, "tickCount": 5, "labelOverlap": "greedy"},
    }

"""The section of a page with coefficients and their intervals, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bmrjax.report import Chart, Section, Table
from bmrjax.report.charts import intervals_chart
from bmrjax.run.page_words import short_names, shown_number
from bmrjax.run.summary import summary_table

_MOST, _PROB = 60, 0.9


def coefficients_section(result: Any, posterior: Mapping[str, Any]) -> Section | None:
    """Return the section; None for a program whose only judged sites are weights of networks.

    Args:
        result: A `Result` with its program.
        posterior: Its posterior by site.
    """
    sites = [n for n in posterior if "." not in n and (n in result.keep or not result.keep)]
    if not sites:
        return None
    table: Any = summary_table(result, {n: posterior[n] for n in sites}, prob=_PROB)
    if not len(table):
        return None
    low, high = (str(title) for title in table.columns[5:7])
    table = with_names(table)
    total, kept = len(table), int(table["kept"].sum())
    shown = table[table["kept"]]
    shown = shown.loc[sorted(shown["mean"].abs().sort_values(ascending=False).index[:_MOST])]
    text = f"Posterior means and central {100 * _PROB:g}% intervals; {kept:,} of {total:,} are kept"
    text += f", the {_MOST} largest are shown." if kept > _MOST else "."
    if not len(shown):
        return Section("coefficients", "Coefficients", text, [])
    rows = [
        {"name": name, "mean": float(mean), "low": float(a), "high": float(b), "kept": True}
        for name, mean, a, b in zip(
            short_names(list(shown["name"])), shown["mean"], shown[low], shown[high], strict=True
        )
    ]
    # What is not finite is in the table only.
    rows = [r for r in rows if np.isfinite([r["mean"], r["low"], r["high"]]).all()]
    chart = effects_chart("Kept coefficients", rows, x="Posterior mean, interval")
    listed = Table(
        caption="Kept coefficients.",
        columns=["Element", "Mean", "Standard deviation", low, high],
        rows=[
            [row.name, *(shown_number(float(v)) for v in values)]
            for row, values in zip(
                shown[["name"]].itertuples(index=False),
                shown[["mean", "sd", low, high]].to_numpy(),
                strict=True,
            )
        ],
        numeric=frozenset({1, 2, 3, 4}),
        summary="The same as a table",
    )
    return Section("coefficients", "Coefficients", text, [chart, listed])


def with_names(table: Any) -> Any:
    """Return a table of elements with the column ``"name"``: the element, and its site if there are several.

    Args:
        table: With the columns ``"site"`` and ``"element"``.
    """
    several = table["site"].nunique() > 1
    return table.assign(
        name=[
            f"{row.site}[{row.element}]" if several else row.element
            for row in table[["site", "element"]].itertuples()
        ]
    )


def effects_chart(title: str, rows: Sequence[Mapping[str, Any]], *, x: str) -> Chart:
    """Return a chart of means with their intervals, and the same of the first twenty in words.

    Args:
        title: Of the chart.
        rows: Each with ``"name"``, ``"mean"``, ``"low"``, ``"high"`` and ``"kept"``.
        x: Title of the axis.
    """
    described = "; ".join(
        f"{r['name']} {shown_number(r['mean'])} ({shown_number(r['low'])} to {shown_number(r['high'])})"
        for r in rows[:20]
    )
    return Chart(title, described, intervals_chart(rows, x=x))

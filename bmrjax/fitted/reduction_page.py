"""The page that explains the reduction of a finished fit; see `FitReduction.report`."""

from typing import Any

import numpy as np

from bmrjax.fitted.models_table import candidate_columns
from bmrjax.report import Chart, Notes, Page, Section, Table
from bmrjax.report.charts import agreement_chart
from bmrjax.run.page_coefficients import effects_chart, with_names
from bmrjax.run.page_words import short_names, shown_nats
from bmrjax.run.result_page import findings_section, made_section

# Elements in a chart and in a table, and submodels.
_MOST_DRAWN, _MOST_ROWS, _MOST_MODELS = 60, 500, 20


def reduction_page(found: Any, *, title: str, command: str) -> Page:
    """Return what a report shows.

    Args:
        found: A `FitReduction`.
        title: Heading.
        command: How the fit was made.
    """
    table: Any = with_names(found.table())
    models: Any = found.models()
    kept = int(models["size"].iloc[0])
    prob = "measured_prob" if "measured_prob" in models else "prob"
    best = float(models[prob].iloc[0])
    sections = [
        _elements(table),
        _effects(table),
        _submodels(models, found.candidates),
        _verified(found.verification),
        findings_section(found.findings),
        made_section({"Pareto k": _shown_k(found.pareto_k)}, command),
    ]
    return Page(
        title=title,
        lead=(
            f"{kept:,} of {len(found.candidates):,} candidates are in the most probable submodel, whose "
            f"probability is {best:.2g}."
        ),
        figures=[
            ("In the submodel", f"{kept:,}", f"of {len(found.candidates):,} candidates"),
            ("Its probability", f"{best:.2g}", ""),
            ("ΔF of the submodel", shown_nats(float(models["delta_f"].iloc[0])), "nats"),
            ("Pareto k", _shown_k(found.pareto_k), "up to 0.7 the normal covers the posterior"),
        ],
        sections=[section for section in sections if section is not None],
    )


def _elements(table: Any) -> Section:
    measured = "predicted_inclusion_prob" in table
    rows = [
        [
            row.name,
            "kept" if row.kept else "removed",
            float(np.clip(p, 0, 1)),
            shown_nats(float(row.delta_f)) or "–",
            shown_nats(float(row.delta_f_given)) or "–",
        ]
        for row, p in zip(
            table[["name", "kept", "delta_f", "delta_f_given"]].itertuples(index=False),
            table["inclusion_prob"],
            strict=True,
        )
    ]
    caption = "Elements" + (
        ", with inclusion probabilities by measured evidence" if measured else ""
    )
    more = (
        f" The first {_MOST_ROWS:,} of {len(rows):,} are shown." if len(rows) > _MOST_ROWS else ""
    )
    text = (
        "ΔF is ln of the evidence without an element over that with it, in nats; positive favours removal. "
        "It is given alone, in the full model, and with the elements of the chosen submodel as they are."
        + more
    )
    columns = ["Element", "Outcome", "Inclusion probability", "ΔF alone", "ΔF in the submodel"]
    listed = Table(f"{caption}.", columns, rows[:_MOST_ROWS], frozenset({2, 3, 4}))
    return Section("elements", "What was removed", text, [listed])


def _effects(table: Any) -> Section:
    largest = table["mean"].abs().sort_values(ascending=False).index[:_MOST_DRAWN]
    table = table.loc[sorted(largest)]
    table = table.assign(name=short_names(list(table["name"])))
    rows = [
        {
            "name": row[0],
            "mean": float(row[1]),
            "low": float(row[2]),
            "high": float(row[3]),
            "kept": bool(row[4]),
        }
        for row in table[["name", "mean", "2.5 %", "97.5 %", "kept"]].itertuples(
            index=False, name=None
        )
    ]
    chart = effects_chart("Averaged effects", rows, x="Mean over submodels, 95% interval")
    by = ", by measured evidence where there is any" if "predicted_inclusion_prob" in table else ""
    text = f"Averages over all submodels{by}, zeros counted. Grey elements are not in the chosen submodel."
    return Section("effects", "Coefficients", text, [chart])


def _submodels(models: Any, candidates: Any) -> Section:
    rows = []
    named = list(zip(candidates, candidate_columns(candidates), strict=True))
    for _, row in models.head(_MOST_MODELS).iterrows():
        inside = [name for name, column in named if row[column]]
        more = f" and {len(inside) - 12} more" if len(inside) > 12 else ""
        cells: list[str | float] = [
            ", ".join(inside[:12]) + more or "nothing",
            f"{int(row['size']):,}",
        ]
        cells += [float(row["prob"]), shown_nats(float(row["delta_f"]))]
        if "measured" in models:
            cells.append(shown_nats(float(row["measured"])) or "not measured")
        if "measured_prob" in models:
            own = float(row["measured_prob"])
            cells.append("not measured" if np.isnan(own) else own)
        rows.append(cells)
    columns = ["Submodel", "Size", "Probability", "ΔF, nats"]
    columns += ["Measured, nats"] if "measured" in models else []
    columns += ["By measured evidence"] if "measured_prob" in models else []
    numeric = frozenset(range(1, len(columns)))
    first = ", by measured evidence where there is any" if "measured_prob" in models else ""
    text = (
        f"The most probable ones first{first}. ΔF is that of the submodel against the full model."
    )
    return Section("submodels", "Submodels", text, [Table("Submodels.", columns, rows, numeric)])


def _verified(check: Any) -> Section | None:
    name, title = "free-energy", "Predicted and measured evidence"
    if check is None:
        note = (
            "Not measured",
            "The evidence is that of the normal posterior.",
            "reduce_fit(..., verify=True)",
        )
        return Section(name, title, "", [Notes([note])])
    rows = [
        {
            "predicted": float(p),
            "measured": float(m),
            "hollow": bool(k > 0.7),
            "title": f"submodel {i + 1}",
        }
        for i, (p, m, k) in enumerate(
            zip(check.predicted, check.measured, check.pareto_k, strict=True)
        )
        if np.isfinite(p) and np.isfinite(m)
    ]
    if not rows:
        return None
    text = "Hollow points are not reliable: their Pareto k is above 0.7."
    chart = Chart("Submodels", str(check), agreement_chart(rows, x="Predicted ΔF", y="Measured ΔF"))
    return Section(name, title, text, [chart])


def _shown_k(value: float) -> str:
    return "not measured" if np.isnan(value) else f"{value:.2f}"

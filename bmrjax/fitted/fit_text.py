"""The reduction of a finished fit as text."""

from typing import Any

import numpy as np

from bmrjax.fitted.measured_average import MeasuredAverage
from bmrjax.fitted.normality import TRUSTED_PARETO_K, Normality

# Rows of the table and credible sets that are printed.
_ROWS, _SETS = 30, 12


def fit_text(reduction: Any, after: MeasuredAverage, text: str, normality: Normality) -> str:
    """Return what was chosen, whether to trust it, and the table.

    Args:
        reduction: A `FitReduction`.
        after: Its submodels, by measured evidence where there is any.
        text: What was fitted and how it was searched, in words.
        normality: How normal it is.
    """
    kept, prob = int(after.chosen.sum()), float(after.prob[after.best])
    probability = f"{prob:.2g}" if prob >= 0.001 else "below 0.001"
    lines = [
        f"FitReduction: {kept} of {len(reduction.candidates)} candidates in the most probable submodel "
        f"(probability {probability})",
        text,
        _how_normal(normality, measured=reduction.is_measured),
    ]
    if reduction.verification is not None:
        lines.append(reduction.verification.line(after.best))
        lines.append(_by_what(reduction))
    others = reduction.inspection.not_judged
    lines += [f"not judged: '{site.name}': {site.why}" for site in others[:6]]
    if len(others) > 6:
        lines.append("... bmr.inspect(...) lists all")
    if reduction.findings:
        lines += ["findings:", *(f"  {finding}" for finding in reduction.findings)]
    shown = "\n  ".join(lines)
    return f"{shown}\n{_table(reduction)}{_credible_sets(reduction)}"


def _by_what(reduction: Any) -> str:
    """Return what the probabilities and averages are by."""
    if not reduction.is_measured:
        return "what was measured is not reliable: all else is as predicted"
    prob = reduction.models()[["prob", "measured_prob"]].dropna()
    share = f"{prob['prob'].sum():.2g}" if prob["prob"].sum() < 0.995 else "all"
    return (
        f"inclusion_prob, kept, mean, sd and intervals are by the measured evidence of {len(prob)} "
        f"submodels, which have {share} of the probability"
    )


def _credible_sets(reduction: Any) -> str:
    sets = reduction.credible_sets()
    if not any(len(one.names) > 1 for one in sets):
        return ""
    lines = [f"  {one}" for one in sets[:_SETS]]
    if sets[_SETS:]:
        lines.append(f"  ... and {len(sets) - _SETS} more; credible_sets() has all")
    return "\n".join(["", "credible sets, with an effect in each at 95 %:", *lines])


def _how_normal(normality: Normality, *, measured: bool) -> str:
    if normality.trusted is None:
        return f"normality was not checked: {normality.reason}"
    shape = f"Pareto k {normality.pareto_k:.2f} over {normality.num_latent} latent elements"
    if normality.trusted:
        hardly = normality.pareto_k > TRUSTED_PARETO_K
        why = f", in {normality.tail:.0%} of the evidence" if hardly else ""
        return f"{shape}{why}: the joint normal covers the posterior"
    if measured:
        return f"{shape}, above {TRUSTED_PARETO_K}: the joint normal does not cover the posterior"
    return f"do not trust this: {shape}, above {TRUSTED_PARETO_K}"


def _table(reduction: Any) -> str:
    table = reduction.table()
    if len(reduction.chosen) == 1:
        table = table.drop(columns="site")
    hidden = len(table) - _ROWS
    if hidden > 0:
        table = table.nlargest(_ROWS, "inclusion_prob").sort_index()
    table["kept"] = np.where(table["kept"], "yes", "-")
    table = table.rename(columns={"predicted_inclusion_prob": "predicted"})
    formats = {
        "inclusion_prob": "{:.3f}",
        "predicted": "{:.3f}",
        "delta_f": "{:.1f}",
        "delta_f_given": "{:.1f}",
    }
    text = table.to_string(
        index=False,
        na_rep="",
        formatters={n: form.format for n, form in formats.items() if n in table},
        float_format="{:.3g}".format,
    )
    more = f"\n... and {hidden} less probable elements; table() has all" if hidden > 0 else ""
    return text + more

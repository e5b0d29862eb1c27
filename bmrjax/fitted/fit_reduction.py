"""What the reduction of a finished fit says."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.layout import Layout
from bmrjax.fitted.model_average import Averaged
from bmrjax.fitted.normality import TRUSTED_PARETO_K, Normality
from bmrjax.fitted.search import Found
from bmrjax.fitted.verification import Verification
from bmrjax.run.diagnose import Finding
from bmrjax.run.inspection import Inspection

if TYPE_CHECKING:
    from pandas import DataFrame

BySite = dict[str, Float[np.ndarray, "..."]]

# Rows of the table that are printed; `table()` has all.
_ROWS = 30


@dataclass(frozen=True, repr=False)
class FitReduction:
    """Which elements of a finished fit the evidence needs; `reduce_fit` makes it, printing it shows a table.

    Arrays are by site and shaped as the site. Elements that had been removed before have an inclusion
    probability and moments of zero, and a `delta_f` of NaN.

    Attributes:
        inclusion_prob: Posterior probability that an element is in the model, over all submodels.
        delta_f: ln of the evidence without an element over that of the full model, in nats. Positive
            favours removal. For elements of a group, that of the group; NaN for forced ones.
        delta_f_given: The same, the other elements being those of the chosen submodel: what removing one more
            would gain, or what leaving it out has gained. Positive favours removal.
        mean: Posterior mean, averaged over submodels, zeros counted.
        sd: Posterior standard deviation, averaged in the same way.
        lower: Lower end of the central 95 % interval of the average.
        upper: Upper end.
        chosen: Elements of the most probable submodel: True is in.
        median: Elements with an inclusion probability above one half.
        candidates: What is in a submodel or not: names of elements and groups.
        pareto_k: How well the joint normal covers the posterior: up to 0.7 it does; NaN if it was not
            measured.
        findings: What is wrong with the fit, or may be.
        inspection: Which sites of the program were judged, and why the others were not; empty for arrays.
        verification: Predicted against measured evidence of the most probable submodels; None without
            `verify`.
        measured_inclusion_prob: Inclusion probabilities after these submodels have exchanged probability by
            their measured evidence; None without `verify`.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> prior = bmr.reduction.Normal(jnp.zeros(2), jnp.ones(2))
        >>> covariance = jnp.array([[0.02, 0.01], [0.01, 0.02]])
        >>> found = bmr.reduce_fit(
        ...     loc=jnp.array([0.8, 0.1]), covariance=covariance, prior=prior, names=["dose", "age"]
        ... )
        >>> best = found.models().iloc[0]
        >>> bool(best["dose"]), bool(best["age"]), f"{best['prob']:.2f}", f"{best['delta_f']:.2f} nats"
        (True, False, '0.85', '1.71 nats')
        >>> found.table()[["element", "kept", "inclusion_prob"]].round(2).values.tolist()
        [['dose', True, 1.0], ['age', False, 0.15]]
    """

    inclusion_prob: BySite
    delta_f: BySite
    delta_f_given: BySite
    mean: BySite
    sd: BySite
    lower: BySite
    upper: BySite
    chosen: dict[str, Bool[np.ndarray, "..."]]
    median: dict[str, Bool[np.ndarray, "..."]]
    candidates: tuple[str, ...]
    pareto_k: float
    findings: tuple[Finding, ...]
    inspection: Inspection
    verification: Verification | None
    measured_inclusion_prob: BySite | None
    _layout: Layout = field(repr=False)
    _found: Found = field(repr=False)
    _text: str = field(repr=False)
    _normality: Normality = field(repr=False)

    def models(self) -> "DataFrame":
        """Return the 64 most probable submodels and all within Occam's window, the most probable first.

        Returns:
            One row per submodel; the window has those that are at least a twentieth as probable as the best.
            The columns are a boolean one for each candidate, ``"size"`` (how many are in), ``"prob"``
            (among all submodels) and ``"delta_f"`` (ln of its evidence over that of the full model, in
            nats; positive favours the submodel). With `verify`, also ``"measured"`` and
            ``"measured_prob"``: the two from the program, NaN for submodels that were not measured.
        """
        import pandas as pd

        found = self._found
        columns: dict[str, Any] = dict(zip(self.candidates, found.masks.T, strict=True))
        columns |= {"size": found.masks.sum(1), "prob": found.prob, "delta_f": found.delta_f}
        if (check := self.verification) is not None:
            measured, prob = np.full((2, len(found.prob)), np.nan)
            count = len(check.measured)
            measured[:count], prob[:count] = check.measured, check.prob(found.prob[:count])
            columns |= {"measured": measured, "measured_prob": prob}
        return pd.DataFrame(columns)

    def table(self) -> "DataFrame":
        """Return one row per element, by name.

        Returns:
            The columns ``"site"``, ``"element"``, ``"kept"`` (in the chosen submodel), ``"inclusion_prob"``,
            ``"delta_f"``, ``"delta_f_given"``, ``"mean"``, ``"sd"``, ``"2.5 %"`` and ``"97.5 %"``; with
            `verify`, ``"measured_inclusion_prob"`` too.
        """
        import pandas as pd

        flat = self._layout.flat
        measured = self.measured_inclusion_prob
        more = {} if measured is None else {"measured_inclusion_prob": flat(measured)}
        return pd.DataFrame(
            {
                "site": self._layout.site,
                "element": self._layout.element,
                "kept": flat(self.chosen).astype(bool),
                "inclusion_prob": flat(self.inclusion_prob),
                **more,
                "delta_f": flat(self.delta_f),
                "delta_f_given": flat(self.delta_f_given),
                "mean": flat(self.mean),
                "sd": flat(self.sd),
                "2.5 %": flat(self.lower),
                "97.5 %": flat(self.upper),
            }
        )

    def __repr__(self) -> str:
        """Return what was chosen, whether to trust it, and the table."""
        kept, prob = int(self._found.masks[0].sum()), float(self._found.prob[0])
        probability = f"{prob:.2g}" if prob >= 0.001 else "below 0.001"
        lines = [
            f"FitReduction: {kept} of {len(self.candidates)} candidates in the most probable submodel "
            f"(probability {probability})",
            f"{self._text}; {self._found.text}",
            self._how_normal(),
        ]
        if self.verification is not None:
            lines.append(str(self.verification))
        others = self.inspection.not_judged
        lines += [f"not judged: '{site.name}': {site.why}" for site in others[:6]]
        if len(others) > 6:
            lines.append("... bmr.inspect(...) lists all")
        if self.findings:
            lines += ["findings:", *(f"  {finding}" for finding in self.findings)]
        shown = "\n  ".join(lines)
        return f"{shown}\n{self._printed()}"

    def _how_normal(self) -> str:
        normality = self._normality
        if normality.trusted is None:
            return f"normality was not checked: {normality.reason}"
        measured = f"Pareto k {normality.pareto_k:.2f} over {normality.num_latent} latent elements"
        if normality.trusted:
            return f"{measured}: the joint normal covers the posterior"
        return f"do not trust this: {measured}, above {TRUSTED_PARETO_K}"

    def _printed(self) -> str:
        table = self.table()
        if len(self.chosen) == 1:
            table = table.drop(columns="site")
        hidden = len(table) - _ROWS
        if hidden > 0:
            table = table.nlargest(_ROWS, "inclusion_prob").sort_index()
        table["kept"] = np.where(table["kept"], "yes", "-")
        table = table.rename(columns={"measured_inclusion_prob": "measured"})
        formats = {
            "inclusion_prob": "{:.3f}",
            "measured": "{:.3f}",
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


def fit_reduction(
    layout: Layout,
    units: dict[str, Any],
    found: Found,
    averaged: Averaged,
    delta_f: Float[np.ndarray, " units"],
    delta_f_given: Float[np.ndarray, " units"],
    *,
    text: str,
    normality: Normality,
    findings: tuple[Finding, ...],
    inspection: Inspection,
    verification: Verification | None,
) -> FitReduction:
    """Return the result by site.

    Args:
        layout: Where the elements lie.
        units: Candidate to its elements.
        found: The submodels.
        averaged: Each element under all of them.
        delta_f: Of each candidate alone.
        delta_f_given: Of each candidate, given the chosen submodel.
        text: What was fitted, in words.
        normality: How normal it is.
        findings: What is wrong with the draws.
        inspection: Which sites were judged.
        verification: Of the most probable submodels.
    """

    def spread(by_unit: Any) -> Any:
        flat = np.full(layout.size, np.nan)
        for value, members in zip(by_unit, units.values(), strict=True):
            flat[members] = value
        return flat

    chosen = np.ones(layout.size, bool)
    for inside, members in zip(found.masks[0], units.values(), strict=True):
        chosen[members] = inside
    by_site = layout.by_site
    measured = None
    if verification is not None:
        count = len(verification.measured)
        moved = verification.prob(found.prob[:count]) - found.prob[:count]
        change = np.zeros(layout.size)
        for inside, members in zip(found.masks[:count].T, units.values(), strict=True):
            change[members] = moved @ inside
        measured = by_site(np.clip(averaged.inclusion_prob + change, 0.0, 1.0), 0.0)
    return FitReduction(
        inclusion_prob=by_site(averaged.inclusion_prob, 0.0),
        delta_f=by_site(spread(delta_f), np.nan),
        delta_f_given=by_site(spread(delta_f_given), np.nan),
        mean=by_site(averaged.mean, 0.0),
        sd=by_site(averaged.sd, 0.0),
        lower=by_site(averaged.lower, 0.0),
        upper=by_site(averaged.upper, 0.0),
        chosen=by_site(chosen, missing=False),
        median=by_site(averaged.inclusion_prob > 0.5, missing=False),
        candidates=tuple(units),
        pareto_k=normality.pareto_k,
        findings=findings,
        inspection=inspection,
        verification=verification,
        measured_inclusion_prob=measured,
        _layout=layout,
        _found=found,
        _text=text,
        _normality=normality,
    )

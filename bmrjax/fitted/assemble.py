"""The reduction of a finished fit, put together by site."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool

from bmrjax.fitted.credible_sets import likelihood_correlation
from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.measured_average import by_measured_evidence
from bmrjax.fitted.model_average import average
from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.normality import Normality
from bmrjax.fitted.search import Found
from bmrjax.fitted.source import Source
from bmrjax.fitted.verification import Verification
from bmrjax.run.diagnose import Finding
from bmrjax.run.inspection import Inspection


def fit_reduction(
    layout: ElementLayout,
    units: dict[str, Any],
    normal: JointNormal,
    found: Found,
    *,
    prior: ModelPrior,
    text: str,
    normality: Normality,
    findings: tuple[Finding, ...],
    inspection: Inspection,
    verification: Verification | None,
    nodes: Nodes,
    source: Source | None = None,
    submodel: Callable[[Bool[np.ndarray, " n"]], Whole] | None = None,
) -> FitReduction:
    """Return the result by site.

    Args:
        layout: Where the elements lie.
        units: Candidate to its elements.
        normal: Posterior and prior of the elements.
        found: The submodels, as predicted.
        prior: Prior on submodels.
        text: What was fitted, in words.
        normality: How normal it is.
        findings: What is wrong with the draws.
        inspection: Which sites were judged.
        verification: Of the most probable submodels.
        nodes: The posterior and the units.
        source: Where the posterior is from, with its program.
        submodel: Elements that are in to the joint normal over all latent elements of that submodel.
    """

    def spread(by_unit: Any) -> Any:
        flat = np.full(layout.size, np.nan)
        for value, members in zip(by_unit, units.values(), strict=True):
            flat[members] = value
        return flat

    predicted, by_site = average(found), layout.by_site
    # What is measured, and not reliable, is shown beside the prediction and moves nothing.
    used = verification if verification is not None and verification.reliable(found) else None
    after = by_measured_evidence(found, used, nodes)
    shown = predicted if used is None else average(after.found)
    chosen = np.ones(layout.size, bool)
    for inside, members in zip(after.chosen, units.values(), strict=True):
        chosen[members] = inside
    return FitReduction(
        inclusion_prob=by_site(shown.inclusion_prob, 0.0),
        delta_f=by_site(spread(nodes.removal(np.ones(len(units), bool))), np.nan),
        delta_f_given=by_site(spread(nodes.removal(after.chosen)), np.nan),
        mean=by_site(shown.mean, 0.0),
        sd=by_site(shown.sd, 0.0),
        lower=by_site(shown.lower, 0.0),
        upper=by_site(shown.upper, 0.0),
        chosen=by_site(chosen, missing=False),
        median=by_site(shown.inclusion_prob > 0.5, missing=False),
        candidates=tuple(units),
        pareto_k=normality.pareto_k,
        findings=findings,
        inspection=inspection,
        verification=verification,
        is_measured=used is not None,
        predicted_inclusion_prob=by_site(predicted.inclusion_prob, 0.0),
        _layout=layout,
        _found=found,
        _after=after,
        _correlation=likelihood_correlation(normal, list(units.values())),
        _prior=prior,
        _text=text,
        _normality=normality,
        _nodes=nodes,
        _source=source,
        _submodel=submodel,
    )

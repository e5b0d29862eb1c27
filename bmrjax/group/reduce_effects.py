"""Which effects of the second level the evidence needs."""

import math

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.errors import FitWarning, warn
from bmrjax.fitted.assemble import fit_reduction
from bmrjax.fitted.fit_findings import unreliable_evidence
from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.normality import TRUSTED_PARETO_K, Normality
from bmrjax.fitted.search import OCCAMS_WINDOW, Found, search
from bmrjax.fitted.submodel_options import SubmodelOptions
from bmrjax.fitted.swept import Precision
from bmrjax.fitted.verification import MOST_SUBMODELS, Verification
from bmrjax.group.between import IntegratedLevel, VarianceComponents, integrate_level
from bmrjax.group.second_level import SecondLevel
from bmrjax.run.diagnose import Finding
from bmrjax.run.inspection import Inspection

_REASON = "effects of a second level, whose evidence verify=True computes for each submodel"


def reduce_effects(
    level: SecondLevel,
    components: VarianceComponents,
    integral: IntegratedLevel,
    layout: ElementLayout,
    unit: Float[np.ndarray, " q"],
    origin: Float[np.ndarray, " q"],
    options: SubmodelOptions,
    *,
    verify: bool,
    seed: int,
    text: str,
) -> FitReduction:
    """Search the submodels of the second level; see `GroupFit.reduce`.

    Args:
        level: The model.
        components: Standard deviations between subjects.
        integral: The posterior of the effects.
        layout: Names of the effects.
        unit: Of each effect, in the units of the parameters.
        origin: Value of each effect where the standardised one is zero.
        options: Which submodels there are.
        verify: Whether to integrate the most probable submodels by themselves.
        seed: Of all draws.
        text: What was fitted, in words.
    """
    loc, covariance = integral.moments()
    normal = JointNormal(
        origin + unit * loc, unit[:, None] * covariance * unit, origin, np.abs(unit)
    )
    units, prior = options.submodels(layout)
    rng = np.random.default_rng(seed)
    precision = Precision(normal, list(units.values()))
    nodes = Nodes.one(precision)
    found = search(nodes, prior, rng)
    verification = None
    if verify:
        inside = precision.elements(found.masks[:MOST_SUBMODELS])
        verification = _measure(
            level, components, integral, inside, -origin / unit, found.delta_f[: len(inside)], seed
        )
    findings = _off(verification, found)
    for finding in findings:
        warn(f"GroupFit.reduce: {finding}", FitWarning)
    return fit_reduction(
        layout,
        units,
        normal,
        found,
        prior=prior,
        text=text,
        normality=Normality(math.nan, reason=_REASON),
        findings=findings,
        inspection=Inspection(),
        verification=verification,
        nodes=nodes,
    )


def _off(verification: Verification | None, found: Found) -> tuple[Finding, ...]:
    """Return that the posterior of the effects is not normal, if the evidence says so."""
    if verification is None:
        return ()
    if not verification.reliable(found):
        weights = "the importance weights of their integrals"
        return (unreliable_evidence(weights, "give more subjects, or fewer covariates"),)
    difference = verification.predicted - verification.measured
    off = np.abs(difference) > 1.0 + 3 * verification.standard_error
    # Improbable submodels may be off by any amount without consequence.
    off &= np.maximum(verification.predicted, verification.measured) > (
        verification.measured.max() - math.log(OCCAMS_WINDOW)
    )
    if not off.any():
        return ()
    most = float(difference[off][np.argmax(np.abs(difference[off]))])
    return (
        Finding(
            "evidence-off",
            f"The predicted delta_f of a probable submodel is {most:+.1f} nats from the measured one, "
            "because the subjects are few for the normal that it is predicted from.",
            "The probabilities and averages are by the measured evidence. Do not rely on delta_f.",
        ),
    )


def _measure(
    level: SecondLevel,
    components: VarianceComponents,
    integral: IntegratedLevel,
    inside: Bool[np.ndarray, "submodels q"],
    zero: Float[np.ndarray, " q"],
    predicted: Float[np.ndarray, " submodels"],
    seed: int,
) -> Verification:
    """Integrate over the standard deviations of each submodel anew."""
    start = integral.weight @ integral.standard
    found = []
    for free in inside:
        own = integrate_level(level.reduced(free, zero), components, start=start, seed=seed)
        found.append(
            (
                own.log_evidence - integral.log_evidence,
                math.hypot(own.error, integral.error),
                max(own.pareto_k, integral.pareto_k),
                own.pareto_k <= TRUSTED_PARETO_K,
            )
        )
    return Verification(predicted, *(np.array(part) for part in zip(*found, strict=True)))

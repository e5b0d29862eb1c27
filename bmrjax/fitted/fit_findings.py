"""What is wrong with the reduction of a fit, or may be."""

from collections.abc import Sequence

import numpy as np

from bmrjax.fitted.joint_normal import wide_elements
from bmrjax.fitted.normality import TRUSTED_PARETO_K, Normality
from bmrjax.fitted.refit_submodels import Refit, farthest_mean
from bmrjax.fitted.source import Source
from bmrjax.fitted.verification import Spread, Verification
from bmrjax.run.diagnose import Finding

# Findings about draws that concern their covariance only.
OF_COVARIANCE = ("few-draws", "skewed")

# Change of an inclusion probability by measured evidence that is let pass.
MOST_CHANGE = 0.03

# Distance of the mean of the fit from that of the program, in standard deviations, that is let pass.
_MOST_SHIFT = 0.35


def wider_than_prior(source: Source) -> list[Finding]:
    """Return that the posterior is wider than its prior, if it is."""
    wide = wide_elements(source.normal, source.layout.label, source.independent_draws)
    if wide is None:
        return []
    return [
        Finding(
            "wider-than-prior",
            f"The posterior of {wide[1]} is wider than the prior: along one direction its variance is "
            f"{wide[0]:.2f} times as large.",
            "Check that `prior` is the prior of this fit, in the same units; a guide may not have converged.",
        )
    ]


def evidence_off(verification: Verification, *, reliable: bool) -> list[Finding]:
    """Return that measured evidence is more than a nat from the predicted one, or not to be relied on."""
    if not reliable:
        advice = "call reduce_fit with refit=True, or take more draws"
        return [unreliable_evidence("their importance weights", advice)]
    difference = float(verification.predicted[0] - verification.measured[0])
    if abs(difference) <= 1.0 + 3 * float(verification.standard_error[0]):
        return []
    return [
        Finding(
            "evidence-off",
            f"The delta_f of the submodel that was predicted to be the most probable is {difference:+.1f} "
            "nats from the measured one "
            f"(Pareto k {verification.pareto_k[0]:.2f}).",
            "The probabilities of submodels are by the measured evidence. Do not rely on delta_f: take more "
            "draws, or fit the guide until it has converged.",
        )
    ]


def unreliable_evidence(weights: str, advice: str) -> Finding:
    """Return that measured evidence is not to be relied on.

    Args:
        weights: Whose mean is not stable, in words.
        advice: What to do, in words.
    """
    return Finding(
        "evidence-off",
        "The measured evidence of submodels with more than half of the probability is not reliable: "
        f"{weights} have no stable mean.",
        f"The probabilities and averages are as predicted. Do not rely on them: {advice}.",
    )


def mean_elsewhere(normality: Normality, source: Source) -> list[Finding]:
    """Return that the posterior of the program lies elsewhere than the fit, if it does."""
    if normality.trusted is not True or isinstance(source.whole, str):
        return []
    at = source.whole.positions(source.layout)
    shift, error = normality.shift[at], normality.shift_error[at]
    clear = np.abs(shift) - 3 * error
    worst = int(np.argmax(clear))
    if clear[worst] <= _MOST_SHIFT:
        return []
    return [_elsewhere_finding(source.layout.label[worst], float(shift[worst]))]


def _elsewhere_finding(name: str, shift: float) -> Finding:
    return Finding(
        "elsewhere",
        f"The posterior mean of '{name}' by the program and `data` is {shift:+.1f} standard deviations from "
        "that of the fit.",
        "Check that `data` and the program are those of the fit; a guide may not have converged.",
    )


def not_of_the_program(refit: Refit, source: Source) -> list[Finding]:
    """Return that the posterior of the full model by the program lies elsewhere than the fit, if it does."""
    found = farthest_mean(refit, source)
    if found is None:
        return []
    return [_elsewhere_finding(source.layout.label[found[0]], found[1])]


def not_exact(
    spread: Spread | None, candidates: Sequence[str], *, measured: bool, reliable: bool
) -> list[Finding]:
    """Return that measured evidence would change an inclusion probability, if it would by much.

    Args:
        spread: By how much each would change; None if it is not known.
        candidates: Names of the units.
        measured: Whether the evidence has been measured with all draws, and is used.
        reliable: Whether such a measurement can be relied on, as far as it is known.
    """
    if spread is None:
        return []
    worst = int(np.argmax(np.abs(spread.change)))
    change = float(spread.change[worst])
    if abs(change) <= MOST_CHANGE + spread.error:
        return []
    if measured:
        advice = "inclusion_prob and all averages are by the measured evidence."
    elif reliable:
        advice = (
            "Call reduce_fit with verify=True, which measures it with all draws and goes by it."
        )
    else:
        advice = (
            "That evidence is not reliable either, since importance weights of most of them have no stable "
            "mean. Call reduce_fit with refit=True, or take more draws."
        )
    return [
        Finding(
            "not-exact",
            "The joint normal is not exact enough: by the measured evidence of the most probable "
            f"submodels, the inclusion probability of '{candidates[worst]}' changes by {change:+.2f}.",
            advice,
        )
    ]


def not_normal(normality: Normality, *, measured: bool) -> list[Finding]:
    """Return that the joint normal does not cover the posterior, if it does not.

    Args:
        normality: What was found of the joint normal.
        measured: Whether the evidence of submodels was measured, and can be relied on.
    """
    if normality.trusted is not False:
        return []
    if measured:
        return [
            Finding(
                "not-normal",
                "The joint normal does not cover the posterior (Pareto k "
                f"{normality.pareto_k:.2f}, above {TRUSTED_PARETO_K}). The probabilities of submodels are by "
                "the measured evidence; means and intervals within a submodel are those of its normal.",
                "Check that `data` are those of the fit. Fit the chosen submodel for its intervals.",
            )
        ]
    return [
        Finding(
            "not-normal",
            f"Do not trust this: the joint normal does not cover the posterior (Pareto k "
            f"{normality.pareto_k:.2f}, above {TRUSTED_PARETO_K}).",
            "Check that `data` are those of the fit. Take more draws if there are fewer than 100 for each "
            "latent element; else fit the submodels that matter and compare their evidence, or write the "
            "program so that its posterior is closer to a normal.",
        )
    ]

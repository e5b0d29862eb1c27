"""The evidence that a reduction predicts, beside the evidence that is measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.normality import (
    NUM_DRAWS,
    TRUSTED_PARETO_K,
    log_joint,
    normal_draws,
    tail_is_harmless,
    tail_shape,
    tail_share,
    weighted_draws,
)
from bmrjax.fitted.search import Found
from bmrjax.infer.arguments import Data

# Submodels that are measured at most: the most probable ones.
MOST_SUBMODELS = 64

# Submodels that are measured in any case, how many of them share the points of one evaluation, and what
# probability the others of the 64 may have: those without a strong effect are improbable together, and may be
# off by nats together.
_GLANCE, _TOGETHER, _LEFT_OUT = 16, 4, 0.02


@dataclass(frozen=True)
class Verification:
    """Predicted against measured evidence of the most probable submodels, the best first.

    Each is ln of the evidence of a submodel over that of the full model, in nats; positive favours the
    submodel.

    Attributes:
        predicted: By Bayesian model reduction.
        measured: From the program: each log evidence by importance sampling from a normal, or from a mixture
            of that and a t distribution where the weights of the normal have no stable mean.
        standard_error: Monte Carlo standard error of `measured`.
        pareto_k: Larger of the shapes of the tails of the importance weights of the submodel and of the full
            model; above 0.7, `measured` is not reliable either.
        trusted: Whether the weights of the submodel itself have a stable mean, or hardly vary. The full
            model's evidence does not count here, for it cancels between submodels. None says so of those
            with a `pareto_k` of at most 0.7.
    """

    predicted: Float[np.ndarray, " submodels"]
    measured: Float[np.ndarray, " submodels"]
    standard_error: Float[np.ndarray, " submodels"]
    pareto_k: Float[np.ndarray, " submodels"]
    trusted: Bool[np.ndarray, " submodels"] | None = None

    def prob(self, predicted: Float[np.ndarray, " submodels"]) -> Float[np.ndarray, " submodels"]:
        """Return the probabilities of the submodels by their measured evidence.

        Args:
            predicted: Their probabilities by the predicted evidence, whose sum they share out anew; these are
                left as they are where an evidence is not a number, or none is finite.
        """
        correction = self.measured - self.predicted
        if not np.isfinite(correction.max()):
            return predicted
        weight = predicted * np.exp(correction - correction.max())
        return predicted.sum() * weight / weight.sum()

    def reliable(self, found: "Found") -> bool:
        """Return whether at least half of the probability is that of submodels whose evidence is reliable.

        Args:
            found: The submodels.
        """
        if not np.isfinite((self.measured - self.predicted).max()):
            return False
        prob = self.prob(found.prob[: len(self.measured)])
        trusted = self.pareto_k <= TRUSTED_PARETO_K if self.trusted is None else self.trusted
        return bool(prob[trusted].sum() >= 0.5 * prob.sum())

    def spread(self, found: "Found") -> "Spread":
        """Return how inclusion probabilities change by the measured evidence.

        Args:
            found: The submodels.
        """
        count = len(self.measured)
        prob, masks = found.prob[:count], found.masks[:count]
        return _spread(prob, self.prob(prob) - prob, self.standard_error, masks)

    def line(self, at: int) -> str:
        """Return what was found of a submodel, as one line.

        Args:
            at: Its place.
        """
        return (
            f"delta_f of this submodel: {self.predicted[at]:.2f} nats predicted, {self.measured[at]:.2f} ± "
            f"{self.standard_error[at]:.2f} measured (Pareto k {self.pareto_k[at]:.2f})"
        )

    def __str__(self) -> str:
        """Return what was found of the most probable submodel as predicted, as one line."""
        return self.line(0)


def verify_submodels(
    predicted: Float[np.ndarray, " submodels"],
    inside: Bool[np.ndarray, "submodels n"],
    normal: JointNormal,
    whole: Callable[[Bool[np.ndarray, " n"]], Whole],
    model: Callable,
    data: Data,
    rng: np.random.Generator,
) -> Verification | None:
    """Measure the evidence of submodels and of the full model, with the program's own density.

    Each is an average of importance weights over the joint normal of the model or submodel, which is that of
    the full model given that the removed elements are zero, unless it was expanded anew. Where such weights
    have no stable mean, half of the draws come from a t distribution.

    Args:
        predicted: What the reduction says, in nats.
        inside: Elements that are in, by submodel.
        normal: Posterior and prior of the judged elements.
        whole: Elements that are in to the joint normal over all latent elements of that submodel.
        model: NumPyro program.
        data: Its arguments.
        rng: Source of randomness.

    Returns:
        Both, of the first submodels; None if the joint normal is singular.
    """
    everything = whole(np.ones(inside.shape[1], bool))
    density = log_joint(everything, model, data)
    full = _measure(everything, density, rng)
    if full is None:
        return None
    log_prior = _log_prior_at_zero(normal)
    found = []
    for kept in inside[:MOST_SUBMODELS]:
        own = _measure(whole(kept), density, rng)
        if own is None:
            return None
        measured = own.log_evidence - full.log_evidence - float(log_prior[~kept].sum())
        error, shape = math.hypot(own.error, full.error), max(own.pareto_k, full.pareto_k)
        found.append((measured, error, shape, own.trusted))
    return Verification(
        predicted[: len(found)], *(np.array(part) for part in zip(*found, strict=True))
    )


class _Measured(NamedTuple):
    """An evidence by importance sampling: ln of it, its standard error, and how long the weights' tail is."""

    log_evidence: float
    error: float
    pareto_k: float
    trusted: bool


def _measure(
    whole: Whole, density: Callable[[Any], np.ndarray], rng: np.random.Generator
) -> _Measured | None:
    """Measure an evidence, with a proposal that has heavier tails where the normal's do not cover it."""
    found = None
    for heavy in (False, True):
        drawn = weighted_draws(whole, density, rng, heavy=heavy)
        if drawn is None:
            return None
        shape = tail_shape(drawn.log_weights)
        trusted = tail_is_harmless(shape, tail_share(drawn.log_weights, shape))
        if found is None or trusted:
            found = _Measured(*_log_mean(drawn.log_weights), shape, trusted)
        if trusted:
            break
    return found


@dataclass(frozen=True)
class Spread:
    """How inclusion probabilities change if a few submodels exchange probability by measured evidence.

    Attributes:
        change: Of the inclusion probability of each unit.
        error: Monte Carlo standard error of the largest change.
    """

    change: Float[np.ndarray, " units"]
    error: float

    @property
    def largest(self) -> float:
        """Size of the largest change, with two standard errors."""
        return float(np.abs(self.change).max(initial=0.0)) + 2 * self.error


def _spread(
    prob: Float[np.ndarray, " submodels"],
    moved: Float[np.ndarray, " submodels"],
    errors: Float[np.ndarray, " submodels"],
    masks: Bool[np.ndarray, "submodels units"],
) -> Spread:
    error = math.sqrt(float(np.sum((errors * np.maximum(prob + moved, prob)) ** 2)))
    return Spread(moved @ masks, error)


def worth_a_glance(prob: Float[np.ndarray, " submodels"]) -> int:
    """Return how many submodels are measured in any case.

    Args:
        prob: Their probabilities, the most probable first.
    """
    left = np.cumsum(prob[:MOST_SUBMODELS][::-1])[::-1]
    return min(max(_GLANCE, int(np.sum(left > _LEFT_OUT))), len(prob))


def measure_spread(
    found: Found,
    inside: Bool[np.ndarray, "submodels n"],
    normal: JointNormal,
    whole: Callable[[Bool[np.ndarray, " n"]], Whole],
    model: Callable,
    data: Data,
    rng: np.random.Generator,
) -> Spread | None:
    """Measure the evidence of the 16 most probable submodels or more, with a quarter of the draws for each.

    More, up to 64, until the others of these 64 have a probability of 0.02 at most.

    Args:
        found: The submodels.
        inside: Elements that are in, by submodel.
        normal: Posterior and prior of the judged elements.
        whole: Elements that are in to the joint normal over all latent elements of that submodel.
        model: NumPyro program.
        data: Its arguments.
        rng: Source of randomness.

    Returns:
        The change; None if the joint normal is singular.
    """
    density = log_joint(whole(np.ones(inside.shape[1], bool)), model, data)
    log_prior, each = _log_prior_at_zero(normal), NUM_DRAWS // _TOGETHER
    inside = inside[: worth_a_glance(found.prob)]
    correction, errors = [], []
    for start in range(0, len(inside), _TOGETHER):
        # As many points at a time as elsewhere, so that nothing is compiled anew.
        some = inside[start : start + _TOGETHER]
        drawn = [normal_draws(whole(kept), rng, each) for kept in some]
        drawn += drawn[-1:] * (_TOGETHER - len(some))
        if any(one is None for one in drawn):
            return None
        points, log_normal = (np.concatenate(part) for part in zip(*drawn, strict=True))
        weights = (density(points) - log_normal).reshape(_TOGETHER, each)
        for kept, own in zip(some, weights, strict=False):
            log_mean, error = _log_mean(own)
            correction.append(log_mean - float(log_prior[~kept].sum()))
            errors.append(error)
    count = len(inside)
    prob = found.prob[:count]
    shift = np.array(correction) - found.delta_f[:count]
    weight = prob * np.exp(shift - shift.max())
    moved = prob.sum() * weight / weight.sum() - prob
    return _spread(prob, moved, np.array(errors), found.masks[:count])


def _log_prior_at_zero(normal: JointNormal) -> Float[np.ndarray, " n"]:
    ratio = normal.prior_loc / normal.prior_scale
    return -0.5 * ratio**2 - np.log(normal.prior_scale) - 0.5 * math.log(2 * math.pi)


def given_zeros(whole: Whole, layout: ElementLayout) -> Callable[[Bool[np.ndarray, " n"]], Whole]:
    """Return a function of the elements that are in: the joint normal given that the others are zero.

    Args:
        whole: Joint normal over all latent elements.
        layout: The judged elements.
    """
    at = whole.positions(layout)

    def given(inside: Bool[np.ndarray, " n"]) -> Whole:
        return _at_zero(whole, at[~inside])

    return given


def _at_zero(whole: Whole, removed: np.ndarray) -> Whole:
    """Return the joint normal given that some elements are zero."""
    if not len(removed):
        return whole
    columns = whole.covariance[:, removed]
    factor = cho_factor(columns[removed], lower=True)
    loc = whole.loc - columns @ cho_solve(factor, whole.loc[removed])
    covariance = whole.covariance - columns @ cho_solve(factor, columns.T)
    loc[removed], covariance[removed], covariance[:, removed] = 0.0, 0.0, 0.0
    return replace(whole, loc=loc, covariance=0.5 * (covariance + covariance.T))


def _log_mean(log_weights: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """Return ln of the mean weight and its standard error."""
    finite = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    log_mean = float(np.asarray(logsumexp(finite))) - math.log(len(finite))
    relative = np.exp(finite - log_mean)
    return log_mean, float(relative.std(ddof=1)) / math.sqrt(len(finite))

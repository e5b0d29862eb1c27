"""The evidence that a reduction predicts, beside the evidence that is measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.layout import Layout
from bmrjax.fitted.normality import log_weights, tail_shape
from bmrjax.infer.arguments import Data


@dataclass(frozen=True)
class Verification:
    """Predicted against measured evidence of the chosen submodel.

    Attributes:
        predicted: ln of its evidence over that of the full model by Bayesian model reduction, in nats.
            Positive favours the submodel.
        measured: The same, from the program: each log evidence by importance sampling from a normal.
        standard_error: Monte Carlo standard error of `measured`, in nats.
        pareto_k: Larger of the two shapes of the tails of the importance weights; above 0.7, `measured` is
            not reliable either.
    """

    predicted: float
    measured: float
    standard_error: float
    pareto_k: float

    def __str__(self) -> str:
        """Return both as one line."""
        return (
            f"delta_f of this submodel: {self.predicted:.2f} nats predicted, {self.measured:.2f} ± "
            f"{self.standard_error:.2f} measured (Pareto k {self.pareto_k:.2f})"
        )


def verify_submodel(
    predicted: float,
    inside: Bool[np.ndarray, " n"],
    normal: JointNormal,
    layout: Layout,
    whole: Whole,
    model: Callable,
    data: Data,
    rng: np.random.Generator,
) -> Verification | None:
    """Measure the evidence of a submodel and of the full model, with the program's own density.

    The full model's is an average of importance weights over its joint normal, the submodel's over that
    normal given that the removed elements are zero. Nothing is fitted again.

    Args:
        predicted: What the reduction says, in nats.
        inside: Elements that are in the submodel.
        normal: Posterior and prior of the judged elements.
        layout: Where they lie.
        whole: Joint normal over all latent elements.
        model: NumPyro program.
        data: Its arguments.
        rng: Source of randomness.

    Returns:
        Both; None if the joint normal is singular.
    """
    at = layout.flat(whole.unpack(np.arange(len(whole.loc)))).astype(int)
    full = log_weights(whole, model, data, rng)
    reduced = log_weights(_at_zero(whole, at[~inside]), model, data, rng)
    if full is None or reduced is None:
        return None
    gone = ~inside
    scale, ratio = normal.prior_scale[gone], normal.prior_loc[gone] / normal.prior_scale[gone]
    log_prior = -0.5 * ratio**2 - np.log(scale) - 0.5 * math.log(2 * math.pi)
    evidence, error = zip(*(_log_mean(weights) for weights in (full, reduced)), strict=True)
    shapes = [tail_shape(weights) for weights in (full, reduced)]
    return Verification(
        predicted,
        evidence[1] - evidence[0] - float(log_prior.sum()),
        math.hypot(*error),
        max(math.nan if shape is None else shape for shape in shapes),
    )


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

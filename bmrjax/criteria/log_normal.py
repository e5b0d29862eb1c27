"""Reduction of multiplicative noise to a prior around its lower bound."""

import abc
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.criteria.base import Criterion, Decision, Masks, masks, require
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import LogNormal, LogUniform, log_normal


class _OfNoise(Criterion):
    """Remove noise whose evidence does not fall when the prior shrinks to `reduced_prior`."""

    family = LogNormal
    margin: float | Float[Array, ""] = 0.0

    @abc.abstractmethod
    def reduced_prior(self, prior: LogUniform) -> LogNormal | LogUniform:
        """Return what to put in the place of a site's prior."""

    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`."""
        kept = masks(found, keep)
        delta_f = {}
        for name, q in found.posterior.items():
            p = found.prior[name]
            delta_f[name] = log_normal(q, p, self.reduced_prior(p)).delta_f
        # In float32 an evidence difference out of reach is -inf, and "not a number" never removes.
        stays = {name: kept[name] & ~(df >= -self.margin) for name, df in delta_f.items()}
        return Decision(stays, delta_f)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BMRSNormal(_OfNoise):
    r"""Remove noise that the evidence does not miss when ln θ shrinks to its lower bound: BMRS-N.

    .. math:: ΔF = \ln E_q[\tilde p(θ) / p(θ)] ≥ -margin, \qquad \tilde p: \ln θ \sim N(low, variance)

    truncated to the prior's bounds, in nats. For sites of `nn.MultiplicativeNoise`. The noise of an unused
    unit goes back to its prior, where ΔF tends to zero from below, so that without a margin often nothing
    is removed; `BMRSUniform` is the one to start with. What a round removes stays removed.

    Args:
        variance: Of the reduced prior, in squared nats of ln θ.
        margin: How much evidence may be lost with a unit, in nats. The authors' code leaves out the 2π of
            their equation 8, so that its ΔF is ½ ln 2π too large: a margin of .92 does what it does.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> low, high = jnp.full(2, -20.0), jnp.zeros(2)
        >>> q = {"θ": reduction.LogNormal(jnp.array([-0.1, -19.0]), jnp.array([0.1, 3.0]), low, high)}
        >>> p = {"θ": reduction.LogUniform(low, high)}
        >>> criterion = criteria.BMRSNormal()
        >>> criterion(criteria.SitePosteriors(q, p)).keep["θ"]
        Array([ True, False], dtype=bool)

    References:
        Wright, Igel and Selvan (2024), equations 7 and 8, with μ̃ = ln a and σ̃² = 1e-12.
    """

    variance: float | Float[Array, ""] = 1e-12
    margin: float | Float[Array, ""] = 0.0

    def __post_init__(self) -> None:
        require(self, "variance", lambda value: value > 0, "positive")
        if isinstance(self.margin, int | float) and not 0 <= self.margin < math.inf:
            raise ValueError(
                f"BMRSNormal: margin must be a number of nats that is not negative, got {self.margin}."
            )

    def reduced_prior(self, prior: LogUniform) -> LogNormal:
        """Return a narrow log-normal at the lower bound."""
        scale = jnp.sqrt(jnp.asarray(self.variance, prior.low.dtype))
        return LogNormal(prior.low, jnp.broadcast_to(scale, prior.low.shape), prior.low, prior.high)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BMRSUniform(_OfNoise):
    r"""Remove noise that the evidence does not miss when θ shrinks to [2^-p2, 2^-p1]: BMRS-U.

    .. math:: ΔF = \ln E_q[\tilde p(θ) / p(θ)] ≥ 0, \qquad \tilde p: \ln θ \sim U(-p_2 \ln 2, -p_1 \ln 2)

    in nats: θ goes where the data tell fewer than `p1` of its binary digits from zero. For sites of
    `nn.MultiplicativeNoise`. A smaller `p1` removes more. What a round removes stays removed.

    Args:
        p1: Binary digits that count.
        p2: Binary digits there are; 23 in single precision.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> low, high = jnp.full(2, -20.0), jnp.zeros(2)
        >>> q = {"θ": reduction.LogNormal(jnp.array([-0.1, -9.0]), jnp.array([0.1, 3.0]), low, high)}
        >>> p = {"θ": reduction.LogUniform(low, high)}
        >>> criterion = criteria.BMRSUniform(p1=4)
        >>> criterion(criteria.SitePosteriors(q, p)).keep["θ"]
        Array([ True, False], dtype=bool)

    References:
        Wright, Igel and Selvan (2024), equations 9 to 11.
    """

    p1: float | Float[Array, ""] = 8.0
    p2: float | Float[Array, ""] = 23.0

    def __post_init__(self) -> None:
        numbers = all(isinstance(p, int | float) for p in (self.p1, self.p2))
        if numbers and not 0 <= self.p1 < self.p2:
            raise ValueError(
                f"BMRSUniform: 0 ≤ p1 < p2 is needed, got p1={self.p1} and p2={self.p2}; they are "
                "numbers of binary digits, such as 8 and 23."
            )

    def reduced_prior(self, prior: LogUniform) -> LogUniform:
        """Return the log-uniform distribution between the two precisions, within the prior's bounds."""
        low, high = (-math.log(2) * jnp.asarray(p, prior.low.dtype) for p in (self.p2, self.p1))
        return LogUniform(
            jnp.clip(low, prior.low, prior.high), jnp.clip(high, prior.low, prior.high)
        )

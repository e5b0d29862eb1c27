"""Bayesian model reduction under Laplace priors, and of Laplace posteriors."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf, log_ndtr
from jaxtyping import Array, Float

from bmrjax.reduction import removal
from bmrjax.reduction.normal import Normal, delta_f_under

# From here on the tail of a normal is a continued fraction, to float64's precision at this many levels.
_FAR, _LEVELS = 5.0, 40


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Laplace:
    """Independent Laplace distributions, one per element: p(z) = exp(-``|z - loc|`` / scale) / (2 scale).

    Attributes:
        loc: Means, any shape.
        scale: Mean distances from `loc`, positive, broadcastable with it; the standard deviation is √2 of it.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> prior = reduction.Laplace(jnp.zeros(2), jnp.ones(2))
        >>> prior.standard_deviation.round(2)
        Array([1.41, 1.41], dtype=float32)
        >>> posterior = reduction.Normal(jnp.array([0.05, 2.0]), jnp.array([0.2, 0.2]))
        >>> delta_f = reduction.delta_f_under(prior, posterior, reduction.spike(posterior))
        >>> [f"{nats:.1f}" for nats in delta_f]
        ['1.4', '-48.6']
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    @property
    def standard_deviation(self) -> Float[Array, "..."]:
        """√2 scale."""
        return math.sqrt(2) * self.scale

    @property
    def magnitude(self) -> Float[Array, "..."]:
        """Size of the mean."""
        return jnp.abs(self.loc)

    @property
    def snr(self) -> Float[Array, "..."]:
        """Signal-to-noise ratio: size of the mean over standard deviation."""
        return jnp.abs(self.loc) / self.standard_deviation


def laplace(posterior: Normal, prior: Laplace, reduced_prior: Normal | Laplace) -> Array:
    r"""Compute the evidence difference when the Laplace prior of a normal posterior is replaced.

    .. math::  ΔF = \ln E_q[\tilde p / p], \qquad p(z) = \frac{1}{2b} e^{-|z - a| / b}

    in nats, an element at a time. **Positive favours the reduced prior.** With a reduced prior N(0, ε) and
    ε → 0 it is the Savage-Dickey ratio :math:`\ln q(0) - \ln p(0)`. Nothing divides by the reduced
    scale, so a point mass (scale 0) is safe in float32. Exact when the posterior is the exact one. The
    reduced posterior is not normal, so it is not returned.

    Args:
        posterior: Normal posterior, any shape, positive scale.
        prior: The Laplace prior it was fitted under, positive scale; broadcasts.
        reduced_prior: What to put in its place: a normal, whose scale may be zero, or a Laplace of the same
            location and positive scale.

    Returns:
        The evidence differences, shaped as the broadcast of the inputs; not a number for a reduced Laplace
        prior of another location.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Normal(jnp.array([0.05, 2.0]), jnp.array([0.2, 0.2]))
        >>> p = reduction.Laplace(jnp.zeros(2), jnp.ones(2))
        >>> [f"{nats:.1f}" for nats in reduction.laplace(q, p, reduction.spike(q))]
        ['1.4', '-48.6']

    References:
        Dickey (1971), Annals of Mathematical Statistics 42, for the point mass; Park and Casella (2008) for
        the prior.
    """
    if isinstance(reduced_prior, Laplace):
        narrowed = jnp.log(prior.scale) - jnp.log(reduced_prior.scale)
        rate = 1 / prior.scale - 1 / reduced_prior.scale
        found = narrowed + _log_mean_exp_abs(posterior.loc - prior.loc, posterior.scale, rate)
        return jnp.where(reduced_prior.loc == prior.loc, found, jnp.nan)
    root = jnp.hypot(posterior.scale, reduced_prior.scale)
    # Posterior times reduced prior is a normal, times its density at the distance of their means.
    weight, other = jnp.square(reduced_prior.scale / root), jnp.square(posterior.scale / root)
    loc = posterior.loc * weight + reduced_prior.loc * other - prior.loc
    scale = reduced_prior.scale * (posterior.scale / root)
    distance = jnp.square((posterior.loc - reduced_prior.loc) / root)
    overlap = -0.5 * distance - jnp.log(root) - 0.5 * math.log(2 * math.pi)
    found = overlap + jnp.log(2 * prior.scale) + _log_mean_exp_abs(loc, scale, 1 / prior.scale)
    return jnp.maximum(found, jnp.finfo(found.dtype).min)


def laplace_divergence(posterior: Normal | Laplace, prior: Laplace) -> Float[Array, "..."]:
    r"""Compute the Kullback-Leibler divergence from a Laplace prior, in nats.

    .. math::  \mathrm{KL}(q, p) = E_q|z - a| / b + \ln 2b - H(q)

    Args:
        posterior: Normal or Laplace posterior, any shape, positive scale.
        prior: Laplace prior, positive scale; broadcasts.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Normal(jnp.array([0.0, 2.0]), jnp.array([1.0, 0.1]))
        >>> p = reduction.Laplace(jnp.zeros(2), jnp.ones(2))
        >>> [f"{nats:.4f}" for nats in reduction.laplace_divergence(q, p)]
        ['0.0721', '3.5768']
    """
    loc = posterior.loc - prior.loc
    if isinstance(posterior, Laplace):
        mean = jnp.abs(loc) + posterior.scale * jnp.exp(-jnp.abs(loc) / posterior.scale)
        return mean / prior.scale - 1 + jnp.log(prior.scale) - jnp.log(posterior.scale)
    t = loc / posterior.scale
    mean = posterior.scale * (
        math.sqrt(2 / math.pi) * jnp.exp(-0.5 * jnp.square(t)) + t * erf(t / math.sqrt(2))
    )
    constant = math.log(2) - 0.5 * math.log(2 * math.pi * math.e)
    return mean / prior.scale + constant + jnp.log(prior.scale) - jnp.log(posterior.scale)


def _log_mean_exp_abs(loc: Array, scale: Array, rate: Array) -> Array:
    """Return ln E[exp(rate |z|)] of z ~ N(loc, scale²), a point if scale is 0; the rate may be negative."""
    is_point = scale == 0
    scale = jnp.where(is_point, 1.0, scale)
    t, k = jnp.abs(loc) / scale, -rate * scale
    found = jnp.logaddexp(_side(t, k), _side(-t, k))
    return jnp.where(is_point, rate * jnp.abs(loc), found)


def _side(t: Array, k: Array) -> Array:
    """Return ln E[exp(-k z); z > 0] of z ~ N(t, 1): k (k/2 - t) + ln Φ(t - k), without its cancellation."""
    a = k - t
    near = k * (0.5 * k - t) + log_ndtr(-jnp.minimum(a, _FAR))
    far = jnp.maximum(a, _FAR)
    fraction = far
    for level in range(_LEVELS, 0, -1):
        fraction = far + level / fraction
    beyond = -0.5 * jnp.square(t) - 0.5 * math.log(2 * math.pi) - jnp.log(fraction)
    # Where 0 < a both are exact, but the first is a difference of large numbers.
    middle = -0.5 * jnp.square(t) + 0.5 * jnp.square(jnp.clip(a, 0.0, _FAR))
    middle = middle + log_ndtr(-jnp.clip(a, 0.0, _FAR))
    return jnp.where(a > _FAR, beyond, jnp.where(a > 0, middle, near))


@delta_f_under.register(Laplace)
def _(prior: Laplace, posterior: Normal, reduced_prior: Normal) -> Float[Array, "..."]:
    return laplace(posterior, prior, reduced_prior)


@functools.singledispatch
def _log_density_at_zero(prior: Any) -> Array:
    raise TypeError(
        f"There is no closed form for a Laplace posterior under a prior that is {type(prior).__name__}."
    )


@_log_density_at_zero.register(Laplace)
def _(prior: Laplace) -> Array:
    return -jnp.log(2 * prior.scale) - jnp.abs(prior.loc) / prior.scale


@_log_density_at_zero.register(Normal)
def _(prior: Normal) -> Array:
    distance = jnp.square(prior.loc / prior.scale)
    return -0.5 * distance - jnp.log(prior.scale) - 0.5 * math.log(2 * math.pi)


@removal.delta_f_each.register(Laplace)
def delta_f_each(posterior: Laplace, prior: Laplace | Normal) -> Float[Array, "..."]:
    """See `bmrjax.reduction.delta_f_each`."""
    return _log_density_at_zero(posterior) - _log_density_at_zero(prior)

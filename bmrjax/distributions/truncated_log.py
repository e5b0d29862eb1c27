"""Log-uniform and log-normal distributions between bounds: prior and posterior of multiplicative noise."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import ndtr, ndtri
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import promote_shapes, validate_sample
from numpyro.util import not_jax_tracer

from bmrjax.reduction.log_normal import LogNormal, LogUniform, divergence, exponent, integral

# Beyond this many standard deviations from the mean, the inverse of the normal CDF gives way to an expansion.
_FAR = 8.0


def _check_bounds(low: ArrayLike, high: ArrayLike) -> None:
    if not_jax_tracer(low) and not_jax_tracer(high) and not np.all(np.less(low, high)):
        raise ValueError(
            f"The bounds of ln θ must be low < high, got low {low} and high {high}. They are logarithms: "
            "for θ in [0.001, 1], give -6.9 and 0."
        )


class TruncatedLogUniform(dist.Distribution):
    r"""θ with ln θ uniform on [low, high].

    Args:
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.

    Raises:
        ValueError: Unless ``low < high``.

    Example:
        >>> from bmrjax.distributions import TruncatedLogUniform
        >>> TruncatedLogUniform().mean.round(3)
        Array(0.05, dtype=float32)

    References:
        Neklyudov et al. (2017), equation 14.
    """

    low: Any
    high: Any
    arg_constraints = {"low": constraints.real, "high": constraints.dependent}
    reparametrized_params = ["low", "high"]

    def __init__(
        self, low: ArrayLike = -20.0, high: ArrayLike = 0.0, *, validate_args: bool | None = None
    ):
        _check_bounds(low, high)
        parameters: Any = promote_shapes(low, high)
        self.low, self.high = (jnp.asarray(p, float) for p in parameters)
        shape = jax.lax.broadcast_shapes(jnp.shape(low), jnp.shape(high))
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """Between the exponentials of the bounds."""
        return constraints.interval(jnp.exp(self.low), jnp.exp(self.high))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw."""
        return self.icdf(jax.random.uniform(key, sample_shape + self.batch_shape))

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density, nats."""
        return -jnp.log(jnp.asarray(value)) - jnp.log(self.high - self.low)

    def cdf(self, value: ArrayLike) -> Array:
        """Probability of less than `value`."""
        return jnp.clip((jnp.log(jnp.asarray(value)) - self.low) / (self.high - self.low), 0.0, 1.0)

    def icdf(self, q: ArrayLike) -> Array:
        """Quantile."""
        return jnp.exp(self.low + (self.high - self.low) * jnp.asarray(q))

    @property
    def mean(self) -> Array:
        """E[θ]."""
        width = self.high - self.low
        return jnp.exp(self.high) * -jnp.expm1(-width) / width

    @property
    def variance(self) -> Array:
        """Var[θ]."""
        width = self.high - self.low
        square = jnp.exp(2 * self.high) * -jnp.expm1(-2 * width) / (2 * width)
        return square - jnp.square(self.mean)


class TruncatedLogNormal(dist.Distribution):
    r"""θ with ln θ ~ N(loc, scale²), truncated to [low, high].

    Safe in float32 for any `loc`, far outside the bounds too, and any positive `scale`: from a
    point to, in effect, the log-uniform distribution.

    Args:
        loc: Mean of ln θ before it is truncated.
        scale: Standard deviation of ln θ before that, positive.
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.

    Raises:
        ValueError: Unless ``low < high``.

    Example:
        >>> from bmrjax.distributions import TruncatedLogNormal
        >>> noise = TruncatedLogNormal(-1.0, 0.8)
        >>> noise.mean.round(4), noise.snr.round(4)
        (Array(0.3816, dtype=float32), Array(1.6728, dtype=float32))

    References:
        Neklyudov et al. (2017), equations 14 and 18 and appendix D.
    """

    loc: Any
    scale: Any
    low: Any
    high: Any
    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.real,
        "high": constraints.dependent,
    }
    reparametrized_params = ["loc", "scale", "low", "high"]

    def __init__(
        self,
        loc: ArrayLike,
        scale: ArrayLike,
        low: ArrayLike = -20.0,
        high: ArrayLike = 0.0,
        *,
        validate_args: bool | None = None,
    ):
        _check_bounds(low, high)
        parameters: Any = promote_shapes(loc, scale, low, high)
        self.loc, self.scale, self.low, self.high = (jnp.asarray(p, float) for p in parameters)
        shape = jax.lax.broadcast_shapes(*(jnp.shape(p) for p in (loc, scale, low, high)))
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """Between the exponentials of the bounds."""
        return constraints.interval(jnp.exp(self.low), jnp.exp(self.high))

    @property
    def posterior(self) -> LogNormal:
        """The parameters, as `bmrjax.reduction` takes them."""
        return LogNormal(*jnp.broadcast_arrays(self.loc, self.scale, self.low, self.high))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw; differentiable in all parameters."""
        shape = sample_shape + self.batch_shape
        uniform = jax.random.uniform(key, shape, minval=jnp.finfo(jnp.float32).tiny)
        return self.icdf(uniform)

    def icdf(self, q: ArrayLike) -> Array:
        """Quantile."""
        posterior = self.posterior
        shape = jax.lax.broadcast_shapes(jnp.shape(q), self.batch_shape)
        q, loc, scale, low, high = (
            jnp.broadcast_to(a, shape)
            for a in (q, posterior.loc, posterior.scale, posterior.low, posterior.high)
        )
        return jnp.exp(_quantile(q, loc, scale, low, high))

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density, nats."""
        log_value = jnp.log(jnp.asarray(value))
        found = integral(*self.posterior.bounds)
        t = (log_value - self.loc) / self.scale
        density = exponent(found.mode, t - found.mode) - found.log_value
        return density - jnp.log(self.scale) - log_value

    @property
    def mean(self) -> Array:
        """E[θ]."""
        return self.posterior.mean

    @property
    def variance(self) -> Array:
        """Var[θ]."""
        return self.posterior.variance

    @property
    def snr(self) -> Array:
        """Signal-to-noise ratio E[θ] / sd[θ]; below one, the noise drowns what it multiplies."""
        return self.posterior.snr


@kl_divergence.register(TruncatedLogNormal, TruncatedLogUniform)
def _(q: TruncatedLogNormal, p: TruncatedLogUniform) -> Array:
    return divergence(q.posterior, LogUniform(p.low, p.high))


# --- the quantile of ln θ, and its derivatives ---------------------------------------------


@jax.custom_jvp
def _quantile(q: Array, loc: Array, scale: Array, low: Array, high: Array) -> Array:
    """Return the q-quantile of N(loc, scale²) on [low, high]; all shaped alike."""
    return _quantile_and_offset(q, loc, scale, low, high)[0]


def _quantile_and_offset(
    q: Array, loc: Array, scale: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Return the quantile, and how far it is from the mode in standard deviations."""
    lower, upper = (low - loc) / scale, (high - loc) / scale
    mode = jnp.clip(0.0, lower, upper)
    # Mirrored so that most of the mass is below zero, where the normal CDF keeps its digits.
    mirror = lower + upper > 0
    a, b = jnp.where(mirror, -upper, lower), jnp.where(mirror, -lower, upper)
    p = jnp.where(mirror, 1 - q, q)
    below = ndtr(a)
    near = jnp.clip(ndtri(below + p * (ndtr(b) - below)), a, b)
    near = jnp.where(mirror, -near, near) - mode
    far = _far_offset(p, jnp.maximum(-b, _FAR), b - a)
    offset = jnp.where(jnp.abs(mode) > _FAR, jnp.where(mirror, far, -far), near)
    return jnp.clip(jnp.clip(loc, low, high) + scale * offset, low, high), offset


def _far_offset(p: Array, distance: Array, width: Array) -> Array:
    """Return how far below -distance the p-quantile of a normal on [-distance - width, -distance] is.

    The mass beyond d falls as exp(-h), h = (r + 1/r) d + d²/2, up to terms of order 1 / r⁴.
    """
    slope = distance + 1 / distance
    end = slope * width + jnp.square(width) / 2
    height = -jnp.log(p + (1 - p) * jnp.exp(-end))
    return 2 * height / (slope + jnp.sqrt(jnp.square(slope) + 2 * height))


@functools.partial(_quantile.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    # By the implicit function theorem: the CDF at the quantile stays q.
    q, loc, scale, low, high = primals
    z, offset = _quantile_and_offset(q, loc, scale, low, high)
    lower, upper = (low - loc) / scale, (high - loc) / scale
    mode = jnp.clip(0.0, lower, upper)
    height = exponent(mode, offset)
    # Densities at the bounds over the one at the quantile, each with the mass on the other side.
    at_low = (1 - q) * jnp.exp(exponent(mode, lower - mode) - height)
    at_high = q * jnp.exp(exponent(mode, upper - mode) - height)
    at_low, at_high = jnp.minimum(at_low, 1.0), jnp.minimum(at_high, 1.0)
    slopes = (
        # Draws are not differentiated by their probability, and an integral a draw is much.
        lambda: scale * jnp.exp(integral(lower, upper).log_value - height),
        lambda: 1 - at_low - at_high,
        lambda: mode + offset - lower * at_low - upper * at_high,
        lambda: at_low,
        lambda: at_high,
    )
    tangent = jnp.zeros_like(z)
    for slope, change in zip(slopes, tangents, strict=True):
        if not isinstance(change, SymbolicZero):
            tangent = tangent + slope() * change
    return z, tangent

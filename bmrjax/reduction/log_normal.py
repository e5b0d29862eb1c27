"""Bayesian model reduction for log-normal posteriors under log-uniform priors, both truncated.

Everything is a function of ``z = ln θ``, a truncated normal variable. Its integrals are taken by
quadrature relative to the density at its mode: the textbook formulas subtract huge numbers where
a posterior has gone past a bound, this adds positive ones.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from bmrjax.reduction import removal


class _Rule(NamedTuple):
    """Gauss-Legendre on [0, 1], for an interval at whose ends the density has fallen by exp(-depth)."""

    depth: float
    nodes: np.ndarray
    weights: np.ndarray


def _rule(depth: float, count: int) -> _Rule:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return _Rule(depth, (nodes + 1) / 2, weights / 2)


# Exact in float32. Moments of θ lean on where ln θ is large, far out in the tail.
_DENSITY, _MOMENTS = _rule(36.0, 32), _rule(128.0, 64)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogUniform:
    """Independent log-uniform distributions: ``ln θ`` is uniform on [low, high].

    Attributes:
        low: Lower bound of ``ln θ``, any shape.
        high: Upper bound of ``ln θ``; broadcasts.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.LogNormal(jnp.array([-1.0, -4.0]), jnp.array([0.5, 3.0]), -20.0, 0.0)
        >>> prior = reduction.LogUniform(jnp.full(2, -20.0), jnp.zeros(2))
        >>> reduction.delta_f_each(q, prior).round(1)
        Array([-719.2,  -13.1], dtype=float32)
    """

    low: Float[Array, "..."]
    high: Float[Array, "..."]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogNormal:
    """Independent log-normal distributions: ``ln θ`` is N(loc, scale²), truncated to [low, high].

    Attributes:
        loc: Mean of ``ln θ`` before it is truncated, any shape; it may lie outside of the bounds.
        scale: Standard deviation of ``ln θ`` before that, positive; broadcasts.
        low: Lower bound of ``ln θ``; broadcasts.
        high: Upper bound of ``ln θ``; broadcasts.

    Example:
        Noise on two units: one that carries a signal, one that is all noise.

        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> noise = reduction.LogNormal(
        ...     loc=jnp.array([0.0, -4.0]), scale=jnp.array([0.1, 3.0]), low=-20.0, high=0.0
        ... )
        >>> [f"{snr:.1f}" for snr in noise.snr]
        ['17.1', '0.5']
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]
    low: Float[Array, "..."]
    high: Float[Array, "..."]

    @property
    def bounds(self) -> tuple[Array, Array]:
        """The bounds, standardised."""
        return (self.low - self.loc) / self.scale, (self.high - self.loc) / self.scale

    @property
    def mode(self) -> Array:
        """Where the density of ``ln θ`` is highest."""
        return jnp.clip(self.loc, self.low, self.high)

    @property
    def mean(self) -> Array:
        """E[θ] (Neklyudov et al. 2017, equation 20)."""
        return jnp.exp(self.mode) * (1 + self._moments()[0])

    @property
    def variance(self) -> Array:
        """Var[θ] (Neklyudov et al. 2017, appendix D)."""
        return jnp.square(jnp.exp(self.mode) * self._moments()[1])

    @property
    def standard_deviation(self) -> Array:
        """Standard deviation of θ."""
        return jnp.sqrt(self.variance)

    @property
    def magnitude(self) -> Array:
        """E[θ], which is positive."""
        return self.mean

    @property
    def snr(self) -> Array:
        """Signal-to-noise ratio E[θ] / sd[θ].

        Equation 19 of Neklyudov et al. (2017) misplaces a normalising constant; appendix D is right.
        """
        mean, deviation = self._moments()
        return (1 + mean) / deviation

    def _moments(self) -> tuple[Array, Array]:
        """Return mean and standard deviation of θ / exp(mode) - 1."""
        found = integral(*self.bounds, rule=_MOMENTS)
        value = jnp.expm1(self.scale[..., None] * found.offsets)
        mean = jnp.sum(found.probs * value, -1)
        # Squares of what is left of a posterior past its bound are below what float32 holds.
        unit = jnp.max(jnp.abs(value), -1)
        square = jnp.square((value - mean[..., None]) / unit[..., None])
        return mean, unit * jnp.sqrt(jnp.sum(found.probs * square, -1))


class Integral(NamedTuple):
    """The integral of exp(-t²/2) over an interval, relative to its largest value there.

    Attributes:
        mode: The t nearest to zero.
        log_value: ln ∫ exp(-(t² - mode²) / 2) dt.
        offsets: Nodes, as t - mode; a last axis.
        exponents: -(t² - mode²) / 2 at the nodes.
        probs: Weights of the nodes, which sum to one: expectations under the truncated normal.
    """

    mode: Array
    log_value: Array
    offsets: Array
    exponents: Array
    probs: Array


def integral(
    lower: Float[Array, "..."], upper: Float[Array, "..."], rule: _Rule = _DENSITY
) -> Integral:
    """Integrate exp(-t²/2) from `lower` to `upper`, wherever they are.

    Args:
        lower: Lower bounds, any shape.
        upper: Upper bounds, larger; broadcasts.
        rule: How far out, and with how many nodes.
    """
    mode = jnp.clip(0.0, lower, upper)
    reach = 2 * rule.depth / (jnp.sqrt(jnp.square(mode) + 2 * rule.depth) + jnp.abs(mode))
    # As `mode - lower` and `upper - mode`, whose gradients would cancel where the mode is a bound.
    down = jnp.minimum(jnp.minimum(upper, 0.0) - jnp.minimum(lower, 0.0), reach)
    up = jnp.minimum(jnp.maximum(upper, 0.0) - jnp.maximum(lower, 0.0), reach)
    last = (1,) * mode.ndim + (-1,)
    nodes, of_nodes = (part.astype(mode.dtype).reshape(last) for part in (rule.nodes, rule.weights))
    offsets = (down + up)[..., None] * nodes - down[..., None]
    exponents = exponent(mode[..., None], offsets)
    weights = jnp.exp(exponents) * of_nodes
    total = jnp.sum(weights, -1)
    log_value = jnp.log(down + up) + jnp.log(total)
    return Integral(mode, log_value, offsets, exponents, weights / total[..., None])


def exponent(t: Float[Array, "..."], offset: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return -((t + offset)² - t²) / 2, without a difference of squares."""
    return -offset * (2 * t + offset) / 2


def divergence(posterior: LogNormal, prior: LogUniform) -> Float[Array, "..."]:
    """Return the Kullback-Leibler divergence of a posterior from its prior, nats per element.

    Args:
        posterior: Its bounds lie within the prior's; else the divergence is infinite.
        prior: Log-uniform.

    References:
        Neklyudov et al. (2017), equation 17.
    """
    inside = (posterior.low >= prior.low) & (posterior.high <= prior.high)
    q = posterior
    value = jnp.log(prior.high - prior.low) + _negative_entropy(q.loc, q.scale, q.low, q.high)
    return jnp.where(inside, value, jnp.inf)


@jax.custom_jvp
def _negative_entropy(loc: Array, scale: Array, low: Array, high: Array) -> Array:
    """Return E[ln q(ln θ)], nats."""
    return _negative_entropy_and_integral(loc, scale, low, high)[0]


def _negative_entropy_and_integral(
    loc: Array, scale: Array, low: Array, high: Array
) -> tuple[Array, Integral]:
    found = integral((low - loc) / scale, (high - loc) / scale)
    height = jnp.sum(found.probs * found.exponents, -1)
    return height - jnp.log(scale) - found.log_value, found


@functools.partial(_negative_entropy.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # E[∂ ln q] is zero, so a derivative of E[ln q] is the covariance of ln q and its score: no quadrature
    # has to be differentiated, which takes seconds to compile.
    loc, scale, low, high = primals
    value, found = _negative_entropy_and_integral(*primals)
    height = jnp.sum(found.probs * found.exponents, -1)
    centred = found.exponents - height[..., None]

    def edge(bound: Array) -> Array:
        above = exponent(found.mode, (bound - loc) / scale - found.mode)
        return (height - above + 1) * jnp.exp(above - found.log_value) / scale

    def by_loc() -> Array:
        # A shift of the mean is one of both bounds. Within them that is exact where the covariance
        # cancels, and past one of them it is the other way round.
        past = jnp.sum(found.probs * found.offsets * centred, -1) / scale
        return jnp.where(found.mode == 0, edge(high) - edge(low), past)

    slopes = (
        by_loc,
        lambda: -2 * jnp.sum(found.probs * jnp.square(centred), -1) / scale,
        lambda: jnp.where(found.mode > 0, edge(high) - by_loc(), edge(low)),
        lambda: jnp.where(found.mode < 0, -edge(low) - by_loc(), -edge(high)),
    )
    tangent = jnp.zeros_like(value)
    for slope, change in zip(slopes, tangents, strict=True):
        if not isinstance(change, SymbolicZero):
            tangent = tangent + slope() * change
    return value, tangent


class LogNormalReduction(NamedTuple):
    """What a reduction gives: the evidence difference and the reduced posterior."""

    delta_f: Float[Array, "..."]
    reduced: LogNormal


def log_normal(
    posterior: LogNormal, prior: LogUniform, reduced_prior: LogNormal | LogUniform
) -> LogNormalReduction:
    r"""Compute the evidence difference and the posterior under a reduced prior.

    .. math::  ΔF = \ln E_q[\tilde p / p]

    in nats, an element at a time. **Positive favours the reduced prior.** Safe in float32 for a reduced
    prior as narrow as a millionth around a bound.

    Args:
        posterior: Truncated log-normal.
        prior: The log-uniform prior that it was fitted under, with the same bounds.
        reduced_prior: What to put in its place, with bounds within the prior's: log-uniform on a
            part of it, or truncated log-normal.

    Returns:
        `delta_f`, shaped as the broadcast of the inputs, and the `reduced` posterior. Where the
        bounds of posterior and reduced prior do not overlap, `delta_f` is -inf and `reduced` means nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> low, high = jnp.array(-20.0), jnp.array(0.0)
        >>> q = reduction.LogNormal(jnp.array([-0.1, -15.0]), jnp.array([0.1, 3.0]), low, high)
        >>> small = reduction.LogUniform(low, jnp.log(2.0**-8))
        >>> reduction.log_normal(q, reduction.LogUniform(low, high), small).delta_f.round().astype(int)
        Array([-1487,     0], dtype=int32)

    References:
        Wright, Igel and Selvan (2024): equation 8 (log-normal, in the bounds of ``ln θ`` throughout)
        and 9 (log-uniform).
    """
    low = jnp.maximum(posterior.low, reduced_prior.low)
    high = jnp.minimum(posterior.high, reduced_prior.high)
    overlap = low < high
    high = jnp.where(overlap, high, low + 1.0)
    before = integral(*posterior.bounds)
    width = jnp.log(prior.high - prior.low)
    loc, scale = posterior.loc, posterior.scale
    if isinstance(reduced_prior, LogUniform):
        reduced = LogNormal(loc, scale, low, high)
        after = integral(*reduced.bounds)
        change = exponent(before.mode, after.mode - before.mode)
        delta_f = change + after.log_value - before.log_value
        delta_f = delta_f + width - jnp.log(reduced_prior.high - reduced_prior.low)
        return LogNormalReduction(jnp.where(overlap, delta_f, -jnp.inf), reduced)
    # Offsets from either mean: a narrow distribution's bounds are closer than float32 tells apart.
    total = jnp.square(scale) + jnp.square(reduced_prior.scale)
    shift = reduced_prior.loc - loc
    from_loc = jnp.square(scale) / total * shift
    from_prior = -jnp.square(reduced_prior.scale) / total * shift
    new_scale = scale * (reduced_prior.scale / jnp.sqrt(total))
    narrow = scale < reduced_prior.scale

    def standardised(bound: Array) -> Array:
        gap = jnp.where(narrow, bound - loc - from_loc, bound - reduced_prior.loc - from_prior)
        return gap / new_scale

    after, own = integral(standardised(low), standardised(high)), integral(*reduced_prior.bounds)
    # The mode of the product, standardised under the posterior and under the reduced prior.
    t = jnp.clip(from_loc, low - loc, high - loc) / scale
    u = jnp.clip(from_prior, low - reduced_prior.loc, high - reduced_prior.loc)
    u = u / reduced_prior.scale
    change = exponent(before.mode, t - before.mode) + exponent(own.mode, u - own.mode)
    spread = jnp.log(total) / 2  # of both scales' product over the new one
    log_values = after.log_value - before.log_value - own.log_value
    reduced = LogNormal(loc + from_loc, new_scale, low, high)
    delta_f = width + change + log_values - spread
    return LogNormalReduction(jnp.where(overlap, delta_f, -jnp.inf), reduced)


@removal.delta_f_each.register(LogNormal)
def delta_f_each(posterior: LogNormal, prior: LogUniform) -> Float[Array, "..."]:
    """See `bmrjax.reduction.delta_f_each`: the lower bound stands for zero, which is out of the support."""
    narrow = jnp.full_like(posterior.loc, 1e-6)
    reduced = LogNormal(jnp.broadcast_to(prior.low, narrow.shape), narrow, prior.low, prior.high)
    return log_normal(posterior, prior, reduced).delta_f

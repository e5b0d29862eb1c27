"""The quantile of ln θ under a truncated log-normal distribution, and its derivatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from bmrjax.backend.noise import once
from bmrjax.reduction.log_normal import exponent, integral

# Beyond this many standard deviations from the mean, the inverse of the normal CDF gives way to an expansion.
_FAR = 8.0
# Minimax coefficients of `_normal_quantile`, the highest power first.
_TAIL = np.array(
    [
        *(1.9329155e-4, -1.8846726e-4, 2.3894899e-4, 1.1382303e-4, 2.4914927e-3),
        *(1.7612359e-3, 2.1347753e-2, 4.1194823e-2, 4.3532649e-1, 6.7530678e-1),
    ],
    np.float32,
)


@jax.custom_jvp
def log_quantile(q: Array, loc: Array, scale: Array, low: Array, high: Array) -> Array:
    """Return the q-quantile of N(loc, scale²) on [low, high].

    Accurate wherever the mean lies, far outside of the bounds too, and differentiable in everything.

    Args:
        q: Probabilities, any shape.
        loc: Mean before truncation; broadcasts, as the rest.
        scale: Standard deviation before truncation.
        low: Lower bound.
        high: Upper bound.
    """
    return _value_and_offset(q, loc, scale, low, high)[0]


def _value_and_offset(
    q: Array, loc: Array, scale: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Return the quantile, and how far it is from the mode in standard deviations."""
    lower, upper = (low - loc) / scale, (high - loc) / scale
    shape = lax.broadcast_shapes(jnp.shape(q), jnp.shape(lower), jnp.shape(upper))
    like = jax.ShapeDtypeStruct(shape, jnp.result_type(q, lower, upper))
    args = (q, lower, upper)
    offset = once(_offset, like, *args)
    return jnp.clip(jnp.clip(loc, low, high) + scale * offset, low, high), offset


def _offset(q: Array, lower: Array, upper: Array) -> Array:
    """Return the q-quantile of a standard normal on [lower, upper], less its mode."""
    mode = jnp.clip(0.0, lower, upper)
    # Mirrored so that most of the mass is below zero, where the normal CDF keeps its digits.
    mirror = lower + upper > 0
    a, b = jnp.where(mirror, -upper, lower), jnp.where(mirror, -lower, upper)
    p = jnp.where(mirror, 1 - q, q)
    below = ndtr(a)
    near = jnp.clip(_normal_quantile(below + p * (ndtr(b) - below)), a, b)
    near = jnp.where(mirror, -near, near) - mode
    is_far = jnp.abs(mode) > _FAR

    def with_far(near: Array) -> Array:
        far = _far_offset(p, jnp.maximum(-b, _FAR), b - a)
        return jnp.where(is_far, jnp.where(mirror, far, -far), near)

    return lax.cond(jnp.any(is_far), with_far, lambda near: near, near)


def _normal_quantile(p: Array) -> Array:
    """Return the p-quantile of a standard normal; in float32 to 1.4e-6, for p ≥ 1e-38.

    With r = √(-2 ln p), the sum of r and the quantile is a polynomial of 1 / (r + 2) on both
    sides of ½; SciPy's branches take five times as long to compile.
    """
    if p.dtype != jnp.float32:
        return ndtri(p)
    r = jnp.sqrt(-2 * jnp.log(jnp.maximum(jnp.minimum(p, 1 - p), jnp.finfo(p.dtype).tiny)))
    value = jnp.polyval(_TAIL, (2 / (r + 2) - 0.3782) / 0.2514) - r
    return jnp.where(p < 0.5, value, -value)


def _far_offset(p: Array, distance: Array, width: Array) -> Array:
    """Return how far below -distance the p-quantile of a normal on [-distance - width, -distance] is.

    The mass beyond d falls as exp(-h), h = (r + 1/r) d + d²/2, up to terms of order 1 / r⁴.
    """
    slope = distance + 1 / distance
    end = slope * width + jnp.square(width) / 2
    height = -jnp.log(p + (1 - p) * jnp.exp(-end))
    return 2 * height / (slope + jnp.sqrt(jnp.square(slope) + 2 * height))


def _at_bounds(q: Array, offset: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the densities at the bounds over that at the quantile, each with the mass on the other side."""
    mode = jnp.clip(0.0, lower, upper)
    height = exponent(mode, offset)
    at_low = (1 - q) * jnp.exp(exponent(mode, lower - mode) - height)
    at_high = q * jnp.exp(exponent(mode, upper - mode) - height)
    return jnp.minimum(at_low, 1.0), jnp.minimum(at_high, 1.0)


def _slopes(q: Array, offset: Array, lower: Array, upper: Array) -> Array:
    """Return the derivatives by loc and by scale, as one complex array."""
    at_low, at_high = _at_bounds(q, offset, lower, upper)
    t = jnp.clip(0.0, lower, upper) + offset
    return lax.complex(1 - at_low - at_high, t - lower * at_low - upper * at_high)


@functools.partial(log_quantile.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    # By the implicit function theorem: the CDF at the quantile stays q.
    q, loc, scale, low, high = primals
    z, offset = _value_and_offset(q, loc, scale, low, high)
    lower, upper = (low - loc) / scale, (high - loc) / scale
    # Apart from the sums over draws that gradients are, in which exponentials would not be vectorised.
    dtype = jnp.result_type(z, jnp.complex64)
    like = jax.ShapeDtypeStruct(offset.shape, dtype)
    by_both = once(_slopes, like, jnp.broadcast_to(q, offset.shape), offset, lower, upper)
    mode = jnp.clip(0.0, lower, upper)
    slopes = (
        # Draws are not differentiated by their probability, and an integral a draw is much.
        lambda: scale * jnp.exp(integral(lower, upper).log_value - exponent(mode, offset)),
        lambda: by_both.real,
        lambda: by_both.imag,
        lambda: _at_bounds(q, offset, lower, upper)[0],
        lambda: _at_bounds(q, offset, lower, upper)[1],
    )
    tangent = jnp.zeros_like(z)
    for slope, change in zip(slopes, tangents, strict=True):
        if not isinstance(change, SymbolicZero):
            tangent = tangent + slope() * change
    return z, tangent

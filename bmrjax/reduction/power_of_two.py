"""Units in which nothing overflows: data may come in kilograms of stars or in charges of electrons.

Squares of what is below 1e-19 are zero in float32, and those of what is above 1e19 are infinite. Evidence
differences do not depend on units, so scales are divided by a power of two of their own size, which is
exact.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def power_of_two(scale: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the largest power of two that is not above each scale; one for zero and what is not finite.

    It has no gradient: results that are multiplied by it again, or that do not depend on units, have theirs
    without it.

    Args:
        scale: Nonnegative numbers, any shape; integers count as the default float.

    Example:
        >>> import jax.numpy as jnp
        >>> power_of_two(jnp.array([5.0, 1.0, 0.3, 0.0]))
        Array([4.  , 1.  , 0.25, 1.  ], dtype=float32)
    """
    scale = lax.stop_gradient(jnp.asarray(scale))
    if not jnp.issubdtype(scale.dtype, jnp.floating):
        scale = scale.astype(jnp.result_type(float))
    about = jnp.finfo(scale.dtype)
    # All bits of the significand are zero in a power of two.
    bits = jnp.dtype(f"uint{about.bits}").type
    exponent = bits(((1 << (about.bits - 1)) - 1) & ~((1 << about.nmant) - 1))
    found = lax.bitcast_convert_type(lax.bitcast_convert_type(scale, bits) & exponent, scale.dtype)
    # The reciprocal of the largest powers is zero, where numbers that small are.
    found = jnp.minimum(found, float(2.0 ** (about.maxexp - 2)))
    return jnp.where(jnp.isfinite(scale) & (found > 0), found, 1.0)


def norm(x: Float[Array, "... n"]) -> Float[Array, "..."]:
    """Return the Euclidean norm along the last axis, in units of its largest element.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([3e-30, 4e-30])
        >>> print(jnp.linalg.norm(x), f"{norm(x):.1e}")
        0.0 5.0e-30
    """
    unit = power_of_two(jnp.max(jnp.abs(x), axis=-1, initial=0.0))
    return unit * jnp.linalg.norm(x / unit[..., None], axis=-1)


def in_units(unit: Float[Array, "..."], *values: jax.typing.ArrayLike) -> tuple[Array, ...]:
    """Return values divided by powers of two; broadcasts."""
    inverse = 1.0 / unit
    return tuple(jnp.asarray(value) * inverse for value in values)

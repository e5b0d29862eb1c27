"""Choosing the smallest of many scores on the device."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def smallest(
    scores: list[Float[Array, "..."]], candidates: list[Bool[Array, "..."]], count: Int[Array, ""]
) -> list[Bool[Array, "..."]]:
    """Mark the `count` candidates with the smallest scores, or all if there are fewer.

    A bisection over the bit patterns of floats: 32 passes, no sort, no host round
    trip. Among equal scores at the threshold the first go, so that a round never stalls on them.

    Args:
        scores: Float32 arrays; a score that is not a number comes after infinity.
        candidates: Which elements may be marked; shaped as the scores.
        count: How many, over all arrays.
    """
    bits = [_ordered_bits(s.astype(jnp.float32)) for s in scores]

    def below(threshold: Array) -> list[Array]:
        return [c & (b < threshold) for b, c in zip(bits, candidates, strict=True)]

    def narrow(i: Array, threshold: Array) -> Array:
        trial = threshold | (jnp.uint32(1) << (jnp.uint32(31) - i.astype(jnp.uint32)))
        marked = sum((jnp.sum(m, dtype=jnp.int32) for m in below(trial)), jnp.zeros((), jnp.int32))
        return jnp.where(marked <= count, trial, threshold)

    threshold = lax.fori_loop(0, 32, narrow, jnp.zeros((), jnp.uint32))
    marked = below(threshold)
    spare = count - sum((jnp.sum(m, dtype=jnp.int32) for m in marked), jnp.zeros((), jnp.int32))
    for i, (b, c) in enumerate(zip(bits, candidates, strict=True)):
        ties = c & (b == threshold)
        rank = jnp.cumsum(ties.ravel(), dtype=jnp.int32).reshape(ties.shape)
        first = ties & (rank <= spare)
        marked[i] = marked[i] | first
        spare = spare - jnp.sum(first, dtype=jnp.int32)
    return marked


def _ordered_bits(scores: Float[Array, "..."]) -> Array:
    """Return whole numbers in the order of the scores; the two zeros are one.

    Of the bits alone: comparisons of floats may take subnormal ones for zero.
    """
    bits = lax.bitcast_convert_type(scores, jnp.uint32)
    sign, infinity = jnp.uint32(0x80000000), jnp.uint32(0x7F800000)
    # Negative numbers from the top down; minus zero is the first number from the bottom up.
    ordered = jnp.where(bits > sign, ~bits, bits | sign)
    is_nan = (bits & ~sign) > infinity
    return jnp.where(is_nan, jnp.uint32(0xFFFFFFFF), ordered)

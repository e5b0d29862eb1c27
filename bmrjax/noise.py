"""Standard normal noise: JAX's own numbers, drawn in one fused and threaded pass on CPU.

JAX lowers threefry on CPU as a loop whose every round goes through memory on one thread. The
same function written out is one elementwise kernel, which XLA fuses with the transform to a
normal and spreads over the cores. On other backends, and for other generators, JAX's is used.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jaxtyping import Array, Float, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def _threefry2x32(
    key: tuple[Array, Array], high: UInt32[Array, " n"], low: UInt32[Array, " n"]
) -> tuple[UInt32[Array, " n"], UInt32[Array, " n"]]:
    """Hash 64-bit counters with threefry-2x32, 20 rounds (Salmon et al. 2011)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    high, low = high + schedule[0], low + schedule[1]
    for block in range(5):
        for distance in _ROTATIONS[block % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(distance)) | (low >> np.uint32(32 - distance)))
        high = high + schedule[(block + 1) % 3]
        low = low + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return high, low


def _fast_normal(key: Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
    words = jax.random.key_data(key)
    # XLA would fuse the hash into each of the noise's uses and compute it many times over. It
    # cannot see that this loop always runs once, and fuses nothing across a loop.
    once = jnp.where((words[0] | np.uint32(1)) != 0, 1, 0)
    return lax.fori_loop(0, once, lambda _, __: _hashed_normal(words, shape), jnp.zeros(shape))


def _hashed_normal(words: UInt32[Array, "2"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    counter = lax.iota(jnp.uint32, math.prod(shape))
    high, low = _threefry2x32((words[0], words[1]), jnp.zeros_like(counter), counter)
    mantissa = ((high ^ low) >> np.uint32(9)) | np.uint32(0x3F800000)
    unit = lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1.0)
    lowest = np.nextafter(np.float32(-1.0), np.float32(0.0))
    uniform = jnp.maximum(lowest, unit * (np.float32(1.0) - lowest) + lowest)
    return (np.float32(np.sqrt(2)) * lax.erf_inv(uniform)).reshape(shape)


def normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
    """Draw standard normal noise, equal to `jax.random.normal` up to rounding.

    Args:
        key: A JAX PRNG key of any implementation.
        shape: Shape of the result.
        dtype: Floating dtype of the result.

    Returns:
        Independent N(0, 1) draws.
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    config: Any = jax.config
    plain = (
        str(jax.random.key_impl(key)) != "threefry2x32"
        or dtype != jnp.float32
        or not config.jax_threefry_partitionable
        or math.prod(shape) >= 2**32
    )
    if plain:
        return jax.random.normal(key, shape, dtype)
    return lax.platform_dependent(
        key,
        cpu=lambda k: _fast_normal(k, shape),
        default=lambda k: jax.random.normal(k, shape, dtype),
    )


class _FastNormal(dist.Normal):
    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        dtype = jnp.result_type(self.loc, self.scale, float)
        shape = sample_shape + self.batch_shape
        loc, scale = jnp.asarray(self.loc), jnp.asarray(self.scale)
        return loc + normal(key, shape, dtype) * scale


def with_fast_noise(fn: dist.Distribution) -> dist.Distribution:
    """Return `fn` with its normal noise drawn by `normal`; any other distribution unchanged."""
    if isinstance(fn, dist.Independent):
        base = with_fast_noise(fn.base_dist)
        return fn if base is fn.base_dist else base.to_event(fn.reinterpreted_batch_ndims)
    if isinstance(fn, dist.ExpandedDistribution) and type(fn.base_dist) is dist.Normal:
        base = fn.base_dist
        return _FastNormal(
            jnp.broadcast_to(jnp.asarray(base.loc), fn.batch_shape),
            jnp.broadcast_to(jnp.asarray(base.scale), fn.batch_shape),
        )
    if type(fn) is dist.Normal:
        return _FastNormal(fn.loc, fn.scale)
    return fn

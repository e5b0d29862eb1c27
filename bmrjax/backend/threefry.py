"""The threefry hash written out, and JAX's threefry keys made of it."""

import math
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_NAME = "threefry2x32"
_TAG = "fry_unrolled"


def threefry2x32(
    key: tuple[Array, Array], high: UInt32[Array, "..."], low: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Hash 64-bit counters with threefry-2x32, 20 rounds (Salmon et al. 2011).

    JAX lowers it on CPU as a loop whose every round goes through memory on one thread. Written out it is one
    elementwise kernel, which XLA fuses with what follows and spreads over the cores.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    high, low = high + schedule[0], low + schedule[1]
    for block in range(5):
        for distance in _ROTATIONS[block % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(distance)) | (low >> np.uint32(32 - distance)))
        high = high + schedule[(block + 1) % 3]
        low = low + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return high, low


def is_threefry(key: Array) -> bool:
    """Whether a typed key, `unrolled` or not, hashes by threefry."""
    return str(jax.random.key_impl(key)) in (_NAME, _TAG)


def unrolled(keys: Array) -> Array:
    """Return typed keys that give the same numbers, and hash them by `threefry2x32` in this module.

    Under `vmap` JAX's own loop over rounds is a dozen small kernels a round, for each key that is split. Keys
    of other generators stay as they are, and so do all where JAX hashes in another order
    (``jax_threefry_partitionable=False``).
    """
    if not jax.config.values["jax_threefry_partitionable"] or not is_threefry(keys):
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=_UNROLLED)


def _hash_all(words: UInt32[Array, "2"], shape: tuple[int, ...]) -> tuple[Array, Array]:
    low = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return threefry2x32((words[0], words[1]), jnp.zeros_like(low), low)


def _seed(seed: Array) -> UInt32[Array, "2"]:
    return jax.random.key_data(jax.random.key(seed, impl=_NAME))


def _split(words: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "... 2"]:
    return jnp.stack(_hash_all(words, shape), axis=-1)


def _fold_in(words: UInt32[Array, "2"], data: Any) -> UInt32[Array, "2"]:
    low = jnp.asarray(data, jnp.uint32)
    return jnp.stack(threefry2x32((words[0], words[1]), jnp.zeros_like(low), low))


def _random_bits(words: UInt32[Array, "2"], bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width != 32 or math.prod(shape) >= 2**32:
        key = jax.random.wrap_key_data(words, impl=_NAME)
        types: dict[int, Any] = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}
        return jax.random.bits(key, shape, types[bit_width])
    high, low = _hash_all(words, shape)
    return high ^ low


_UNROLLED = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_unrolled",
    tag=_TAG,
)

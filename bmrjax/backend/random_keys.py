"""PRNG keys derived on the host, or in one compiled program."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, UInt32

from bmrjax.backend.quick_compile import quick_jit, traces_nothing
from bmrjax.backend.threefry import is_threefry, threefry2x32


def split_keys(key: Array, num: int) -> tuple[Array, ...]:
    """Return ``tuple(jax.random.split(key, num))``, which would compile two programs, and the first slowly.

    Args:
        key: PRNG key.
        num: How many keys.
    """
    words = _words(key)
    if words is None:
        return _split(key, num)
    low = np.arange(num, dtype=np.uint32)
    high, low = _hashed(words, low)
    return tuple(_key(np.stack(pair), key) for pair in zip(high, low, strict=True))


def fold_in(key: Array, number: Array | np.unsignedinteger) -> Array:
    """Return ``jax.random.fold_in(key, number)``, which would compile slowly.

    Args:
        key: PRNG key.
        number: A whole number of 32 bits, without a sign.
    """
    words = _words(key)
    if words is None:
        return _fold_in(key, number)
    high, low = _hashed(words, np.asarray(number, np.uint32).reshape(1))
    return _key(np.concatenate([high, low]), key)


@functools.partial(quick_jit, static_argnums=1)
def _split(key: Array, num: int) -> tuple[Array, ...]:
    return tuple(jax.random.split(key, num))


@quick_jit
def _fold_in(key: Array, number: Array) -> Array:
    return jax.random.fold_in(key, number)


# A few hashes cost less in NumPy than a program that makes them costs to compile, or to call. The README's
# regression compiled four such programs, .4 s of a core.
def _words(key: Array) -> UInt32[np.ndarray, "2"] | None:
    """Return the words of one threefry key that the host can hash; None for any other key."""
    if (
        not traces_nothing()  # where even the words of a concrete key become a tracer
        or isinstance(key, Tracer)
        or jax.device_count() > 1
        or jax.default_backend() != "cpu"
        or not jax.config.values["jax_threefry_partitionable"]
    ):
        return None
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if key.shape != (() if typed else (2,)):
        return None
    if typed and not is_threefry(key):
        return None
    if not typed and jax.config.values["jax_default_prng_impl"] != "threefry2x32":
        return None
    return np.asarray(jax.random.key_data(key) if typed else key)


def _hashed(words: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    key = words[:1], words[1:]  # arrays wrap around without a warning, where scalars have one
    return threefry2x32(key, np.zeros_like(low), low)  # pyright: ignore[reportArgumentType, reportReturnType]


def _key(words: np.ndarray, like: Array) -> Array:
    """Return these words as a key of the kind of another one."""
    data = jax.device_put(words)
    if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return data
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))

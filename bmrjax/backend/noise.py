"""Normal and uniform noise from threefry, in one fused and threaded pass."""

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jaxtyping import Array, Complex64, Float, UInt32

from bmrjax.backend.threefry import is_threefry, threefry2x32


def _uniform(bits: UInt32[Array, " n"]) -> Float[Array, " n"]:
    """Return uniform numbers in [0, 1) from random bits."""
    one_to_two = (bits >> np.uint32(9)) | np.uint32(0x3F800000)
    return lax.bitcast_convert_type(one_to_two, jnp.float32) - np.float32(1.0)


def _sine_and_cosine(turns: Float[Array, " n"]) -> tuple[Array, Array]:
    """Return sin and cos of 2π `turns`, for turns in [0, 1], to 4e-7.

    XLA's own reduce arguments of any size, which takes twice as long as the rest of the draw.
    """
    quarter = jnp.floor(4.0 * turns + 0.5)
    angle = (4.0 * turns - quarter) * np.float32(np.pi / 2)
    square = jnp.square(angle)
    sine = angle * (1.0 + square * (-1 / 6 + square * (1 / 120 - square / 5040)))
    cosine = 1.0 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square / 40320)))
    quadrant = quarter.astype(jnp.int32) & 3
    swapped = (quadrant & 1) == 1
    first, second = jnp.where(swapped, cosine, sine), jnp.where(swapped, sine, cosine)
    negative = (quadrant == 1) | (quadrant == 2)
    return jnp.where(quadrant >= 2, -first, first), jnp.where(negative, -second, second)


DrawPair = Callable[[UInt32[Array, "..."], UInt32[Array, "..."]], tuple[Array, Array]]


def _normal_pair(high: Array, low: Array) -> tuple[Array, Array]:
    radius = jnp.sqrt(-2.0 * jnp.log(1.0 - _uniform(high)))
    sine, cosine = _sine_and_cosine(_uniform(low))
    return radius * cosine, radius * sine


def _uniform_pair(high: Array, low: Array) -> tuple[Array, Array]:
    return _uniform(high), _uniform(low)


def _hashed(words: UInt32[Array, "2"], counter: UInt32[Array, "..."]) -> tuple[Array, Array]:
    return threefry2x32((words[0], words[1]), jnp.zeros_like(counter), counter)


def _all_pairs(words: UInt32[Array, "2"], count: int, pair: DrawPair) -> Complex64[Array, " n"]:
    # One array, so that one kernel computes both from one hash.
    return lax.complex(*pair(*_hashed(words, lax.iota(jnp.uint32, count))))


def once(fn: Callable[..., Array], like: jax.ShapeDtypeStruct, *args: Array) -> Array:
    """Return ``fn(*args)``, computed a single time whatever it is used for.

    XLA on CPU fuses what looks cheap, such as a hash or an inverse CDF, into each of its uses and
    computes it many times over. It cannot see that this loop always runs once, and fuses nothing across one.
    Elsewhere a barrier does: the hash, a hundred operations long, would be compiled into each of its uses.

    Args:
        fn: Pure; not differentiated through.
        like: Shape and dtype of its result.
        args: Its arguments; the first has an element.
    """

    def on_cpu(*args: Array) -> Array:
        start = jnp.zeros(like.shape, like.dtype)
        first = lax.bitcast_convert_type(args[0].ravel()[0].astype(jnp.float32), jnp.uint32)
        times = jnp.where((first | np.uint32(1)) != 0, 1, 0)
        return lax.fori_loop(0, times, lambda _, __: fn(*args), start)

    def elsewhere(*args: Array) -> Array:
        return lax.optimization_barrier(fn(*args))

    return lax.platform_dependent(*args, cpu=on_cpu, default=elsewhere)


_ONE_BY_ONE: ContextVar[bool] = ContextVar("one_by_one", default=False)


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Trace draws so that each number is computed by itself; they are the same numbers.

    That costs two hashes a pair, but a device that holds a part of an array then draws that part only.
    """
    token = _ONE_BY_ONE.set(True)
    try:
        yield
    finally:
        _ONE_BY_ONE.reset(token)


def _drawn(pair: DrawPair, key: Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Draw pairs of numbers from a threefry key, and lay them out: first all firsts, then all seconds."""
    draw = _drawn_one_by_one if _ONE_BY_ONE.get() else _drawn_in_pairs
    return draw(pair, jax.random.key_data(key), shape)


# Traced and lowered once for each shape, however many draws of it a program has.
@partial(jax.jit, static_argnums=(0, 2))
def _drawn_in_pairs(
    pair: DrawPair, words: UInt32[Array, "2"], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    size = math.prod(shape)
    count = -(-size // 2)
    like = jax.ShapeDtypeStruct((count,), jnp.complex64)
    drawn = once(lambda words: _all_pairs(words, count, pair), like, words)
    return jnp.concatenate([drawn.real, drawn.imag])[:size].reshape(shape)


@partial(jax.jit, static_argnums=(0, 2))
def _drawn_one_by_one(
    pair: DrawPair, words: UInt32[Array, "2"], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    count = -(-math.prod(shape) // 2)
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]))
        place = place + stride * lax.broadcasted_iota(jnp.uint32, shape, axis)
    is_second = place >= np.uint32(count)
    counter = place - jnp.where(is_second, np.uint32(count), np.uint32(0))
    # XLA would hash anew for each use.
    high, low = lax.optimization_barrier(_hashed(words, counter))
    first, second = pair(high, low)
    return jnp.where(is_second, second, first)


def _is_fast(key: Array, shape: tuple[int, ...], dtype: Any) -> bool:
    return is_threefry(key) and dtype == jnp.float32 and 0 < math.prod(shape) < 2**32


def uniform(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draw uniform noise in (0, 1), never exactly 0; see `normal_noise`.

    Args:
        key: A JAX PRNG key of any implementation.
        shape: Shape of the result.
        dtype: Floating dtype of the result.
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if not _is_fast(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny)
    return jnp.maximum(_drawn(_uniform_pair, key, shape), jnp.finfo(jnp.float32).tiny)


def normal_noise(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
    """Draw standard normal noise; the same numbers on every backend, up to rounding.

    Both words of a threefry hash make a pair of draws, where `jax.random.normal` uses one. For
    other generators and dtypes it is `jax.random.normal`.

    Args:
        key: A JAX PRNG key of any implementation.
        shape: Shape of the result.
        dtype: Floating dtype of the result.

    Returns:
        Independent N(0, 1) draws.

    References:
        Box and Muller (1958).
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if not _is_fast(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    return _drawn(_normal_pair, key, shape)


class _FastNormal(dist.Normal):
    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        dtype = jnp.result_type(self.loc, self.scale, float)
        shape = sample_shape + self.batch_shape
        loc, scale = jnp.asarray(self.loc), jnp.asarray(self.scale)
        return loc + normal_noise(key, shape, dtype) * scale


def with_fast_noise(fn: dist.Distribution) -> dist.Distribution:
    """Return `fn` with its normal noise drawn by `normal_noise`; any other distribution unchanged."""
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

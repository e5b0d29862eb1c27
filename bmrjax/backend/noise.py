"""Normal and uniform noise from threefry, in one fused and threaded pass."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
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

# A step of a mean-field fit of a perceptron, 784-400×5-10 on batches of 128 rows, took 35 ms of CPU on two
# cores, and 43 ms with JAX's own draws (medians of four turns of 100 steps each).


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
    words = jax.random.key_data(key)
    if _ONE_BY_ONE.get():
        return _drawn_one_by_one(pair, words, shape, 0, math.prod(shape))
    return _drawn_in_pairs(pair, words, shape)


@partial(jax.jit, static_argnums=(0, 2))
def _pairs(pair: DrawPair, words: UInt32[Array, "2"], count: int) -> Complex64[Array, " n"]:
    like = jax.ShapeDtypeStruct((count,), jnp.complex64)
    return once(lambda words: _all_pairs(words, count, pair), like, words)


# Traced and lowered once for each shape, however many draws of it a program has.
@partial(jax.jit, static_argnums=(0, 2))
def _drawn_in_pairs(
    pair: DrawPair, words: UInt32[Array, "2"], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    size = math.prod(shape)
    drawn = _pairs(pair, words, -(-size // 2))
    return jnp.concatenate([drawn.real, drawn.imag])[:size].reshape(shape)


@partial(jax.jit, static_argnums=(0, 2, 3, 4))
def _drawn_one_by_one(
    pair: DrawPair, words: UInt32[Array, "2"], shape: tuple[int, ...], start: int, total: int
) -> Float[Array, "..."]:
    """Return the part of `total` numbers that begins at `start`."""
    count = -(-total // 2)
    place = jnp.full(shape, np.uint32(start))
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


def normal_noises(
    key: Array, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Float[Array, "..."]]:
    """Draw standard normal noise for several arrays by a single hash, as float32.

    A program with a hash for each of many small arrays takes long to compile, and starts a kernel for each.

    Args:
        key: A JAX PRNG key of any implementation.
        shapes: Shapes of the arrays, by name; together they have fewer than 2^32 elements.

    Returns:
        Independent N(0, 1) draws by name.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    starts = list(itertools.accumulate(sizes, initial=0))
    total = starts[-1]
    if not _is_fast(key, (total,), jnp.float32):
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        return {n: jax.random.normal(keys[n], shape, jnp.float32) for n, shape in shapes.items()}
    words = jax.random.key_data(key)
    places = zip(shapes.items(), starts, strict=False)
    if _ONE_BY_ONE.get():
        return {
            name: _drawn_one_by_one(_normal_pair, words, shape, start, total)
            for (name, shape), start in places
        }
    count = -(-total // 2)
    pairs = _pairs(_normal_pair, words, count)
    firsts, seconds = pairs.real, pairs.imag

    def part(start: int, stop: int) -> Array:
        if stop <= count:
            return firsts[start:stop]
        if start >= count:
            return seconds[start - count : stop - count]
        return jnp.concatenate([firsts[start:], seconds[: stop - count]])

    return {
        name: part(start, start + math.prod(shape)).reshape(shape)
        for (name, shape), start in places
    }


class _FastNormal(dist.Normal):
    # Drawn before, of the shape of the batch; None: drawn when a sample is.
    noise: Array | None = None

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        dtype = jnp.result_type(self.loc, self.scale, float)
        shape = sample_shape + self.batch_shape
        loc, scale = jnp.asarray(self.loc), jnp.asarray(self.scale)
        noise = self.noise
        if noise is None or noise.shape != shape or noise.dtype != dtype:
            noise = normal_noise(key, shape, dtype)
        return loc + noise * scale


def with_fast_noise(fn: dist.Distribution, noise: Array | None = None) -> dist.Distribution:
    """Return `fn` with its normal noise drawn by `normal_noise`; any other distribution unchanged.

    Args:
        fn: Any distribution.
        noise: Standard normal draws for a sample, where there are some; another shape is not used.
    """
    if isinstance(fn, dist.Independent):
        base = with_fast_noise(fn.base_dist, noise)
        return fn if base is fn.base_dist else base.to_event(fn.reinterpreted_batch_ndims)
    if type(fn) is dist.TransformedDistribution:
        base = with_fast_noise(fn.base_dist, noise)
        return fn if base is fn.base_dist else dist.TransformedDistribution(base, fn.transforms)
    if isinstance(fn, dist.ExpandedDistribution) and type(fn.base_dist) is dist.Normal:
        base, shape = fn.base_dist, fn.batch_shape
        loc, scale = (jnp.broadcast_to(jnp.asarray(x), shape) for x in (base.loc, base.scale))
    elif type(fn) is dist.Normal:
        loc, scale = fn.loc, fn.scale
    else:
        return fn
    fast = _FastNormal(loc, scale)
    fast.noise = noise
    return fast

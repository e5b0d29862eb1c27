"""PRNG keys in one compiled program."""

import functools

import jax
from jaxtyping import Array

from bmrjax.backend.quick_compile import quick_jit


@functools.partial(quick_jit, static_argnums=1)
def split_keys(key: Array, num: int) -> tuple[Array, ...]:
    """Return ``tuple(jax.random.split(key, num))``, which would compile two programs, and the first slowly.

    Args:
        key: PRNG key.
        num: How many keys.
    """
    return tuple(jax.random.split(key, num))


@quick_jit
def fold_in(key: Array, number: Array) -> Array:
    """Return ``jax.random.fold_in(key, number)``, which would compile slowly.

    Args:
        key: PRNG key.
        number: A whole number.
    """
    return jax.random.fold_in(key, number)

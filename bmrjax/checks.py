"""PRNG keys, checked before anything is drawn with them."""

from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp


def check_key(key: Any, caller: str = "sparsify", **counts: int | None) -> None:
    """Raise TypeError unless `key` is a JAX PRNG key, and ValueError for counts below one.

    Args:
        key: What a caller gave as the key, which may be a seed, or the data.
        caller: Name of the function, for the messages.
        **counts: Numbers of draws, rows and the like, by the name of the argument; None passes.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        got = repr(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(f"{caller}: key must be a PRNG key, as jax.random.key(0); got {got}.")
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral)):
            raise TypeError(f"{caller}: {name} must be an integer, got {count!r}.")
        if count is not None and count < 1:
            raise ValueError(f"{caller}: {name} must be at least 1, got {count}.")

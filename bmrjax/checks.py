"""PRNG keys, checked before anything is drawn with them."""

from typing import Any

import jax
import jax.numpy as jnp


def check_key(key: Any, told: str = "sparsify") -> None:
    """Refuse what is no PRNG key, a seed or data above all."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        got = repr(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(f"{told}: key must be a PRNG key, as jax.random.key(0); got {got}.")

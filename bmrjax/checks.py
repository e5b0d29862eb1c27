"""Arguments, checked before anything is built from them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


def check_key(key: Any, told: str = "sparsify") -> None:
    """Refuse what is no PRNG key, a seed or data above all."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        got = repr(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(f"{told}: key must be a PRNG key, as jax.random.key(0); got {got}.")


def check_finite(data: Any, told: str) -> None:
    """Refuse NaN and infinite inputs, which would come out as NaNs."""
    for path, value in jax.tree_util.tree_leaves_with_path(data):
        if isinstance(value, Tracer) or not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            continue
        if not bool(jnp.isfinite(value).all()):
            raise ValueError(
                f"{told}: the data{jax.tree_util.keystr(path)} have NaN or infinite values. Drop or impute "
                "them first."
            )

"""Arguments, checked before anything is built from them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from bmrjax.criteria import Criterion
from bmrjax.schedules import Schedule


def check_kinds(settings: Mapping[str, Any], guide: Callable | None) -> None:
    """Refuse names and classes where objects are expected, and other than numbers where numbers are.

    Args:
        settings: Arguments of `sparsify` by name.
        guide: Its guide.

    Raises:
        TypeError: Saying what to write.
    """
    for name, kind, example in (
        ("criterion", Criterion, "criteria.SpikeAndSlab()"),
        ("schedule", Schedule, "schedules.Verified()"),
    ):
        value = settings[name]
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"sparsify: {name} must be an object like {example}, got {value!r}.")
    for name in ("num_epochs", "steps_per_epoch", "batch_size"):
        value = settings[name]
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"sparsify: {name} must be a whole number, got {value!r}.")
    sites = settings["sites"]
    if isinstance(sites, str):
        raise TypeError(f"sparsify: sites must be a list of names; write sites=[{sites!r}].")
    if isinstance(guide, type):
        raise TypeError(
            f"sparsify: the guide is the class {guide.__name__}; give an object, as in "
            f"{guide.__name__}(model)."
        )


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

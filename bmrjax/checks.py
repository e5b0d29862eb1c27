"""Kinds of arguments, checked before anything is built from them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

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


def check_key(key: Any) -> None:
    """Refuse what is no PRNG key, a seed above all."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        raise TypeError(f"sparsify: key must be a PRNG key, as jax.random.key(0); got {key!r}.")

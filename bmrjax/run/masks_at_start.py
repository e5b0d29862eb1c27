"""The masks that a fit begins with, of an earlier result or of a pruned program."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


def with_removed(keep: Mapping[str, Any]) -> dict[str, Array]:
    """Return the masks that remove something."""
    return {name: jnp.asarray(mask) for name, mask in keep.items() if not jnp.all(mask)}


def carried_over(begun: dict[str, Array], keep: dict[str, Array]) -> dict[str, Array]:
    """Refuse masks that the program cannot have; return the others."""
    for name, mask in begun.items():
        if name not in keep or keep[name].shape != mask.shape:
            has = f"one of shape {keep[name].shape}" if name in keep else "none that can be reduced"
            raise ValueError(
                f"sparsify: elements of site '{name}', of shape {mask.shape}, are removed in `start` (or in "
                "the pruned guide), and "
                f"the program has {has}. Start a program with the same sites and a posterior of the same "
                "family."
            )
    return begun

"""How a batch of data becomes the arguments of a program."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Bool

Keep = Mapping[str, Bool[Array, "..."]]
Data = tuple[Array, ...] | Mapping[str, Array]


def arguments(batch: Data) -> tuple[tuple, dict[str, Any]]:
    """Return the positional and keyword arguments that `batch` stands for."""
    return ((), dict(batch)) if isinstance(batch, Mapping) else (tuple(batch), {})


def length(batch: Data) -> int:
    """Return the number of rows."""
    return jax.tree.leaves(batch)[0].shape[0]

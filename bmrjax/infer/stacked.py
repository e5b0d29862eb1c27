"""Several members' trees of arrays as one, and back."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.backend.quick_compile import quick_jit


@quick_jit
def stacked(trees: Sequence[Any]) -> Any:
    """Return one tree of arrays with a leading axis over the members."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def select_members(which: Array, old: Any, new: Any) -> Any:
    """Return, of two trees of stacked arrays, the new members where `which` is set."""

    def choose(old: Array, new: Array) -> Array:
        return jnp.where(which.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, old, new)


@functools.partial(quick_jit, static_argnums=1)
def unstacked(tree: Any, count: int) -> list[Any]:
    """Undo `stacked`."""
    return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(count)]

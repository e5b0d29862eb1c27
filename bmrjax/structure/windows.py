"""What varies and what is read where operations look up places of an array, or write to them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

SCATTERS = ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")


def windows(eqn: Any) -> list[tuple[int, int]]:
    """Return the axes of a scatter's operand that it writes whole, each with that of the updates."""
    numbers = eqn.params["dimension_numbers"]
    operand, updates = eqn.invars[0].aval.shape, eqn.invars[2].aval.shape
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(len(operand)) if i not in dropped]
    pairs = zip(kept, numbers.update_window_dims, strict=True)
    return [(i, j) for i, j in pairs if operand[i] == updates[j]]


def spread_over_windows(eqn: Any, mask: Array) -> Array:
    """Return a mask of the updates of a scatter for its operand: what may be written where."""
    return _moved(mask, [(j, i) for i, j in windows(eqn)], eqn.invars[0].aval.shape)


def read_from_windows(eqn: Any, mask: Array) -> Array:
    """Return a mask of the result of a scatter for its updates: where each of them may have come to."""
    return _moved(mask, windows(eqn), eqn.invars[2].aval.shape)


def spread_to_axes(eqn: Any, mask: Array) -> Array:
    """Return a mask of the operand of a scatter, spread along the axes of which it writes some places."""
    kept = [(i, i) for i, _ in windows(eqn)]
    return _moved(mask, kept, eqn.invars[0].aval.shape)


def _moved(mask: Array, pairs: list[tuple[int, int]], shape: tuple[int, ...]) -> Array:
    """Return a mask along some of its axes, the largest along others, for an array of another shape."""
    kept = [i for i, _ in pairs]
    found = jnp.max(mask, axis=tuple(i for i in range(mask.ndim) if i not in kept), initial=0.0)
    order = sorted(range(len(pairs)), key=lambda k: pairs[k][0])
    targets = [pairs[k][1] for k in order]
    found = found.transpose([targets.index(j) for j in sorted(targets)])
    found = found.reshape([shape[j] if j in targets else 1 for j in range(len(shape))])
    return jnp.broadcast_to(found, shape)


def _whole_axes(eqn: Any) -> list[tuple[int, int]]:
    """Return the axes that a lookup returns whole, each with the axis of the result."""
    shape, rank = eqn.invars[0].aval.shape, eqn.outvars[0].aval.ndim
    sizes = eqn.params["slice_sizes"]
    if eqn.primitive.name == "gather":
        numbers = eqn.params["dimension_numbers"]
        dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [i for i in range(len(shape)) if i not in dropped]
        # Offset dimensions keep the order of the operand's axes.
        pairs = zip(kept, numbers.offset_dims, strict=True)
    else:
        pairs = zip(range(len(shape)), range(rank), strict=True)
    return [(i, j) for i, j in pairs if sizes[i] == shape[i]]


def looked_up(eqn: Any, table: Array) -> Array:
    """Return what varies of places in a constant table that vary with the input.

    An element of all rows alike is the same wherever it is looked up.
    """
    pairs = _whole_axes(eqn)
    others = tuple(i for i in range(table.ndim) if i not in [p for p, _ in pairs])
    low, high = (f(table, axis=others, keepdims=True) for f in (jnp.min, jnp.max))
    varies = jnp.broadcast_to((low != high).astype(jnp.float32), table.shape)
    return _moved(varies, pairs, eqn.outvars[0].aval.shape)


def read_anywhere(eqn: Any, live: Array) -> Array:
    """Return what a lookup may read of its first argument, at places that vary with the input."""
    pairs = [(j, i) for i, j in _whole_axes(eqn)]
    return _moved(live, pairs, eqn.invars[0].aval.shape)

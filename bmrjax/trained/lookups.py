"""Rows of a table that are looked up, as a product with the table."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from bmrjax.backend.jaxprs import evaluate
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.moments import LayerMoments

# A larger table stays as it is: as a product, each position of a row has as many inputs as there are rows.
LARGEST_TABLE = 4096


def lookups_as_products(
    traced: jec.ClosedJaxpr, args: Sequence[Array], count: int
) -> tuple[jec.ClosedJaxpr, set[int]]:
    """Return operations in which looking rows of tables up is a matrix product; the values are the same.

    An embedding is a layer without a bias. Its inputs are zero but for a one where the row is that is looked
    up.

    Args:
        traced: Operations: those within loops stay.
        args: Arguments.
        count: How many of the first are arrays of the network: tables are among them.

    Returns:
        The operations, and the numbers of the tables.
    """
    names: dict[Any, int] = {var: i for i, var in enumerate(traced.jaxpr.invars[:count])}
    found: dict[int, int] = {}  # by operation
    for eqn in traced.jaxpr.eqns:
        table = eqn.invars[0] if eqn.invars else None
        if isinstance(table, jec.Literal) or table not in names:
            continue
        if eqn.primitive.name == "convert_element_type":
            names[eqn.outvars[0]] = names[table]
        elif _looks_up(eqn):
            found[id(eqn)] = names[table]
    if not found:
        return traced, set()

    def rule(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        return [_product(eqn, inputs)] if id(eqn) in found else None

    def run(*values: Array) -> list[Array]:
        return evaluate(traced.jaxpr, traced.consts, values, rule)

    return jax.make_jaxpr(run)(*args), set(found.values())


def _looks_up(eqn: Any) -> bool:
    """Return whether an operation takes whole rows of a small enough table of floating-point numbers."""
    name, table = eqn.primitive.name, eqn.invars[0].aval
    if name not in ("gather", "dynamic_slice") or table.ndim != 2:
        return False
    if not jnp.issubdtype(table.dtype, jnp.floating) or table.shape[0] > LARGEST_TABLE:
        return False
    if tuple(eqn.params["slice_sizes"]) != (1, table.shape[1]):
        return False
    if name == "dynamic_slice":
        return True
    numbers = eqn.params["dimension_numbers"]
    return not numbers.operand_batching_dims and 0 in numbers.start_index_map


def _product(eqn: Any, inputs: Sequence[Any]) -> Array:
    """Return what an operation takes from a table, by a product."""
    table = inputs[0]
    if eqn.primitive.name == "dynamic_slice":
        return _rows(table, inputs[1])[None]
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    which = _wide(inputs[1][..., numbers.start_index_map.index(0)])
    rows = _rows(table, which)
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        fill = eqn.params["fill_value"]
        missing = jnp.asarray(jnp.nan if fill is None else fill, rows.dtype)
        inside = lax.bitwise_and(which >= 0, which < table.shape[0])
        inside = lax.broadcast_in_dim(inside, rows.shape, range(which.ndim))
        rows = lax.select_n(inside, lax.full_like(rows, missing), rows)
    if 0 not in numbers.collapsed_slice_dims:
        rows = lax.expand_dims(rows, (which.ndim,))
    source = range(rows.ndim - len(numbers.offset_dims), rows.ndim)
    return jnp.moveaxis(rows, source, numbers.offset_dims)


def _wide(which: Any) -> Int[Array, "*batch"]:
    """Return numbers of rows in a type that has those of all rows: tokens may come as bytes."""
    which = jnp.asarray(which)
    return which if which.dtype.itemsize >= 4 else lax.convert_element_type(which, jnp.int32)


def _rows(
    table: Float[Array, "rows size"], which: Int[Array, "*batch"]
) -> Float[Array, "*batch size"]:
    which = _wide(which)
    nearest = lax.clamp(
        jnp.zeros((), which.dtype), which, jnp.asarray(table.shape[0] - 1, which.dtype)
    )
    shape = (*which.shape, table.shape[0])
    wide = lax.broadcast_in_dim(nearest, shape, range(which.ndim))
    one_hot = lax.eq(wide, lax.broadcasted_iota(which.dtype, shape, which.ndim))
    return lax.dot_general(
        lax.convert_element_type(one_hot, table.dtype),
        table,
        (((which.ndim,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )


def unseen_rows(
    layers: Sequence[TracedLayer], moments: Sequence[LayerMoments]
) -> dict[int, Bool[np.ndarray, " inputs"]]:
    """Return, by number of the layer, the rows of tables that the calibration rows do not look up.

    The data say nothing of these: they are neither judged nor removed.
    """
    found = {}
    for k, layer in enumerate(layers):
        if layer.is_table:
            seen = np.diagonal(moments[k].inputs[0])[: layer.index.shape[2]]
            # What is left of a zero where the moments were made positive; one row in 1e9 is far above.
            found[k] = seen <= 1e-12 * seen.max()
    return {k: unseen for k, unseen in found.items() if unseen.any()}


def unseen_reasons(
    layers: Sequence[TracedLayer], unseen: Mapping[int, Bool[np.ndarray, " inputs"]]
) -> dict[str, str]:
    """Return what is said of tables with such rows, by name."""
    counts: dict[str, int] = {}
    for k, rows in unseen.items():
        counts[layers[k].name] = counts.get(layers[k].name, 0) + int(rows.sum())
    return {
        f"{name}[rows]": f"{count} of its rows are looked up by no calibration row, and stay"
        for name, count in counts.items()
    }

"""The weights of a network that read each element of its input."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.extend.core as jec
import numpy as np
from jaxtyping import Array, Bool, Float

from bmrjax.structure.cost import compiled_exactly
from bmrjax.structure.dataflow import ELEMENTWISE, Dataflow, reached_by
from bmrjax.structure.flatten import flatten_jaxpr
from bmrjax.structure.network_arrays import checked_arguments, is_nnx, parts_of

# Operations that keep the elements of their argument, in their order.
KEEP_ORDER = frozenset(("reshape", "squeeze", "expand_dims", "broadcast_in_dim"))


class InputWeights(NamedTuple):
    """The dense layers that read an input.

    Attributes:
        names: Path to the weights of each.
        weights: Theirs, one after the other; (units, inputs).
        leads: Whether a weight is not zero, and other weights that are not zero lead from its unit to an
            output; (units, inputs).
    """

    names: tuple[str, ...]
    weights: Float[np.ndarray, "units inputs"]
    leads: Bool[np.ndarray, "units inputs"]


class _Product(NamedTuple):
    """A dense layer that reads the input: an operation of the jaxpr, and which argument is the input."""

    eqn: Any
    position: int


def input_weights(network: Any, *inputs: Any) -> InputWeights:
    """Return the weights that read each element of a network's input, where only dense layers read it.

    What is done element by element before the first layer, such as standardising, makes no difference. An
    image has its elements row by row.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, or a Flax NNX module.
        *inputs: Its example inputs: one data point for Equinox, a batch for Flax NNX.

    Returns:
        The weights of all dense layers that read the input, and which of them lead to an output.

    Raises:
        TypeError: For what is not a network.
        ValueError: If it takes several arrays, or anything else than a dense layer reads the input.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> from bmrjax.structure.input_weights import input_weights
        >>> network = eqx.nn.MLP(3, 1, width_size=4, depth=2, key=jax.random.key(0))
        >>> network = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.eye(4, 3))
        >>> found = input_weights(network, jnp.ones(3))
        >>> found.names, found.leads.sum(0).tolist()
        (('layers.0.weight',), [1, 1, 1])
    """
    parts = parts_of(network, caller="input_weights")
    arguments = checked_arguments("input_weights", network, parts, inputs)
    if len(arguments.arrays) != 1:
        raise ValueError(f"it takes {len(arguments.arrays)} arrays, and not one")
    (x,) = arguments.arrays
    rows = x.shape[0] if is_nnx(network) and x.ndim else 1
    args = [*parts.arrays, x]
    traced = arguments.traced
    assert traced is not None  # `checked_arguments` traces it
    flat = flatten_jaxpr(traced.closed, *args)
    jaxpr = flat.jaxpr
    products = list(_products(jaxpr, rows))
    varies = [False] * len(parts.arrays) + [True]

    def facts(consts: Any, args: Any) -> list[tuple[Array, Array, Array]]:
        flow = Dataflow(jaxpr, consts, args, varies)
        return [
            (
                flow.value(eqn.invars[1 - position]),
                flow.varying(eqn.invars[position]),
                flow.wanted(eqn.outvars[0]),
            )
            for eqn, position in products
        ]

    values = jax.device_get(compiled_exactly(facts, flat.consts, args)(flat.consts, args))
    weights, leads, names = [], [], []
    for product, (weight, varying, wanted) in zip(products, values, strict=True):
        matrix = _units_first(product, weight)
        used = varying.reshape(rows, -1).max(0) > 0
        units = _by_unit(product, wanted, len(matrix))
        weights.append(matrix)
        leads.append((matrix != 0) & units[:, None] & used)
        names.append(_name(jaxpr, product, parts.names))
    return InputWeights(tuple(names), np.concatenate(weights), np.concatenate(leads))


def _products(jaxpr: Any, rows: int) -> Iterator[_Product]:
    """Yield the dense layers that read the input; raise ValueError for anything else that does."""
    given = jaxpr.invars[-1]
    size = given.aval.size // max(rows, 1)
    reached = reached_by(jaxpr, [given])
    plain, found = (
        {given},
        0,
    )  # `plain` holds the elements of the input, each changed by itself at most
    for eqn in jaxpr.eqns:
        read = [v for v in eqn.invars if not isinstance(v, jec.Literal) and v in plain]
        if not read:
            continue
        name, shapes = eqn.primitive.name, {v.aval.shape for v in read}
        alone = all(
            isinstance(v, jec.Literal) or v in plain or v not in reached for v in eqn.invars
        )
        if name in ELEMENTWISE and alone and shapes == {eqn.outvars[0].aval.shape}:
            plain.update(eqn.outvars)
        elif name in KEEP_ORDER and eqn.outvars[0].aval.size == given.aval.size:
            plain.update(eqn.outvars)
        elif name == "dot_general" and _reads_all(
            eqn, position := _position(eqn, plain), rows, size
        ):
            if eqn.invars[1 - position] in reached:
                raise ValueError("its input is multiplied with what depends on it")
            found += 1
            yield _Product(eqn, position)
        else:
            raise ValueError(f"the operation '{name}', which is not a dense layer, reads its input")
    if any(v in plain for v in jaxpr.outvars if not isinstance(v, jec.Literal)):
        raise ValueError("its input is an output")
    if not found:
        raise ValueError("no dense layer reads its input")


def _position(eqn: Any, plain: set[Any]) -> int:
    first = eqn.invars[0]
    return 0 if not isinstance(first, jec.Literal) and first in plain else 1


def _reads_all(eqn: Any, position: int, rows: int, size: int) -> bool:
    """Say whether a product sums over all elements of the input, and keeps the rows of a batch apart."""
    contract, batch = eqn.params["dimension_numbers"]
    if any(batch) or len(contract[position]) != 1:
        return False
    (axis,) = contract[position]
    shape = eqn.invars[position].aval.shape
    return shape[axis] == size and int(np.prod(shape[:axis])) == rows


def _units_first(product: _Product, weight: np.ndarray) -> np.ndarray:
    """Return the weights of a product as a matrix, (units, inputs)."""
    (axis,) = product.eqn.params["dimension_numbers"][0][1 - product.position]
    found = np.moveaxis(np.asarray(weight), axis, -1)
    return found.reshape(-1, found.shape[-1])


def _by_unit(product: _Product, wanted: np.ndarray, units: int) -> np.ndarray:
    """Return whether each unit of a product reaches an output, in any row."""
    # The free axes of the first argument come first.
    ordered = wanted.reshape(-1, units).T if product.position == 0 else wanted.reshape(units, -1)
    return ordered.max(1) > 0


def _name(jaxpr: Any, product: _Product, names: list[str]) -> str:
    """Return the path to the weights of a product: its parameters, joined where there are several."""
    weight = product.eqn.invars[1 - product.position]
    found = [
        name
        for var, name in zip(jaxpr.invars[:-1], names, strict=True)
        if weight in reached_by(jaxpr, [var])
    ]
    return " and ".join(found) or "constant"

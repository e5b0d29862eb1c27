"""Which arrays of a network are the weights of a matrix product or a convolution, from its operations."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np

from bmrjax.backend.jaxprs import bind_one, closed, scan_parts
from bmrjax.trained.layers import TracedLayer, Use, equation_at, kernel_places, order_of

# Operations that only put the elements of an array elsewhere.
_MOVES = frozenset(
    "reshape transpose squeeze expand_dims broadcast_in_dim slice rev copy copy_p "
    "reduce_precision convert_element_type stop_gradient optimization_barrier".split()
)
# Those that leave the elements where they are, and may change how they are stored.
_SAME = frozenset("reduce_precision convert_element_type copy copy_p stop_gradient".split())

_CONSTANT = "it is multiplied by what does not depend on the input"

# The weights of a product: number of the array, and which of its elements.
_Key = tuple[int, bytes]


@dataclass(frozen=True)
class _Moved:
    """Elements of one array of the network, moved: their places in it."""

    array: int
    index: np.ndarray


@dataclass
class _Scope:
    """Operations of the network, or of one turn of a loop in it.

    Attributes:
        jaxpr: The operations.
        moved: Variables that are elements of arrays of the network.
        reached: Variables that depend on the input.
        consumers: Numbers of the operations that read each variable.
    """

    jaxpr: Any
    moved: dict[Any, _Moved]
    reached: set[Any]
    consumers: dict[Any, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass
class _Findings:
    """What the operations do with the network's arrays.

    Attributes:
        scopes: By place of the loop; that of the whole network is at ``()``.
        products: Uses of the same weights, and the matrices that they are.
        live: Whether what they are multiplied by depends on the input.
        other: By array: elements that are read elsewhere, and why that is no product.
    """

    scopes: dict[tuple[int, ...], _Scope] = field(default_factory=dict)
    products: dict[_Key, list[tuple[Use, np.ndarray]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    live: dict[_Key, bool] = field(default_factory=lambda: defaultdict(bool))
    other: dict[int, list[tuple[np.ndarray, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def find_layers(
    jaxpr: jec.Jaxpr,
    names: list[str],
    trained: list[bool] | None = None,
    *,
    within_loops: bool = True,
) -> tuple[list[TracedLayer], dict[str, str]]:
    """Find the weights of all matrix products and convolutions whose other operand depends on the input.

    Args:
        jaxpr: Operations of the network: its arrays come first among the arguments, then one row of
            inputs. Calls written out, as `structure.flatten` does.
        names: Names of the arrays.
        trained: Whether each array is a trained one. Others, such as running statistics, are no weights.
        within_loops: Whether to look for weights that each turn of a `scan` reads.

    Returns:
        The layers in the order in which they are used; and for every other array the reason why it is none.
    """
    count = len(names)
    moved: dict[Any, _Moved] = {}
    arguments: list[Any] = list(jaxpr.invars)
    for i, var in enumerate(arguments[:count]):
        size = int(np.prod(var.aval.shape))
        moved[var] = _Moved(i, np.arange(size, dtype=np.int64).reshape(var.aval.shape))
    found = _Findings()
    _visit(found, (), _Scope(jaxpr, moved, set(arguments[count:])), within_loops=within_loops)
    for key in [key for key in found.products if not found.live[key]]:
        found.other[key[0]].append((found.products.pop(key)[0][1], _CONSTANT))
    for var in jaxpr.outvars:
        if not isinstance(var, jec.Literal) and var in moved:
            found.other[moved[var].array].append((moved[var].index, "it is an output"))
    return _assemble(jaxpr, names, trained, found)


def sliced_by_loops(jaxpr: jec.Jaxpr, count: int) -> bool:
    """Return whether a loop takes a part of an array in each turn, or carries one along as it is.

    Args:
        jaxpr: Operations of the network.
        count: How many of the first arguments are its arrays.
    """
    return _sliced(jaxpr, set(jaxpr.invars[:count]))


def _sliced(jaxpr: Any, moved: set[Any]) -> bool:
    for eqn in jaxpr.eqns:
        inputs = [None if isinstance(v, jec.Literal) else v for v in eqn.invars]
        if eqn.primitive.name in _MOVES and inputs[0] in moved:
            moved.update(eqn.outvars)
        if eqn.primitive.name == "scan":
            body, _ = closed(eqn.params["jaxpr"])
            consts, carry, xs = scan_parts(eqn, list(zip(inputs, body.invars, strict=True)))
            # A starting state that was learned is another one after a turn.
            after = zip(carry, body.outvars, strict=False)
            same = [given for given, out in after if given[1] is out]
            if any(var in moved for var, _ in (*same, *xs)):
                return True
            if _sliced(body, {inner for var, inner in consts if var in moved}):
                return True
    return False


def _visit(
    found: _Findings, place: tuple[int, ...], scope: _Scope, *, within_loops: bool = True
) -> None:
    """Go through operations, and note what each does with the network's arrays."""
    found.scopes[place] = scope
    moved, reached = scope.moved, scope.reached
    for number, eqn in enumerate(scope.jaxpr.eqns):
        here = (*place, number)
        inputs = [None if isinstance(v, jec.Literal) else v for v in eqn.invars]
        for var in inputs:
            if var is not None:
                scope.consumers[var].append(number)
        if any(var in reached for var in inputs):
            reached.update(eqn.outvars)
        name = eqn.primitive.name
        if name in _MOVES and len(inputs) == 1 and inputs[0] in moved:
            source = moved[inputs[0]]
            moved[eqn.outvars[0]] = _Moved(source.array, _move(eqn, source.index))
            continue
        if name == "scan" and within_loops:
            _visit_loop(found, here, eqn, scope)
            continue
        for side, var in enumerate(inputs):
            if var is None or var not in moved:
                continue
            why = _no_product(eqn, side, inputs, moved)
            source = moved[var]
            if why is None:
                index = _matrices(eqn, side, source.index)
                why = "some of its elements are multiplied more than once in one product"
                if len(np.unique(index)) == index.size:
                    key = (source.array, index.tobytes() + str(index.shape).encode())
                    found.products[key].append((Use(here, side), index))
                    # A recurrent layer meets its starting state, a constant, first.
                    found.live[key] |= inputs[1 - side] in reached
                    continue
            found.other[source.array].append((source.index, why))


def _visit_loop(found: _Findings, place: tuple[int, ...], eqn: Any, outside: _Scope) -> None:
    """Go through one turn of a `scan`; of the network's arrays it has those that it takes as they are."""
    body, _ = closed(eqn.params["jaxpr"])
    length = eqn.params["length"]
    consts, carry, xs = scan_parts(eqn, list(zip(eqn.invars, body.invars, strict=True)))
    moved: dict[Any, _Moved] = {}
    for group, why in (
        (carry, f"a loop of {length} turns carries it along"),
        (xs, f"a loop of {length} turns takes a part of it in each"),
        (consts, None),
    ):
        for given, var in group:
            source = None if isinstance(given, jec.Literal) else outside.moved.get(given)
            if source is None:
                continue
            if why is None:
                moved[var] = source
            else:
                found.other[source.array].append((source.index, why))
    reached = {
        var
        for given, var in zip(eqn.invars, body.invars, strict=True)
        if not isinstance(given, jec.Literal) and given in outside.reached
    }
    carried = [var for _, var in carry]
    while True:
        after = _depends(body, reached)
        outs = zip(carried, body.outvars, strict=False)
        more = {v for v, out in outs if not isinstance(out, jec.Literal) and out in after}
        more -= reached
        if not more:
            break
        reached |= more
    scope = _Scope(body, moved, set(reached))
    _visit(found, place, scope)
    for var in body.outvars:
        if not isinstance(var, jec.Literal) and var in moved:
            source = moved[var]
            found.other[source.array].append((source.index, "a loop puts it out"))


def _depends(jaxpr: Any, given: set[Any]) -> set[Any]:
    """Return the variables that depend on some of the arguments."""
    found = set(given)
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, jec.Literal) and v in found for v in eqn.invars):
            found.update(eqn.outvars)
    return found


def _assemble(
    jaxpr: jec.Jaxpr, names: list[str], trained: list[bool] | None, found: _Findings
) -> tuple[list[TracedLayer], dict[str, str]]:
    by_array: dict[int, list[tuple[list[Use], np.ndarray]]] = defaultdict(list)
    for (array, _), uses in found.products.items():
        by_array[array].append(([use for use, _ in uses], uses[0][1]))
    layers: list[TracedLayer] = []
    refused: dict[str, str] = {}
    for i, name in enumerate(names):
        views = by_array.get(i, [])
        places = np.concatenate([index.ravel() for _, index in views]) if views else np.array([])
        other = found.other.get(i, [])
        elsewhere = [why for index, why in other if np.isin(index, places).any()]
        if trained is not None and not trained[i]:
            refused[name] = "it is not trained"
        elif not views:
            refused[name] = other[0][1] if other else "no output depends on it"
        elif elsewhere:
            refused[name] = f"besides a product, {elsewhere[0]}"
        elif len(np.unique(places)) != len(places):
            refused[name] = "it is used in two layouts, such as W and its transpose"
        else:
            for k, (uses, index) in enumerate(views):
                label = name if len(views) == 1 else f"{name}[part {k}]"
                bias = _agreed([_bias(found.scopes[use.place[:-1]], use, index) for use in uses])
                if bias is not None:
                    # What else reads it, or is not a parameter, must not move.
                    mine = bias[0] not in by_array and len(found.other[bias[0]]) == len(uses)
                    bias = bias if mine and (trained is None or trained[bias[0]]) else None
                kernel = kernel_places(equation_at(jaxpr, uses[0].place))
                layers.append(TracedLayer(label, i, index, bias, tuple(uses), kernel))
    layers.sort(key=lambda layer: layer.uses[0].place)
    return _one_bias_each(layers), refused


def _move(eqn: Any, index: np.ndarray) -> np.ndarray:
    if eqn.primitive.name in _SAME:
        return index
    return np.asarray(bind_one(eqn, [jnp.asarray(index, jnp.int32)])).astype(np.int64)


def _no_product(eqn: Any, side: int, inputs: list[Any], moved: dict[Any, _Moved]) -> str | None:
    """Say why an operation on weights is not a product with what depends on the input; None if it is."""
    name = eqn.primitive.name
    if name == "while":
        return "it is read inside a `while`, a loop of unknown length; a `scan` is looked into"
    if name in ("scan", "cond"):
        return f"it is read inside a `{name}`, which is not looked into"
    if name == "conv_general_dilated" and eqn.params["batch_group_count"] != 1:
        return "it is read by a convolution with batch groups"
    if name in ("add", "add_any"):
        return "it is added, and multiplies nothing"
    if name not in ("dot_general", "conv_general_dilated"):
        return f"it is read by `{name}`, which is not a matrix product or convolution"
    if name == "conv_general_dilated" and side == 0:
        return "it is the input of a convolution, not its kernel"
    partner = inputs[1 - side]
    return _CONSTANT if partner is None or partner in moved else None


def _matrices(eqn: Any, side: int, index: np.ndarray) -> np.ndarray:
    """Return places of weights as (groups, outputs, inputs)."""
    order, lead = order_of(eqn, side, index.ndim)
    ordered = index.transpose(order)
    if lead is None:
        groups = eqn.params["feature_group_count"]
        return ordered.reshape(groups, ordered.shape[0] // groups, -1)
    ends = [0, *lead, index.ndim]
    return ordered.reshape([int(np.prod(ordered.shape[a:b])) for a, b in pairwise(ends)])


def _bias(scope: _Scope, use: Use, index: np.ndarray) -> tuple[int, np.ndarray] | None:
    """Return what is added to the outputs of a product, if it is one element of one array per output."""
    jaxpr, moved, consumers = scope.jaxpr, scope.moved, scope.consumers
    eqn: Any = jaxpr.eqns[use.place[-1]]
    rows, var = _rows_of_outputs(eqn, use.side, index), eqn.outvars[0]
    while len(consumers[var]) == 1 and var not in jaxpr.outvars:
        eqn = jaxpr.eqns[consumers[var][0]]
        name = eqn.primitive.name
        if name in _MOVES and name != "broadcast_in_dim":
            rows, var = _move(eqn, rows), eqn.outvars[0]
            continue
        if name not in ("add", "add_any"):
            return None
        summand = eqn.invars[1] if eqn.invars[0] is var else eqn.invars[0]
        if isinstance(summand, jec.Literal) or summand not in moved:
            return None
        source = moved[summand]
        places = np.broadcast_to(source.index, rows.shape).ravel()
        first = np.full(index.shape[0] * index.shape[1], -1)
        first[rows.ravel()] = places
        alone = np.array_equal(first[rows.ravel()], places) and len(np.unique(first)) == len(first)
        return (source.array, first.reshape(index.shape[:2])) if alone else None
    return None


def _rows_of_outputs(eqn: Any, side: int, index: np.ndarray) -> np.ndarray:
    """Return for each element of a product's result the number of its (group, output)."""
    shape = eqn.outvars[0].aval.shape
    groups, outputs, _ = index.shape
    rows = np.arange(groups * outputs).reshape(groups, outputs)
    if eqn.primitive.name == "dot_general":
        contract, batch = eqn.params["dimension_numbers"]
        weights = eqn.invars[side].aval.shape
        free = [d for d in range(len(weights)) if d not in (*batch[side], *contract[side])]
        rows = rows.reshape(*(weights[d] for d in batch[side]), *(weights[d] for d in free))
        others = len(shape) - rows.ndim
        lead = len(batch[side])
        where = range(lead + others, len(shape)) if side == 1 else range(lead, lead + len(free))
        axes = [d for d in range(len(shape)) if d >= lead and d not in where]
        return np.broadcast_to(np.expand_dims(rows, axes), shape)
    feature = eqn.params["dimension_numbers"].out_spec[1]
    axes = [d for d in range(len(shape)) if d != feature]
    return np.broadcast_to(np.expand_dims(rows.reshape(-1), axes), shape)


def _agreed(biases: list[tuple[int, np.ndarray] | None]) -> tuple[int, np.ndarray] | None:
    first = biases[0]
    if first is None:
        return None
    same = all(
        b is not None and b[0] == first[0] and np.array_equal(b[1], first[1]) for b in biases
    )
    return first if same else None


def _one_bias_each(layers: list[TracedLayer]) -> list[TracedLayer]:
    """Take a bias away from layers that share it: which of them should move it is not defined."""
    owners: dict[int, int] = defaultdict(int)
    for layer in layers:
        if layer.bias is not None:
            owners[layer.bias[0]] += 1
    return [
        layer if layer.bias is None or owners[layer.bias[0]] == 1 else replace(layer, bias=None)
        for layer in layers
    ]

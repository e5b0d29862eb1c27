"""Which arrays of a network are the weights of a matrix product or a convolution, from its operations."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax.backend.jaxprs import bind_one

# Operations that only put the elements of an array elsewhere.
_MOVES = frozenset(
    "reshape transpose squeeze expand_dims broadcast_in_dim slice rev copy copy_p "
    "reduce_precision convert_element_type stop_gradient optimization_barrier".split()
)
# Those that leave the elements where they are, and may change how they are stored.
_SAME = frozenset("reduce_precision convert_element_type copy copy_p stop_gradient".split())

_CONSTANT = "it is multiplied by what does not depend on the input"


@dataclass(frozen=True)
class Use:
    """One operation that multiplies by a layer's weights.

    Attributes:
        position: Its number among the operations.
        side: Which operand is the weights: 0 or 1.
    """

    position: int
    side: int


@dataclass(frozen=True)
class InputPart:
    """Which of the inputs of a product a layer has, where several layers share them.

    Parts of one layer follow each other in the order of their inputs.

    Attributes:
        number: Of the part.
        count: How many parts there are.
        start: First input of this one.
    """

    number: int
    count: int
    start: int


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """The weights of a matrix product or a convolution, as groups of matrices.

    Attributes:
        name: Path of the array in the network.
        array: Number of the array.
        index: Where in the array, flattened, each weight is. One matrix per group: more than one for
            grouped convolutions and products with a batch axis.
        bias: Number of the array that is added to the outputs and the places in it; None if there is none.
        uses: The operations that read these weights; more than one for a layer that is used again.
        places: Places of a convolution's kernel; inputs are channels times places, channels first.
        part: Which of the inputs of its products these are; None for all. See `wide_layers`.
    """

    name: str
    array: int
    index: Int[np.ndarray, "groups outputs inputs"]
    bias: tuple[int, Int[np.ndarray, "groups outputs"]] | None
    uses: tuple[Use, ...]
    places: int = 1
    part: InputPart | None = None

    @property
    def leads(self) -> bool:
        """Whether it is the first part of its layer, or all of it."""
        return self.part is None or self.part.number == 0


def layer_weights(
    layer: TracedLayer, arrays: Sequence[Array]
) -> Float[np.ndarray, "groups outputs inputs"]:
    """Return the weights of a layer as float64, its bias behind them if it has one; a part has its share."""
    weights = np.asarray(arrays[layer.array], np.float64).ravel()[layer.index]
    if layer.bias is None:
        return weights
    array, places = layer.bias
    share = 1 if layer.part is None else layer.part.count
    bias = np.asarray(arrays[array], np.float64).ravel()[places] / share
    return np.concatenate([weights, bias[..., None]], -1)


def layer_parts(layers: Sequence[TracedLayer]) -> list[list[int]]:
    """Return the numbers of the parts of each layer; of a layer that is not in parts, its own."""
    found: list[list[int]] = []
    for k, layer in enumerate(layers):
        if layer.leads:
            found.append([])
        found[-1].append(k)
    return found


@dataclass(frozen=True)
class _Moved:
    """Elements of one array of the network, moved: their places in it."""

    array: int
    index: np.ndarray


def find_layers(
    jaxpr: jec.Jaxpr, names: list[str], trained: list[bool] | None = None
) -> tuple[list[TracedLayer], dict[str, str]]:
    """Find the weights of all matrix products and convolutions whose other operand depends on the input.

    Args:
        jaxpr: Operations of the network: its arrays come first among the arguments, then one row of
            inputs. Calls and short loops written out, as `structure.flatten` does.
        names: Names of the arrays.
        trained: Whether each array is a trained one. Others, such as running statistics, are no weights.

    Returns:
        The layers in the order in which they are used; and for every other array the reason why it is none.
    """
    count = len(names)
    moved: dict[Any, _Moved] = {}
    arguments: list[Any] = list(jaxpr.invars)
    for i, var in enumerate(arguments[:count]):
        size = int(np.prod(var.aval.shape))
        moved[var] = _Moved(i, np.arange(size, dtype=np.int64).reshape(var.aval.shape))
    reached: set[Any] = set(jaxpr.invars[count:])
    consumers: dict[Any, list[int]] = defaultdict(list)
    products: dict[tuple[int, bytes], list[tuple[Use, np.ndarray]]] = defaultdict(list)
    live: dict[tuple[int, bytes], bool] = defaultdict(bool)
    other: dict[int, list[tuple[np.ndarray, str]]] = defaultdict(list)
    for position, eqn in enumerate(jaxpr.eqns):
        inputs = [None if isinstance(v, jec.Literal) else v for v in eqn.invars]
        for var in inputs:
            if var is not None:
                consumers[var].append(position)
        if any(var in reached for var in inputs):
            reached.update(eqn.outvars)
        name = eqn.primitive.name
        if name in _MOVES and len(inputs) == 1 and inputs[0] in moved:
            source = moved[inputs[0]]
            moved[eqn.outvars[0]] = _Moved(source.array, _move(eqn, source.index))
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
                    products[key].append((Use(position, side), index))
                    # A recurrent layer meets its starting state, a constant, first.
                    live[key] |= inputs[1 - side] in reached
                    continue
            other[source.array].append((source.index, why))
    for key in [key for key in products if not live[key]]:
        other[key[0]].append((products.pop(key)[0][1], _CONSTANT))
    for var in jaxpr.outvars:
        if not isinstance(var, jec.Literal) and var in moved:
            other[moved[var].array].append((moved[var].index, "it is an output"))
    return _assemble(jaxpr, names, trained, moved, consumers, products, other)


def _assemble(
    jaxpr: jec.Jaxpr,
    names: list[str],
    trained: list[bool] | None,
    moved: dict[Any, _Moved],
    consumers: dict[Any, list[int]],
    products: dict[tuple[int, bytes], list[tuple[Use, np.ndarray]]],
    other: dict[int, list[tuple[np.ndarray, str]]],
) -> tuple[list[TracedLayer], dict[str, str]]:
    by_array: dict[int, list[tuple[list[Use], np.ndarray]]] = defaultdict(list)
    for (array, _), found in products.items():
        by_array[array].append(([use for use, _ in found], found[0][1]))
    layers: list[TracedLayer] = []
    refused: dict[str, str] = {}
    for i, name in enumerate(names):
        views = by_array.get(i, [])
        places = np.concatenate([index.ravel() for _, index in views]) if views else np.array([])
        elsewhere = [why for index, why in other.get(i, []) if np.isin(index, places).any()]
        if trained is not None and not trained[i]:
            refused[name] = "it is not trained"
        elif not views:
            reasons = [why for _, why in other.get(i, [])]
            refused[name] = reasons[0] if reasons else "no output depends on it"
        elif elsewhere:
            refused[name] = f"besides a product, {elsewhere[0]}"
        elif len(np.unique(places)) != len(places):
            refused[name] = "it is used in two layouts, such as W and its transpose"
        else:
            for k, (uses, index) in enumerate(views):
                label = name if len(views) == 1 else f"{name}[part {k}]"
                bias = _agreed([_bias(jaxpr, use, index, moved, consumers) for use in uses])
                if bias is not None:
                    # What else reads it, or is not a parameter, must not move.
                    mine = bias[0] not in by_array and len(other.get(bias[0], [])) == len(uses)
                    bias = bias if mine and (trained is None or trained[bias[0]]) else None
                kernel = kernel_places(jaxpr.eqns[uses[0].position])
                layers.append(TracedLayer(label, i, index, bias, tuple(uses), kernel))
    layers.sort(key=lambda layer: layer.uses[0].position)
    return _one_bias_each(layers), refused


def _move(eqn: Any, index: np.ndarray) -> np.ndarray:
    if eqn.primitive.name in _SAME:
        return index
    return np.asarray(bind_one(eqn, [jnp.asarray(index, jnp.int32)])).astype(np.int64)


def _no_product(eqn: Any, side: int, inputs: list[Any], moved: dict[Any, _Moved]) -> str | None:
    """Say why an operation on weights is not a product with what depends on the input; None if it is."""
    name = eqn.primitive.name
    if name in ("scan", "while", "cond"):
        length = f" of {eqn.params['length']} steps" if name == "scan" else ""
        return f"it is read inside a `{name}`{length}, which is not looked into"
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
    order, lead = _order(eqn, side, index.ndim)
    ordered = index.transpose(order)
    if lead is None:
        groups = eqn.params["feature_group_count"]
        return ordered.reshape(groups, ordered.shape[0] // groups, -1)
    ends = [0, *lead, index.ndim]
    return ordered.reshape([int(np.prod(ordered.shape[a:b])) for a, b in pairwise(ends)])


def operand_of(
    eqn: Any, side: int, matrices: Float[Array, "groups outputs inputs"]
) -> Float[Array, "..."]:
    """Return weights, given as matrices, as the operand that a product or convolution reads."""
    shape = eqn.invars[side].aval.shape
    order, _ = _order(eqn, side, len(shape))
    return matrices.reshape([shape[d] for d in order]).transpose(np.argsort(order).tolist())


def _order(eqn: Any, side: int, ndim: int) -> tuple[list[int], tuple[int, int] | None]:
    """Return the axes of weights, outputs before inputs; and of a product, where these two begin."""
    if eqn.primitive.name != "dot_general":
        return list(eqn.params["dimension_numbers"].rhs_spec), None
    contract, batch = (list(dims[side]) for dims in eqn.params["dimension_numbers"])
    free = [d for d in range(ndim) if d not in (*batch, *contract)]
    return [*batch, *free, *contract], (len(batch), len(batch) + len(free))


def rows_of_outputs(eqn: Any, side: int, index: np.ndarray) -> np.ndarray:
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


def _bias(
    jaxpr: jec.Jaxpr,
    use: Use,
    index: np.ndarray,
    moved: dict[Any, _Moved],
    consumers: dict[Any, list[int]],
) -> tuple[int, np.ndarray] | None:
    """Return what is added to the outputs of a product, if it is one element of one array per output."""
    eqn: Any = jaxpr.eqns[use.position]
    rows, var = rows_of_outputs(eqn, use.side, index), eqn.outvars[0]
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


def kernel_places(eqn: Any) -> int:
    """Return the places of a convolution's kernel; 1 for a product."""
    if eqn.primitive.name == "dot_general":
        return 1
    space = eqn.params["dimension_numbers"].rhs_spec[2:]
    return int(np.prod([eqn.invars[1].aval.shape[d] for d in space], dtype=int))


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

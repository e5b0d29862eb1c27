"""The weights of matrix products and convolutions among the operations of a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax.backend.jaxprs import closed


@dataclass(frozen=True)
class Use:
    """One operation that multiplies by a layer's weights.

    Attributes:
        place: Its number among the operations; within a loop, the number of the loop among the operations,
            then its own among those of one turn.
        side: Which operand is the weights: 0 or 1.
    """

    place: tuple[int, ...]
    side: int

    @property
    def loops(self) -> bool:
        """Whether it is within a loop."""
        return len(self.place) > 1


def equation_at(jaxpr: Any, place: tuple[int, ...]) -> Any:
    """Return the operation at a place; see `Use`."""
    *loops, number = place
    for loop in loops:
        jaxpr, _ = closed(jaxpr.eqns[loop].params["jaxpr"])
    return jaxpr.eqns[number]


def turns_at(jaxpr: Any, place: tuple[int, ...]) -> list[int]:
    """Return the turns of each loop around the operation at a place, the outermost first."""
    return [equation_at(jaxpr, place[:depth]).params["length"] for depth in range(1, len(place))]


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
        is_table: Whether its inputs are the rows of a table, of which one is looked up; see `lookups`.
    """

    name: str
    array: int
    index: Int[np.ndarray, "groups outputs inputs"]
    bias: tuple[int, Int[np.ndarray, "groups outputs"]] | None
    uses: tuple[Use, ...]
    places: int = 1
    part: InputPart | None = None
    is_table: bool = False

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


def operand_of(
    eqn: Any, side: int, matrices: Float[Array, "groups outputs inputs"]
) -> Float[Array, "..."]:
    """Return weights, given as matrices, as the operand that a product or convolution reads."""
    shape = eqn.invars[side].aval.shape
    order, _ = order_of(eqn, side, len(shape))
    return matrices.reshape([shape[d] for d in order]).transpose(np.argsort(order).tolist())


def order_of(eqn: Any, side: int, ndim: int) -> tuple[list[int], tuple[int, int] | None]:
    """Return the axes of weights, outputs before inputs; and of a product, where these two begin."""
    if eqn.primitive.name != "dot_general":
        return list(eqn.params["dimension_numbers"].rhs_spec), None
    contract, batch = (list(dims[side]) for dims in eqn.params["dimension_numbers"])
    free = [d for d in range(ndim) if d not in (*batch, *contract)]
    return [*batch, *free, *contract], (len(batch), len(batch) + len(free))


def kernel_places(eqn: Any) -> int:
    """Return the places of a convolution's kernel; 1 for a product."""
    if eqn.primitive.name == "dot_general":
        return 1
    space = eqn.params["dimension_numbers"].rhs_spec[2:]
    return int(np.prod([eqn.invars[1].aval.shape[d] for d in space], dtype=int))

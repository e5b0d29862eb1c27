"""A network as its operations for one row, in inference, with its layers found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.structure.call_arguments import Arguments
from bmrjax.structure.flatten import MAX_UNROLLED, flatten
from bmrjax.structure.network_arrays import (
    Parts,
    WithArguments,
    checked_inputs,
    is_equinox,
    parts_of,
)
from bmrjax.structure.weight_norm import finite_weight_norms
from bmrjax.trained.capture import Capture
from bmrjax.trained.find_layers import find_layers, sliced_by_loops
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.lookups import lookups_as_products
from bmrjax.trained.one_way_loops import BEHIND_LOOP, behind_one_way_loops
from bmrjax.trained.wide_layers import in_parts

# Loops of so many turns are written out.
FEW_TURNS = 4


@dataclass(frozen=True)
class OutputTree:
    """How several outputs of a network lie in one array, of one row.

    Attributes:
        structure: The structure of the pytree that the network returns.
        leaves: Shape, size and type of each array in it.
    """

    structure: Any
    leaves: tuple[Any, ...]

    @property
    def is_array(self) -> bool:
        """Whether the network returns one array."""
        return jax.tree_util.treedef_is_leaf(self.structure)

    def __call__(self, outputs: Array) -> Any:
        """Return the outputs as the network does."""
        ends = np.cumsum([leaf.size for leaf in self.leaves])[:-1].tolist()
        parts = zip(jnp.split(outputs.ravel(), ends), self.leaves, strict=True)
        return self.structure.unflatten([x.reshape(of.shape).astype(of.dtype) for x, of in parts])


@dataclass(frozen=True)
class Traced:
    """A network, taken apart.

    Attributes:
        parts: Its arrays, and how to put it together again.
        capture: Its operations for one row.
        layers: Weights that can be judged; those that sum over many inputs in several parts.
        refused: Every other array, and why it cannot.
        outputs: How its outputs lie in the one array that the operations give.
        no_gradient: Numbers of the arrays that have none, because of a loop of unknown length.
    """

    parts: Parts
    capture: Capture
    layers: list[TracedLayer]
    refused: dict[str, str]
    outputs: OutputTree
    no_gradient: frozenset[int] = frozenset()


def trace(
    network: Any,
    inputs: Sequence[np.ndarray],
    block: int = 1,
    *,
    unroll: bool = False,
    structure: Any = None,
) -> Traced:
    """Trace a network on one row and find its layers.

    Args:
        network: An Equinox module, written for one row; an ``(equinox module, State)`` pair; or a Flax NNX
            module, written for a batch.
        inputs: Rows of each input.
        block: Channels that are judged together; see `wide_layers.in_parts`.
        unroll: Whether loops of up to 128 turns are written out, which takes time and memory in proportion,
            and layers within longer ones are not found. By default they stay loops, but for those of a few
            turns, and networks of which a loop takes another slice in each turn; and rows of tables that are
            looked up are products, unless there is a `block`.
        structure: How the inputs make up the network's arguments; None if each is one.

    Raises:
        TypeError: For anything but a network.
        ValueError: If it does not run on a row, returns anything but floating-point numbers, or has no
            weights that can be judged.
    """
    if is_equinox(network):
        network = finite_weight_norms(network)
    parts: Parts = parts_of(network, caller="reduce_network")
    count = len(parts.arrays)
    batched = not is_equinox(network)
    one = tuple(jnp.asarray(part[:1] if batched else part[0]) for part in inputs)
    if structure is not None:
        parts = WithArguments(parts, Arguments(one, structure))
    checked_inputs("reduce_network", network, parts, one)

    trees: list[OutputTree] = []

    def row(*values: Array) -> Array:
        given = values[count:]
        outputs = parts.call(values[:count], [x[None] for x in given] if batched else given)
        leaves, structure = jax.tree.flatten(outputs)
        leaves = [jnp.asarray(x)[0] if batched else jnp.asarray(x) for x in leaves]
        trees.append(OutputTree(structure, tuple(jax.typeof(x) for x in leaves)))
        if not leaves or not all(jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
            found = ", ".join(f"{x.dtype}{x.shape}" for x in leaves) or "nothing"
            raise ValueError(
                f"reduce_network: the network must return floating-point numbers only, got {found}; give a "
                "module around it that returns what the loss is a function of."
            )
        wide = jnp.result_type(*(x.dtype for x in leaves))
        parted = len(leaves) > 1
        return jnp.concatenate([x.astype(wide).ravel() for x in leaves]) if parted else leaves[0]

    args = (*parts.arrays, *(jnp.asarray(part[0]) for part in inputs))
    traced = flatten(row, *args, max_unrolled=MAX_UNROLLED if unroll else FEW_TURNS)
    if not unroll and sliced_by_loops(traced.jaxpr, count):
        traced = flatten(row, *args)
    tables: set[int] = set()
    if block == 1 and not unroll:
        traced, tables = lookups_as_products(traced, args, count)
    layers, refused = find_layers(traced.jaxpr, parts.names, parts.trained, within_loops=not unroll)
    layers = [replace(layer, is_table=layer.array in tables) for layer in layers]
    trained = [i for i, is_trained in enumerate(parts.trained) if is_trained]
    behind = behind_one_way_loops(traced, args, trained)
    refused |= {layer.name: BEHIND_LOOP for layer in layers if layer.array in behind}
    layers = in_parts([layer for layer in layers if layer.array not in behind], block)
    if not layers:
        why = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ValueError(
            f"reduce_network: no array of the network can be judged. {why}. Judged are weights that a matrix "
            "product or a convolution takes as they are: where they are quantised, normalised or shared with "
            "a transpose on the way, give a network with the weights that result in layers of their own."
        )
    return Traced(parts, Capture(traced, layers), layers, refused, trees[-1], behind)

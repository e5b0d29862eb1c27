"""A network as its operations for one row, in inference, with its layers found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.structure.flatten import flatten
from bmrjax.structure.network_arrays import Parts, checked_inputs, is_equinox, parts_of
from bmrjax.structure.weight_norm import finite_weight_norms
from bmrjax.trained.capture import Capture
from bmrjax.trained.layers import TracedLayer, find_layers

# The covariance of the inputs of a row is inverted for each row of weights.
MAX_INPUTS = 2048


@dataclass(frozen=True)
class Traced:
    """A network, taken apart.

    Attributes:
        parts: Its arrays, and how to put it together again.
        capture: Its operations for one row.
        layers: Weights that can be judged.
        refused: Every other array, and why it cannot.
    """

    parts: Parts
    capture: Capture
    layers: list[TracedLayer]
    refused: dict[str, str]


def trace(network: Any, inputs: Sequence[np.ndarray]) -> Traced:
    """Trace a network on one row and find its layers.

    Args:
        network: An Equinox module, written for one row; an ``(equinox module, State)`` pair; or a Flax NNX
            module, written for a batch.
        inputs: Rows of each input.

    Raises:
        TypeError: For anything but a network.
        ValueError: If it does not run on a row, does not return one array of numbers, or has no weights
            that can be judged.
    """
    if is_equinox(network):
        network = finite_weight_norms(network)
    parts = parts_of(network)
    count = len(parts.arrays)
    batched = not is_equinox(network)
    one = tuple(jnp.asarray(part[:1] if batched else part[0]) for part in inputs)
    checked_inputs("reduce_network", network, parts, one)

    def row(*values: Array) -> list[Array]:
        given = values[count:]
        outputs = parts.call(values[:count], [x[None] for x in given] if batched else given)
        return [x[0] if batched else x for x in jax.tree.leaves(outputs)]

    traced = flatten(row, *parts.arrays, *(jnp.asarray(part[0]) for part in inputs))
    outputs = traced.out_avals
    if len(outputs) != 1 or not jnp.issubdtype(outputs[0].dtype, jnp.floating):
        found = ", ".join(f"{x.dtype}{x.shape}" for x in outputs) or "nothing"
        raise ValueError(
            f"reduce_network: the network must return one array of floating-point numbers, got {found}; "
            "give a module around it that returns what the loss is a function of."
        )
    layers, refused = find_layers(traced.jaxpr, parts.names, parts.trained)
    for layer in layers:
        if (size := layer.index.shape[2]) > MAX_INPUTS:
            refused[layer.name] = f"an output is a sum over {size} inputs, {MAX_INPUTS} at most"
    layers = [layer for layer in layers if layer.index.shape[2] <= MAX_INPUTS]
    if not layers:
        why = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"reduce_network: no array of the network can be judged. {why}.")
    return Traced(parts, Capture(traced, layers), layers, refused)

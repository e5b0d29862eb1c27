"""The weights of layers as rows, each of which is fitted by itself, and back."""

from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bmrjax.trained.eliminate import WeightRow
from bmrjax.trained.layers import TracedLayer

# An n:m pattern: n of each m consecutive inputs stay.
Pattern = tuple[int, int]


def layer_weights(
    layer: TracedLayer, arrays: Sequence[Array]
) -> Float[np.ndarray, "groups outputs inputs"]:
    """Return the weights of a layer as float64, its bias behind them if it has one."""
    weights = np.asarray(arrays[layer.array], np.float64).ravel()[layer.index]
    if layer.bias is None:
        return weights
    array, places = layer.bias
    bias = np.asarray(arrays[array], np.float64).ravel()[places]
    return np.concatenate([weights, bias[..., None]], -1)


def rows_of(
    layers: Sequence[TracedLayer],
    arrays: Sequence[Array],
    *,
    left: Collection[int] = (),
    pattern: Pattern | None = None,
) -> list[WeightRow]:
    """Return the rows of all layers.

    Args:
        layers: The layers.
        arrays: Arrays of the network.
        left: Numbers of layers that are left alone: they have no rows.
        pattern: ``(n, m)``: no block of m consecutive inputs may lose more than m − n.

    Raises:
        ValueError: If blocks would cross the ends of the parts of a wide layer.
    """
    rows = []
    for k, layer in enumerate(layers):
        if k in left:
            continue
        weights = layer_weights(layer, arrays)
        groups, outputs, size = weights.shape
        fixed = np.zeros(size, bool)
        fixed[layer.index.shape[2] :] = True
        block = None if pattern is None else _blocks(layer, size, pattern)
        for group in range(groups):
            for output in range(outputs):
                room = None
                if pattern is not None and block is not None:
                    room = np.full(max(block.max(initial=-1) + 1, 1), pattern[1] - pattern[0])
                rows.append(
                    WeightRow(
                        k,
                        group,
                        output,
                        np.ones(size, bool),
                        weights[group, output].copy(),
                        fixed,
                        block,
                        room,
                    )
                )
    return rows


def _blocks(layer: TracedLayer, size: int, pattern: Pattern) -> np.ndarray:
    """Return the block of each input; −1 for a last one that is not full, and for a bias."""
    inputs, m = layer.index.shape[2], pattern[1]
    part = layer.part
    if part is not None and part.number + 1 < part.count and (inputs // layer.places) % m:
        raise ValueError(
            f"reduce_network: {layer.name} is wide and taken in parts of {inputs // layer.places} inputs or "
            f"channels, which pattern={pattern} does not divide; take blocks whose size is a power of "
            f"two, or leave={[layer.name]}."
        )
    channel, place = np.divmod(np.arange(inputs), layer.places)
    whole = inputs // layer.places // m
    block = np.full(size, -1)
    block[:inputs] = np.where(channel // m < whole, (channel // m) * layer.places + place, -1)
    return block


def filled(
    layers: Sequence[TracedLayer], arrays: Sequence[Array], rows: Sequence[WeightRow]
) -> list[Array]:
    """Return the network's arrays with the weights of rows in them."""
    found = [np.array(array) for array in arrays]
    for row in rows:
        layer = layers[row.layer]
        size = layer.index.shape[2]
        found[layer.array].reshape(-1)[layer.index[row.group, row.output]] = row.weights[:size]
        if layer.bias is not None:
            array, places = layer.bias
            found[array].reshape(-1)[places[row.group, row.output]] = row.weights[size]
    return [jnp.asarray(array, old.dtype) for array, old in zip(found, arrays, strict=True)]


def refresh(
    layers: Sequence[TracedLayer], arrays: Sequence[Array], rows: Sequence[WeightRow]
) -> None:
    """Set the weights of rows to those of a network's arrays."""
    weights = [layer_weights(layer, arrays) for layer in layers]
    for row in rows:
        row.weights[:] = weights[row.layer][row.group, row.output]


def masks_of(
    layers: Sequence[TracedLayer], arrays: Sequence[Array], rows: Sequence[WeightRow]
) -> dict[int, Bool[np.ndarray, "..."]]:
    """Return which weights stay, by number of the array."""
    found: dict[int, np.ndarray] = {}
    for row in rows:
        layer = layers[row.layer]
        mask = found.setdefault(layer.array, np.ones(arrays[layer.array].shape, bool))
        places = layer.index[row.group, row.output]
        mask.reshape(-1)[places] = row.keep[: len(places)]
    return found

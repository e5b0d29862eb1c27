"""The weights of layers as rows, each of which is fitted by itself, and back."""

from collections.abc import Collection, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bmrjax.trained.eliminate import WeightRow
from bmrjax.trained.layers import TracedLayer, layer_weights

# An n:m pattern: n of each m consecutive inputs stay.
Pattern = tuple[int, int]


def check_pattern(pattern: Pattern, function: str, *, units: bool) -> None:
    """Raise ValueError, in the name of a public function, for a pattern that is none, or of units."""
    if units:
        raise ValueError(f"{function}: pattern is of single weights; leave units out.")
    pair = isinstance(pattern, tuple | list) and len(pattern) == 2
    whole = pair and all(isinstance(x, int | np.integer) for x in pattern)
    if not whole or not 0 < pattern[0] < pattern[1]:
        raise ValueError(
            f"{function}: pattern is (n, m) with 0 < n < m, such as (2, 4); got {pattern!r}."
        )


def rows_of(
    layers: Sequence[TracedLayer],
    arrays: Sequence[Array],
    *,
    left: Collection[int] = (),
    fixed: Mapping[int, Bool[np.ndarray, " inputs"]] | None = None,
    pattern: Pattern | None = None,
) -> list[WeightRow]:
    """Return the rows of all layers.

    Args:
        layers: The layers.
        arrays: Arrays of the network.
        left: Numbers of layers that are left alone: they have no rows.
        fixed: By number of the layer: inputs whose weights stay, whatever they are worth.
        pattern: ``(n, m)``: no block of m consecutive inputs may lose more than m − n.
    """
    rows = []
    for k, layer in enumerate(layers):
        if k in left:
            continue
        weights = layer_weights(layer, arrays)
        groups, outputs, size = weights.shape
        stay = np.zeros(size, bool)
        stay[layer.index.shape[2] :] = True
        if fixed is not None and k in fixed:
            stay[: layer.index.shape[2]] = fixed[k]
        block = None if pattern is None else _blocks(layer, size, pattern[1])
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
                        stay,
                        block,
                        room,
                    )
                )
    return rows


def _blocks(layer: TracedLayer, size: int, m: int) -> np.ndarray:
    """Return the block of each input; −1 for a last one that is not full, and for a bias."""
    inputs = layer.index.shape[2]
    channel, place = np.divmod(np.arange(inputs), layer.places)
    whole = inputs // layer.places // m
    block = np.full(size, -1)
    block[:inputs] = np.where(channel // m < whole, (channel // m) * layer.places + place, -1)
    return block


def outside_blocks(
    layers: Sequence[TracedLayer], left: Collection[int], pattern: Pattern
) -> dict[str, str]:
    """Return, by name of the layer, what is said of inputs that are in no block of a pattern, and stay."""
    counts: dict[str, np.ndarray] = {}
    for k, layer in enumerate(layers):
        if k not in left:
            inputs = layer.index.shape[2]
            outside = int((_blocks(layer, inputs, pattern[1]) < 0).sum())
            channels = np.array([outside, inputs]) // layer.places
            counts[layer.name] = counts.get(layer.name, np.zeros(2, int)) + channels
    n, m = pattern
    block = f"block of {m} of the pattern {n}:{m}"
    return {
        f"{name}[inputs]": (
            f"all {of} inputs stay: they are fewer than a {block}"
            if some == of
            else f"the last {some} of {of} inputs stay: they make no whole {block}"
        )
        for name, (some, of) in counts.items()
        if some
    }


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
            place = places[row.group, row.output]
            # Each part has its share of the bias.
            before = 0.0 if layer.leads else found[array].reshape(-1)[place]
            found[array].reshape(-1)[place] = before + row.weights[size]
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

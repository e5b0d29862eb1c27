"""From the dense network to a sparse one, in rounds: curvature, removal, compensation, measurement."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float

from bmrjax.trained.eliminate import Removed, WeightRow, remove_elements
from bmrjax.trained.evaluation import Evaluation
from bmrjax.trained.fine_tune import TuneArrays
from bmrjax.trained.layers import TracedLayer, layer_parts, layer_weights
from bmrjax.trained.moments import Calibration, LayerMoments
from bmrjax.trained.quadratic import Quadratic, prior_precision
from bmrjax.trained.weight_rows import filled, masks_of, refresh

# Each round keeps this share of the weights.
RATIO = 0.85


@dataclass(frozen=True)
class PathRound:
    """What one round came to.

    Attributes:
        kept: Share of the judged weights that stay.
        loss: Predicted increase of the loss over all data since the dense network, in nats, at the
            temperature.
        removed: What was removed in the round.
        scores: Loss and metrics of each row that was kept out.
        packed: The arrays, without the weights that are removed.
    """

    kept: float
    loss: float
    removed: Removed
    scores: dict[str, Float[np.ndarray, " rows"]]
    packed: "Packed"


@dataclass(frozen=True)
class Packed:
    """Arrays of a network without their zeros."""

    values: tuple[np.ndarray, ...]
    bits: dict[int, np.ndarray]
    shapes: tuple[tuple[int, ...], ...]

    def mask(self, array: int) -> Bool[np.ndarray, "..."]:
        """Return which elements of an array stay."""
        shape = self.shapes[array]
        if array not in self.bits:
            return np.ones(shape, bool)
        size = int(np.prod(shape))
        return np.unpackbits(self.bits[array], count=size).astype(bool).reshape(shape)

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays."""
        found = []
        for i, value in enumerate(self.values):
            whole = value
            if i in self.bits:
                mask = self.mask(i)
                whole = np.zeros(mask.shape, value.dtype)
                whole[mask] = value
            found.append(whole)
        return found


def pack_arrays(arrays: Sequence[Array], masks: dict[int, Bool[np.ndarray, "..."]]) -> Packed:
    """Return arrays without the elements that masks remove."""
    host = [np.asarray(array) for array in arrays]
    values = tuple(x[masks[i]] if i in masks else x for i, x in enumerate(host))
    bits = {i: np.packbits(mask.ravel()) for i, mask in masks.items()}
    return Packed(values, bits, tuple(x.shape for x in host))


def quadratics_of(
    layers: Sequence[TracedLayer],
    moments: Sequence[LayerMoments],
    reference: Sequence[Array],
    scale: float,
    precisions: Sequence[float],
    current: Sequence[Array],
) -> list[list[Quadratic]]:
    """Return the quadratic loss of each layer and group.

    Args:
        layers: The layers.
        moments: Of each.
        reference: The prior keeps weights to these.
        scale: Number of data points over the temperature.
        precisions: Prior precision of each layer.
        current: Arrays at which the moments were taken.
    """
    return [
        [
            Quadratic(of, group, scale, precision, means[group], layer.bias is not None)
            for group in range(len(means))
        ]
        for layer, of, precision in zip(layers, moments, precisions, strict=True)
        for means in [_prior_means(layer, reference, current)]
    ]


def _prior_means(
    layer: TracedLayer, reference: Sequence[Array], current: Sequence[Array]
) -> Float[np.ndarray, "groups outputs inputs"]:
    """Return the reference weights; for one of n parts, the current ones moved an nth of the way to them."""
    means = layer_weights(layer, reference)
    if layer.part is None:
        return means
    before = layer_weights(layer, current)
    return before + (means - before) / layer.part.count


def prior_precisions(
    layers: Sequence[TracedLayer],
    moments: Sequence[LayerMoments],
    dense: Sequence[Array],
    scale: float,
) -> list[float]:
    """Return the prior precision of each layer by marginal likelihood; parts of a layer have one."""
    found: list[float] = []
    for parts in layer_parts(layers):
        weights = [layer_weights(layers[k], dense)[..., : layers[k].index.shape[2]] for k in parts]
        has_bias = layers[parts[0]].bias is not None
        of_layer = [(moments[k], w, has_bias) for k, w in zip(parts, weights, strict=True)]
        found += [prior_precision(of_layer, scale)] * len(parts)
    return found


def counts(start: int, last: float, ratio: float) -> list[int]:
    """Return how many weights stay after each round, so that a share `last` stays in the end."""
    kept, found = 1.0, []
    while kept * ratio > last * 1.02:
        kept *= ratio
        found.append(int(round(kept * start)))
    found.append(int(round(last * start)))
    return found


def after_round(
    layers: Sequence[TracedLayer],
    rows: Sequence[WeightRow],
    reference: list[Any],
    tune: TuneArrays | None,
) -> tuple[list[Any], list[Any], Packed]:
    """Return the arrays after a round, those that the next one refers to, and the arrays packed.

    Args:
        layers: Of the network.
        rows: Their weights, of which the round has removed some.
        reference: Arrays that this round refers to.
        tune: Trains the network between rounds.
    """
    arrays = filled(layers, reference, rows)
    masks = masks_of(layers, arrays, rows)
    if tune is not None:
        arrays = reference = tune(arrays, masks)
        refresh(layers, arrays, rows)
    return arrays, reference, pack_arrays(arrays, masks)


def precision_by_layer(
    layers: Sequence[TracedLayer], precisions: Sequence[float], left: Collection[int]
) -> dict[str, float]:
    """Return the prior precision of each layer that is judged, by its name.

    Args:
        layers: Of the network.
        precisions: Of all of them.
        left: Numbers of those that are left alone.
    """
    return {
        layer.name: precision
        for k, (layer, precision) in enumerate(zip(layers, precisions, strict=True))
        if k not in left
    }


def walk(
    layers: Sequence[TracedLayer],
    rows: list[WeightRow],
    dense: Sequence[Array],
    calibration: Calibration,
    evaluation: Evaluation,
    *,
    scale: float,
    last: float,
    ratio: float = RATIO,
    first: list[LayerMoments] | None = None,
    tune: TuneArrays | None = None,
    ends: Callable[[PathRound], bool | None] | None = None,
) -> tuple[list[PathRound], list[float]]:
    """Go from the dense network to a sparse one.

    Each round takes the curvature at the network as it is, what its layers put out in the dense network
    being what they are fitted to. So later rounds correct what earlier ones, and layers before, have
    changed.

    Args:
        layers: The layers.
        rows: Their rows; changed in place.
        dense: Arrays of the given network.
        calibration: Gives the moments.
        evaluation: Measures each round.
        scale: Number of data points over the temperature.
        last: Share of weights at which the path ends.
        ratio: Share of weights that each round keeps.
        first: Moments at the dense network, if they are known.
        tune: Trains between rounds. Later rounds fit what stays to the outputs of layers after training.
        ends: Is called after each round, and returns True after the last.

    Returns:
        The rounds, and the prior precision of each layer.
    """
    total = sum(row.free() for row in rows)
    steps: list[PathRound] = []
    arrays: list[Any] = list(dense)
    reference: list[Any] = list(dense)
    moments = calibration.moments(arrays) if first is None else first
    precisions = prior_precisions(layers, moments, dense, scale)
    loss, left = 0.0, total
    for count in counts(total, last, ratio):
        if steps:
            moments = calibration.moments(arrays, reference)
        quadratics = quadratics_of(layers, moments, reference, scale, precisions, arrays)
        removed = remove_elements(rows, quadratics, left - count)
        if len(removed.saliency) == 0:
            break
        left -= len(removed.saliency)
        loss += removed.loss
        arrays, reference, packed = after_round(layers, rows, reference, tune)
        steps.append(PathRound(left / total, loss, removed, evaluation(arrays), packed))
        if ends is not None and ends(steps[-1]):
            break
    return steps, precisions

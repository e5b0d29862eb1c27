"""The weights that stay at the chosen point of a path, fitted once more."""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.trained.choice import PathPoint, is_fine
from bmrjax.trained.eliminate import WeightRow
from bmrjax.trained.joint_fit import fit_together
from bmrjax.trained.output_fit import fit_outputs
from bmrjax.trained.path import Packed, pack_arrays, quadratics_of
from bmrjax.trained.points import measured_point
from bmrjax.trained.prepare_network import Prepared
from bmrjax.trained.quadratic import Quadratic
from bmrjax.trained.weight_rows import filled, masks_of, refresh

# Times that the layers are fitted one by one. All move at once and overshoot: after two times, layers in
# parts were left at a worse point.
SETTLE = 3

# Sets the weights of rows to their posterior mean, given the quadratic loss of each layer and group.
FitRows = Callable[[list[WeightRow], Sequence[Sequence[Quadratic]]], object]


def fit_once_more(
    ready: Prepared,
    packed: Packed,
    rows: list[WeightRow],
    refit: FitRows,
    scores: dict[str, np.ndarray],
    points: tuple[PathPoint, PathPoint],
    *,
    scale: float,
    precisions: Sequence[float],
    lose_at_most: float | None,
    choose: bool,
) -> tuple[Packed, PathPoint]:
    """Return the arrays of a point that held-out rows predict best, among some fits of what stays.

    Layer by layer, as on the path, with factors at where the weights are; and then, unless the point is as
    good as the dense one, all layers together.

    Args:
        ready: The network and its data.
        packed: Arrays of the point.
        rows: Of all layers; changed in place.
        refit: Fits the rows of layers that are not in parts.
        scores: Of the dense network.
        points: The dense one and that of the arrays.
        scale: Number of data points over the temperature.
        precisions: Prior precision of each layer.
        lose_at_most: As for `reduce_network`.
        choose: Whether held-out rows have chosen the point: then it has to stay one that they may choose.
    """
    first, point = points
    layers, dense = ready.traced.layers, ready.traced.parts.arrays

    def losses_at(arrays: Sequence[Array]) -> list[list[Quadratic]]:
        moments = ready.calibration.moments(arrays)
        return quadratics_of(layers, moments, dense, scale, precisions, arrays)

    def layer_by_layer(arrays: list[Array]) -> list[Array]:
        for _ in range(SETTLE):
            quadratics = losses_at(arrays)
            refit(rows, quadratics)
            refresh(layers, arrays, [row for row in rows if layers[row.layer].part is not None])
            products = partial(ready.calibration.products, arrays)
            fit_together(layers, rows, quadratics, arrays, products)
            arrays = filled(layers, dense, rows)
        return arrays

    def all_layers(arrays: list[Array]) -> list[Array]:
        loss = ready.output_loss()
        return fit_outputs(layers, rows, losses_at(arrays), dense, arrays, loss)

    arrays = [jnp.asarray(x) for x in packed.arrays()]
    for fit in (layer_by_layer, all_layers):
        if fit is all_layers and point.as_good:
            break  # there is nothing to gain
        fitted = fit(arrays)
        found = measured_point(scores, ready.evaluate(fitted), point)
        fine = not choose or is_fine(found, first, lose_at_most)
        if found.measured <= point.measured and fine:
            arrays, point = fitted, found
            packed = pack_arrays(fitted, masks_of(layers, fitted, rows))
    return packed, point

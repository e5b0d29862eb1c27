"""What one pass over calibration rows takes from a network: the factors of each layer's curvature."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bmrjax.trained.capture import Capture
from bmrjax.trained.losses import Loss

# Rows in one call, and numbers that go into layers in one call, at most.
CALIBRATION_BATCH = 256
CAPTURED = 2**24


class LayerMoments(NamedTuple):
    """Second moments of one layer, per row of data; positions of a convolution or a sequence add up.

    The inputs have a one behind them where the layer has a bias.

    Attributes:
        inputs: E[Σ x xᵀ], by group.
        targets: E[Σ x yᵀ], y what the given network puts out of the layer, by group.
        outputs: Diagonal of the curvature of the loss in the layer's outputs, a mean over positions.
    """

    inputs: Float[Array, "groups inputs inputs"]
    targets: Float[Array, "groups inputs outputs"]
    outputs: Float[Array, "groups outputs"]


class Calibration:
    """Moments of a network's layers on some rows.

    Args:
        capture: The network, laid open.
        loss: The loss.
        dense: Arrays of the given network: what its layers put out is what others are fitted to.
        inputs: Calibration rows: one array for each input of the network.
        targets: Their targets.
        key: Of the random directions in which the curvature is taken.
        num_directions: How many per row.
    """

    def __init__(
        self,
        capture: Capture,
        loss: Loss,
        dense: Sequence[Array],
        inputs: Sequence[np.ndarray],
        targets: Any,
        *,
        key: Array,
        num_directions: int = 2,
    ):
        self._capture, self._dense = capture, list(dense)
        self._inputs, self._targets, self._key = inputs, targets, key
        self._batch_size = max(
            1, min(CALIBRATION_BATCH, CAPTURED // max(capture.size(), 1), len(inputs[0]))
        )
        biases = [_bias_of(layer, dense) for layer in capture.layers]

        def row(
            arrays: Sequence[Array], dense: Sequence[Array], x: Any, y: Any, key: Array
        ) -> tuple[list[Any], list[Any], list[Any]]:
            outputs, ends, back = capture.run(arrays, x)
            _, dense_ends, _ = capture.run(dense, x)
            squares: Any = 0.0
            for k in jax.random.split(key, num_directions):
                gradients = back(loss.root(k, outputs, y))
                mine = [jnp.mean(g**2, 0) / num_directions for g in gradients]
                squares = (
                    mine if isinstance(squares, float) else jax.tree.map(jnp.add, squares, mine)
                )
            return [x for x, _ in ends], [z for _, z in dense_ends], squares

        @jax.jit
        def batch(
            arrays: Sequence[Array],
            dense: Sequence[Array],
            x: Any,
            y: Any,
            weight: Array,
            key: Array,
        ) -> list[LayerMoments]:
            keys = jax.random.split(key, weight.shape[0])
            xs, zs, squares = jax.vmap(row, (None, None, 0, 0, 0))(arrays, dense, x, y, keys)
            found = []
            for x_layer, z, g, bias in zip(xs, zs, squares, biases, strict=True):
                wide = jnp.promote_types(x_layer.dtype, jnp.float32)
                x_layer, z, g = (part.astype(wide) for part in (x_layer, z, g))
                if bias is not None:
                    z = z + bias
                    x_layer = jnp.concatenate([x_layer, jnp.ones_like(x_layer[..., :1])], -1)
                weighted = x_layer * weight[:, None, None, None]
                found.append(
                    LayerMoments(
                        jnp.einsum("ntgi,ntgj->gij", weighted, x_layer, precision="highest"),
                        jnp.einsum("ntgi,ntgo->gio", weighted, z, precision="highest"),
                        jnp.einsum("n,ngo->go", weight, g),
                    )
                )
            return found

        self._batch = batch

    def moments(self, arrays: Sequence[Array]) -> list[LayerMoments]:
        """Return the moments of each layer of the network with other arrays, as float64 on the host."""
        count = len(self._inputs[0])
        total: Any = None
        for start in range(0, count, self._batch_size):
            some = np.arange(start, start + self._batch_size)
            weight = jnp.asarray(some < count, jnp.float32)
            some = np.minimum(some, count - 1)
            x = tuple(jnp.asarray(part[some]) for part in self._inputs)
            y = jax.tree.map(lambda part, some=some: jnp.asarray(part[some]), self._targets)
            key = jax.random.fold_in(self._key, start)
            found = self._batch(list(arrays), self._dense, x, y, weight, key)
            found = jax.tree.map(lambda part: np.asarray(part, np.float64), found)
            total = found if total is None else jax.tree.map(np.add, total, found)
        total = jax.tree.map(lambda part: part / count, total)
        for layer, of in zip(self._capture.layers, total, strict=True):
            if not all(np.isfinite(part).all() for part in of):
                raise ValueError(
                    f"reduce_network: what goes into {layer.name}, or the gradient behind it, is not finite "
                    "on some row."
                )
        return [of._replace(inputs=_positive(of.inputs)) for of in total]


def _positive(moments: Float[np.ndarray, "groups n n"]) -> Float[np.ndarray, "groups n n"]:
    """Return second moments without the negative eigenvalues that single precision has left in them."""
    values, vectors = np.linalg.eigh(moments)
    return (vectors * np.maximum(values, 0)[:, None, :]) @ np.swapaxes(vectors, 1, 2)


def _bias_of(layer: Any, arrays: Sequence[Array]) -> Array | None:
    if layer.bias is None:
        return None
    array, places = layer.bias
    return arrays[array].ravel()[places]

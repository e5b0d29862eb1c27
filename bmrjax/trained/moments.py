"""What one pass over calibration rows takes from a network: the factors of each layer's curvature."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from bmrjax.trained.capture import Capture
from bmrjax.trained.losses import Loss

# Rows in one call, and numbers that go into layers in one call, at most.
CALIBRATION_BATCH = 256
CAPTURED = 2**24

# Positions of a convolution or a sequence are alike: so many of each row at least, others for each batch,
# and so many in all for each input that a layer sums over, tell its second moments.
POSITIONS = 32
SAMPLES = 256

# Random directions, over all rows, that tell the curvature.
DIRECTIONS = 2048

_lapack: Any = scipy.linalg.lapack


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
        num_directions: How many per row. By default one, and up to eight if rows are few.
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
        num_directions: int | None = None,
    ):
        self._capture, self._dense = capture, list(dense)
        self._inputs, self._targets, self._key = inputs, targets, key
        count = len(inputs[0])
        directions = num_directions or min(8, -(-DIRECTIONS // count))
        self._batch_size = max(
            1, min(CALIBRATION_BATCH, CAPTURED // max(capture.size(), 1), len(inputs[0]))
        )

        def row(
            arrays: Sequence[Array], dense: Sequence[Array], chosen: Any, x: Any, y: Any, key: Array
        ) -> tuple[list[Any], list[Any], list[Any]]:
            outputs, ends, back = capture.run(arrays, x, chosen)
            _, dense_ends, _ = capture.run(dense, x, chosen)
            squares: Any = 0.0
            for k in jax.random.split(key, directions):
                gradients = back(loss.root(k, outputs, y))
                mine = [jnp.mean(g**2, 0) / directions for g in gradients]
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
            chosen: Sequence[Array] | None,
            key: Array,
        ) -> list[LayerMoments]:
            keys = jax.random.split(key, weight.shape[0])
            xs, zs, squares = jax.vmap(row, (None, None, None, 0, 0, 0))(
                arrays, dense, chosen, x, y, keys
            )
            found = []
            biases = [_bias_of(layer, dense) for layer in capture.layers]
            shares = [n / used for n, used in self._positions]
            for x_layer, z, g, bias, share in zip(xs, zs, squares, biases, shares, strict=True):
                wide = jnp.promote_types(x_layer.dtype, jnp.float32)
                x_layer, z, g = (part.astype(wide) for part in (x_layer, z, g))
                if bias is not None:
                    z = z + bias
                    x_layer = jnp.concatenate([x_layer, jnp.ones_like(x_layer[..., :1])], -1)
                weighted = x_layer * (share * weight)[:, None, None, None]
                found.append(
                    LayerMoments(
                        jnp.einsum("ntgi,ntgj->gij", weighted, x_layer, precision="highest"),
                        jnp.einsum("ntgi,ntgo->gio", weighted, z, precision="highest"),
                        jnp.einsum("n,ngo->go", weight, g),
                    )
                )
            return found

        self._batch = batch
        self._positions = [
            (n, min(n, max(POSITIONS, -(-SAMPLES * layer.index.shape[2] // count))))
            for n, layer in zip(capture.positions(), capture.layers, strict=True)
        ]

    def _chosen(self, batch: int) -> list[Array] | None:
        """Return positions of each layer, sorted; None for all of all."""
        if all(n == used for n, used in self._positions):
            return None
        rng = np.random.default_rng(batch)
        return [jnp.asarray(np.sort(rng.permutation(n)[:used])) for n, used in self._positions]

    def moments(
        self, arrays: Sequence[Array], reference: Sequence[Array] | None = None
    ) -> list[LayerMoments]:
        """Return the moments of each layer of the network with other arrays, as float64 on the host.

        Args:
            arrays: Those.
            reference: What layers put out with these is what they are fitted to; by default the arrays of
                the given network.
        """
        dense = self._dense if reference is None else list(reference)
        count = len(self._inputs[0])
        total: Any = None
        for start in range(0, count, self._batch_size):
            some = np.arange(start, start + self._batch_size)
            weight = jnp.asarray(some < count, jnp.float32)
            some = np.minimum(some, count - 1)
            x = tuple(jnp.asarray(part[some]) for part in self._inputs)
            y = jax.tree.map(lambda part, some=some: jnp.asarray(part[some]), self._targets)
            key = jax.random.fold_in(self._key, start)
            chosen = self._chosen(start)
            found = self._batch(list(arrays), dense, x, y, weight, chosen, key)
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
    return np.stack([_regular(of) for of in moments])


def _regular(moments: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    diagonal = np.diagonal(moments)
    live = diagonal > 0
    # What never varies has no row and no column; the one stands for it in the test alone.
    test = moments + np.diag(np.where(live, 0.0, 1.0))
    for ridge in (1e-7, 1e-6, 1e-5):
        if _lapack.dpotrf(test + np.diag(ridge * diagonal), lower=1)[1] == 0:
            return moments + np.diag(ridge * diagonal)
    values, vectors = np.linalg.eigh(moments)
    return (vectors * np.maximum(values, 0)) @ vectors.T


def _bias_of(layer: Any, arrays: Sequence[Array]) -> Array | None:
    if layer.bias is None:
        return None
    array, places = layer.bias
    return arrays[array].ravel()[places]

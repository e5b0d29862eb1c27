"""What one pass over calibration rows takes from a network: the factors of each layer's curvature."""

import functools
from collections.abc import Iterator, Sequence
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

# Random directions, over all rows, that tell the curvature: a mean of squares per output, which so many know
# to a few per cent. Going back through the network is most of the cost of a pass.
DIRECTIONS = 2048

# Bytes of what the given network's layers put out, which are kept from pass to pass, at most.
KEPT_OUTPUTS = 2**25

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
        num_directions: How many per row. By default 2,048 in all, at most eight per row; one in some
            batches of rows for more rows than that.
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
        self._reference = self._dense
        self._inputs, self._targets, self._key = inputs, targets, key
        count = len(inputs[0])
        directions = num_directions or min(8, max(1, round(DIRECTIONS / count)))
        # One batch of so many goes back through the network.
        self._every = 1 if num_directions else max(1, round(count / DIRECTIONS))
        self._batch_size = max(
            1, min(CALIBRATION_BATCH, CAPTURED // max(capture.size(), 1), len(inputs[0]))
        )
        self._positions = [
            (n, min(n, max(POSITIONS, -(-SAMPLES * layer.index.shape[2] // count))))
            for n, layer in zip(capture.positions(), capture.layers, strict=True)
        ]
        outputs = sum(
            used * layer.index[..., 0].size
            for (_, used), layer in zip(self._positions, capture.layers, strict=True)
        )
        self._keep_outputs = 4 * outputs * count <= KEPT_OUTPUTS
        self._outputs: dict[int, list[Array]] = {}

        @jax.jit
        def dense_batch(dense: Sequence[Array], x: Any, chosen: Any) -> list[Array]:
            ends = jax.vmap(lambda x: capture.run(dense, x, chosen)[1])(x)
            biases = [_bias_of(layer, dense) for layer in capture.layers]
            return [
                z if bias is None else z + jnp.broadcast_to(bias, z.shape)
                for (_, z), bias in zip(ends, biases, strict=True)
            ]

        def row(
            arrays: Sequence[Array], chosen: Any, x: Any, y: Any, key: Array
        ) -> tuple[list[Any], list[Any]]:
            outputs, ends, back = capture.run(arrays, x, chosen)

            def square(key: Array) -> list[Array]:
                return [jnp.mean(g**2, 0) for g in back(loss.root(key, outputs, y))]

            squares = jax.vmap(square)(jax.random.split(key, directions))
            return [x for x, _ in ends], [jnp.mean(part, 0) for part in squares]

        @functools.partial(jax.jit, static_argnames="back")
        def batch(
            arrays: Sequence[Array],
            zs: Sequence[Array],
            x: Any,
            y: Any,
            weight: Array,
            chosen: Sequence[Array] | None,
            key: Array,
            *,
            back: bool,
        ) -> list[LayerMoments]:
            if back:
                keys = jax.random.split(key, weight.shape[0])
                xs, squares = jax.vmap(row, (None, None, 0, 0, 0))(arrays, chosen, x, y, keys)
            else:
                ends = jax.vmap(lambda x: capture.run(arrays, x, chosen)[1])(x)
                xs = [x for x, _ in ends]
                squares = [
                    jnp.zeros((len(weight), *layer.index.shape[:2])) for layer in capture.layers
                ]
            found = []
            shares = [n / used for n, used in self._positions]
            for layer, x_layer, z, g, share in zip(
                capture.layers, xs, zs, squares, shares, strict=True
            ):
                wide = jnp.promote_types(x_layer.dtype, jnp.float32)
                x_layer, z, g = (part.astype(wide) for part in (x_layer, z, g))
                if layer.bias is not None:
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

        self._batch, self._dense_batch = batch, dense_batch

    def _batches(self) -> Iterator[tuple[int, tuple[Array, ...], Any, np.ndarray]]:
        """Yield first rows, inputs, targets and row numbers of batches, all of one size."""
        count = len(self._inputs[0])
        for start in range(0, count, self._batch_size):
            rows = np.arange(start, start + self._batch_size)
            some = np.minimum(rows, count - 1)
            x = tuple(jnp.asarray(part[some]) for part in self._inputs)
            y = jax.tree.map(lambda part, some=some: jnp.asarray(part[some]), self._targets)
            yield start, x, y, rows

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
        if any(x is not y for x, y in zip(dense, self._reference, strict=True)):
            self._reference, self._outputs = dense, {}
        count, went_back = len(self._inputs[0]), 0
        total: Any = None
        for start, x, y, rows in self._batches():
            there = rows < count
            weight = jnp.asarray(there, jnp.float32)
            back = start // self._batch_size % self._every == 0
            went_back += int(np.sum(there)) if back else 0
            key = jax.random.fold_in(self._key, start)
            chosen = self._chosen(start)
            zs = self._outputs.get(start)
            if zs is None:
                zs = self._dense_batch(dense, x, chosen)
                if self._keep_outputs:
                    self._outputs[start] = zs
            found = self._batch(list(arrays), zs, x, y, weight, chosen, key, back=back)
            found = jax.tree.map(lambda part: np.asarray(part, np.float64), found)
            total = found if total is None else jax.tree.map(np.add, total, found)
        total = [
            LayerMoments(of.inputs / count, of.targets / count, of.outputs / went_back)
            for of in total
        ]
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

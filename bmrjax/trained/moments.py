"""What one pass over calibration rows takes from a network: the factors of each layer's curvature."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.backend.random_keys import fold_in
from bmrjax.backend.threefry import unrolled
from bmrjax.trained.capture import Capture
from bmrjax.trained.evaluation import rows_at
from bmrjax.trained.layers import TracedLayer, layer_parts, layer_weights
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

# Passes over the rows in one reduction, roughly: how long a program may be compiled.
PASSES = 16

# Bytes of what the given network's layers put out, which are kept from pass to pass, at most.
KEPT_OUTPUTS = 2**25

_lapack: Any = scipy.linalg.lapack


class LayerMoments(NamedTuple):
    """Second moments of one layer, per row of data; positions of a convolution or a sequence add up.

    The inputs have a one behind them where the layer has a bias.

    Attributes:
        inputs: E[Σ x xᵀ], by group.
        targets: E[Σ x yᵀ], y what the given network puts out of the layer, by group. For one of n parts
            of a layer, y is the part's own present output and an nth of what the layer's present outputs
            lack. Without removals and without the prior, the outputs of the layer then come nearer.
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
        self._positions: list[tuple[int, int]] = []
        for n, layer in zip(capture.positions(), capture.layers, strict=True):
            wanted = max(POSITIONS, -(-SAMPLES * layer.index.shape[2] // count))
            # Parts of one layer have the same positions.
            self._positions.append((n, min(n, wanted)) if layer.leads else self._positions[-1])
        outputs = sum(
            used * layer.index[..., 0].size
            for (_, used), layer in zip(self._positions, capture.layers, strict=True)
            if layer.leads
        )
        self._keep_outputs = 4 * outputs * count <= KEPT_OUTPUTS
        self._outputs: dict[int, list[Array]] = {}

        batches = -(-count // self._batch_size)

        def dense_outputs(dense: Sequence[Array], x: Any, chosen: Any) -> list[Array]:
            ends = jax.vmap(lambda x: capture.run(dense, x, chosen)[1])(x)
            return [
                _add_bias(z, layer, dense)
                for layer, (_, z) in zip(capture.layers, ends, strict=True)
                if layer.leads
            ]

        shares = [n / used for n, used in self._positions]

        def ends(
            arrays: Sequence[Array], zs: Sequence[Array], x: Any, weight: Array, chosen: Any
        ) -> list[tuple[Array, Array]]:
            found, wanted = [], iter(zs)
            run = jax.vmap(lambda x: capture.run(arrays, x, chosen)[1])(x)
            z = jnp.zeros(())
            for layer, (x_layer, now), share in zip(capture.layers, run, shares, strict=True):
                wide = jnp.promote_types(x_layer.dtype, jnp.float32)
                x_layer = x_layer.astype(wide)
                if layer.leads:
                    z = next(wanted).astype(wide)
                    if layer.part is not None:  # what the outputs lack: the same for all parts
                        z = z - _add_bias(now.astype(wide), layer, arrays)
                if layer.bias is not None:
                    x_layer = jnp.concatenate([x_layer, jnp.ones_like(x_layer[..., :1])], -1)
                weighted = x_layer * (share * weight)[:, None, None, None]
                found.append((_sums(weighted, x_layer), _sums(weighted, z)))
            return found

        def products(
            arrays: Sequence[Array],
            weights: dict[int, Array],
            biases: dict[int, Array],
            x: Any,
            weight: Array,
            chosen: Any,
        ) -> tuple[dict[int, Array], dict[int, Array]]:
            def added(weights: dict[int, Array], biases: dict[int, Array]) -> dict[int, Array]:
                z = jax.vmap(lambda x: capture.responses(arrays, x, weights, chosen))(x)
                return z | {k: z[k] + jnp.broadcast_to(of, z[k].shape) for k, of in biases.items()}

            z, back = jax.vjp(added, weights, biases)
            return back({k: of * (shares[k] * weight)[:, None, None, None] for k, of in z.items()})

        def curvature(
            arrays: Sequence[Array], x: Any, y: Any, weight: Array, key: Array
        ) -> list[Array]:
            def row(x: Any, y: Any, key: Array) -> list[Array]:
                outputs, back = capture.gradients(arrays, x)

                def square(key: Array) -> list[Array]:
                    found = back(loss.root(key, outputs, y))
                    wide = [g.astype(jnp.promote_types(g.dtype, jnp.float32)) for g in found]
                    return [jnp.mean(g**2, 0) for g in wide]

                squares = jax.vmap(square)(jax.random.split(key, directions))
                return [jnp.mean(part, 0) for part in squares]

            squares = jax.vmap(row)(x, y, jax.random.split(key, weight.shape[0]))
            return [
                jnp.einsum("n,ngo->go", weight, g.astype(jnp.promote_types(g.dtype, jnp.float32)))
                for g in squares
            ]

        self._dense_outputs = quick_jit(
            dense_outputs,
            num_calls=batches if self._keep_outputs else PASSES * batches,
            mostly_products=True,
        )
        self._ends = quick_jit(ends, num_calls=PASSES * batches, mostly_products=True)
        self._products = quick_jit(products, num_calls=PASSES * batches, mostly_products=True)
        self._curvature = quick_jit(
            curvature,
            num_calls=max(PASSES * batches // self._every, batches),
            mostly_products=True,
        )

    def _batches(self) -> Iterator[tuple[int, tuple[Array, ...], Any, np.ndarray]]:
        """Yield first rows, inputs, targets and row numbers of batches, all of one size."""
        count = len(self._inputs[0])
        for start in range(0, count, self._batch_size):
            rows = np.arange(start, start + self._batch_size)
            some = np.minimum(rows, count - 1)
            x, y = rows_at(self._inputs, self._targets, some)
            yield start, x, y, rows

    def _chosen(self, batch: int) -> list[Array] | None:
        """Return positions of each layer, sorted; None for all of all."""
        if all(n == used for n, used in self._positions):
            return None
        rng = np.random.default_rng(batch)
        found: list[Array] = []
        for (n, used), layer in zip(self._positions, self._capture.layers, strict=True):
            if layer.leads:
                found.append(jnp.asarray(np.sort(rng.permutation(n)[:used])))
            else:
                found.append(found[-1])
        return found

    def moments(
        self,
        arrays: Sequence[Array],
        reference: Sequence[Array] | None = None,
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
        count = len(self._inputs[0])
        total: Any = None
        curvature: Any = None
        went_back = 0
        for start, x, y, rows in self._batches():
            number = start // self._batch_size
            there = rows < count
            weight = jnp.asarray(there, jnp.float32)
            chosen = self._chosen(start)
            zs = self._outputs.get(start)
            if zs is None:
                zs = self._dense_outputs(dense, x, chosen)
                if self._keep_outputs:
                    self._outputs[start] = zs
            found = self._ends(list(arrays), zs, x, weight, chosen)
            total = _sum(total, found)
            if number % self._every == 0:
                key = fold_in(self._key, np.uint32(start))
                squares = self._curvature(list(arrays), x, y, weight, unrolled(key))
                curvature = _sum(curvature, squares)
                went_back += int(np.sum(there))
        outputs = [of / went_back for of in curvature]
        total = [
            # As a product, it is symmetric up to rounding alone.
            LayerMoments((inputs + np.swapaxes(inputs, 1, 2)) / (2 * count), targets / count, of)
            for (inputs, targets), of in zip(total, outputs, strict=True)
        ]
        for layer, of in zip(self._capture.layers, total, strict=True):
            if not all(np.isfinite(part).all() for part in of):
                raise ValueError(
                    f"reduce_network: what goes into {layer.name}, or the gradient behind it, is not finite "
                    "on some row."
                )
        total = [of._replace(inputs=_positive(of.inputs)) for of in total]
        return [_of_part(of, k, arrays) for of, k in zip(total, self._capture.layers, strict=True)]

    def products(
        self,
        arrays: Sequence[Array],
        changes: Mapping[int, Float[np.ndarray, "groups outputs inputs"]],
    ) -> dict[int, Float[np.ndarray, "groups outputs inputs"]]:
        """Return changes of the weights of layers times the second moments of all their inputs.

        Args:
            arrays: Arrays of the network at which the moments are taken.
            changes: By number of the layer; all parts of a layer, or none.

        Returns:
            E[Σ y xᵀ] for each: y is what all changes of the layer add to its outputs, x the part's inputs.
        """
        layers = self._capture.layers
        weights: dict[int, Array] = {}
        biases: dict[int, Array] = {}
        for parts in layer_parts(layers):
            if (lead := parts[0]) in changes:
                sizes = {k: layers[k].index.shape[2] for k in parts}
                whole = np.concatenate([changes[k][..., :n] for k, n in sizes.items()], -1)
                weights[lead] = jnp.asarray(whole, jnp.float32)
                if layers[lead].bias is not None:
                    biases[lead] = jnp.asarray(sum(changes[k][..., -1] for k in parts), jnp.float32)
        total: Any = None
        for start, x, _, rows in self._batches():
            weight = jnp.asarray(rows < len(self._inputs[0]), jnp.float32)
            chosen = self._chosen(start)
            total = _sum(total, self._products(list(arrays), weights, biases, x, weight, chosen))
        found: dict[int, np.ndarray] = {}
        for parts in layer_parts(layers):
            if (lead := parts[0]) in changes:
                of = total[0][lead] / len(self._inputs[0])
                ends = np.cumsum([layers[k].index.shape[2] for k in parts])[:-1]
                found |= dict(zip(parts, np.split(of, ends, -1), strict=True))
                if lead in biases:
                    bias = total[1][lead][..., None] / len(self._inputs[0])
                    found |= {k: np.concatenate([found[k], bias], -1) for k in parts}
        return found


def _sums(
    x: Float[Array, "rows positions groups m"], y: Float[Array, "rows positions groups n"]
) -> Float[Array, "groups m n"]:
    """Return Σ x yᵀ over rows and positions, by group."""
    # With one group, a plain product: with more axes, XLA moves numbers about for longer than it adds.
    if x.shape[2] == 1:
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        return jnp.matmul(x.T, y, precision="highest")[None]
    return jnp.einsum("ntgi,ntgj->gij", x, y, precision="highest")


def _sum(total: Any, part: Any) -> Any:
    """Return the sum of two trees as float64 on the host; None is nothing."""
    part = jax.tree.map(lambda of: np.asarray(of, np.float64), part)
    return part if total is None else jax.tree.map(np.add, total, part)


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


def _of_part(moments: LayerMoments, layer: TracedLayer, arrays: Sequence[Array]) -> LayerMoments:
    """Return moments whose targets are those of a part, from E[Σ x rᵀ], r what the layer's outputs lack."""
    if layer.part is None:
        return moments
    own = moments.inputs @ np.swapaxes(layer_weights(layer, arrays), 1, 2)
    return moments._replace(targets=own + moments.targets / layer.part.count)


def _add_bias(z: Array, layer: TracedLayer, arrays: Sequence[Array]) -> Array:
    """Return the outputs of a product with the bias of its layer, if it has one."""
    if layer.bias is None:
        return z
    array, places = layer.bias
    return z + jnp.broadcast_to(arrays[array].ravel()[places], z.shape)

"""Fit the kept weights of all layers together, to what the given network puts out."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from threadpoolctl import ThreadpoolController

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.trained.capture import Capture
from bmrjax.trained.eliminate import WeightRow
from bmrjax.trained.evaluation import rows_at
from bmrjax.trained.joint_fit import block_width, row_factors, solved
from bmrjax.trained.layers import TracedLayer, layer_weights
from bmrjax.trained.losses import Loss
from bmrjax.trained.moments import CALIBRATION_BATCH
from bmrjax.trained.quadratic import Quadratic
from bmrjax.trained.weight_rows import filled

# Gauss-Newton steps and the conjugate gradients in each. Both end where one gains less than this share of
# what all of them have gained.
NEWTON_STEPS = 3
CONJUGATE_STEPS = 8
LEAST_GAIN = 0.03
# Rows that tell the curvature, other ones for each Gauss-Newton step; values and gradients are of all.
CURVATURE_ROWS = 1024
# A step that does not lower the loss is halved, so often.
HALVINGS = 3

_blas_threads = ThreadpoolController()


class OutputLoss:
    """The mean loss of a network's outputs over rows, and its derivatives in the weights of all layers.

    Args:
        capture: The network.
        loss: The loss.
        inputs: Rows, one array for each input.
        targets: What the outputs are to be: predictions of the given network, in the form of targets.
    """

    def __init__(
        self, capture: Capture, loss: Loss, inputs: Sequence[np.ndarray], targets: Any
    ) -> None:
        self._inputs, self._targets = inputs, targets
        biases = {layer.bias[0] for layer in capture.layers if layer.bias is not None}
        self.moved: list[int] = sorted({layer.array for layer in capture.layers} | biases)

        def outputs(moved: Sequence[Array], arrays: Sequence[Array], x: Any) -> Array:
            of = dict(zip(self.moved, moved, strict=True))
            given = [of.get(i, array) for i, array in enumerate(arrays)]
            return jax.vmap(lambda x: capture.outputs(given, x))(x)

        def of_outputs(z: Array, y: Any, weight: Array) -> Array:
            return jnp.sum(weight * jax.vmap(loss.value)(z, y))

        def split(arrays: Sequence[Array]) -> list[Array]:
            return [arrays[i] for i in self.moved]

        def value(arrays: Sequence[Array], x: Any, y: Any, weight: Array) -> Array:
            return of_outputs(outputs(split(arrays), arrays, x), y, weight)

        def gradient(arrays: Sequence[Array], x: Any, y: Any, weight: Array) -> list[Array]:
            z, back = jax.vjp(lambda moved: outputs(moved, arrays, x), split(arrays))
            return back(jax.grad(of_outputs)(z, y, weight))[0]

        def times(
            arrays: Sequence[Array], change: Sequence[Array], x: Any, y: Any, weight: Array
        ) -> list[Array]:
            run = lambda moved: outputs(moved, arrays, x)  # noqa: E731 - differentiated twice
            z, dz = jax.jvp(run, (split(arrays),), (list(change),))
            _, curved = jax.jvp(lambda z: jax.grad(of_outputs)(z, y, weight), (z,), (dz,))
            return jax.vjp(run, split(arrays))[1](curved)[0]

        self._size = min(CALIBRATION_BATCH, len(inputs[0]))
        batches = -(-len(inputs[0]) // self._size)
        calls = {value: NEWTON_STEPS, gradient: NEWTON_STEPS, times: NEWTON_STEPS * CONJUGATE_STEPS}
        self._value, self._gradient, self._times = (
            quick_jit(of, num_calls=count * batches, mostly_products=True)
            for of, count in calls.items()
        )

    def _batches(self, first: int = 0, most: int | None = None) -> Iterator[tuple[Any, Any, Array]]:
        """Yield inputs, targets and shares of batches of all rows, or of so many from the first one on."""
        whole = len(self._inputs[0])
        count = whole if most is None else min(most, whole)
        for start in range(0, count, self._size):
            rows = np.arange(start, start + self._size)
            some = (first + np.minimum(rows, count - 1)) % whole
            x, y = rows_at(self._inputs, self._targets, some)
            yield x, y, jnp.asarray(rows < count, jnp.float32) / count

    def value(self, arrays: Sequence[Array]) -> float:
        """Return the mean loss of a row, in nats."""
        return sum(float(self._value(list(arrays), *batch)) for batch in self._batches())

    def gradient(self, arrays: Sequence[Array]) -> list[np.ndarray]:
        """Return the gradient of the mean loss in the arrays `moved`, as float64 on the host."""
        return _sum(self._gradient(list(arrays), *batch) for batch in self._batches())

    def times(
        self, arrays: Sequence[Array], change: Sequence[np.ndarray], turn: int
    ) -> list[np.ndarray]:
        """Return the Gauss-Newton curvature of the mean loss times a change of the arrays `moved`.

        Args:
            arrays: Arrays of the network.
            change: Of those that move.
            turn: The curvature is that of some rows, of others for each number.
        """
        given = [jnp.asarray(of, arrays[i].dtype) for i, of in zip(self.moved, change, strict=True)]
        some = self._batches(turn * CURVATURE_ROWS, CURVATURE_ROWS)
        return _sum(self._times(list(arrays), given, *batch) for batch in some)


def _sum(parts: Iterator[list[Array]]) -> list[np.ndarray]:
    total: list[np.ndarray] = []
    for part in parts:
        of = [np.asarray(array, np.float64) for array in part]
        total = [a + b for a, b in zip(total, of, strict=True)] if total else of
    return total


def fit_outputs(
    layers: Sequence[TracedLayer],
    rows: Sequence[WeightRow],
    quadratics: Sequence[Sequence[Quadratic]],
    dense: Sequence[Array],
    arrays: Sequence[Array],
    loss: OutputLoss,
) -> list[Array]:
    """Move the weights that rows keep, so that the outputs come nearer to those of the given network.

    A few Gauss-Newton steps towards the posterior mode of all kept weights together. Each is solved by
    conjugate gradients, preconditioned by the curvature of each row. What one layer lacks, those behind it
    make up for, which fits of the layers one by one cannot do. A loss that is not convex in the outputs ends
    the conjugate gradients where the curvature is not positive.

    Args:
        layers: All layers of the network.
        rows: Their rows; changed in place.
        quadratics: By layer and group, at about these arrays.
        dense: Arrays of the given network: the prior keeps weights to these.
        arrays: Those to begin with.
        loss: Of the outputs.

    Returns:
        Arrays of the network with these weights, in the order of `arrays`.

    References:
        Martens (2010), ICML, for Gauss-Newton steps by conjugate gradients.
    """
    system = _System(layers, rows, quadratics, dense, arrays, loss)
    with _blas_threads.limit(limits=1, user_api="blas"):
        return system.solve()


class _System:
    def __init__(
        self,
        layers: Sequence[TracedLayer],
        rows: Sequence[WeightRow],
        quadratics: Sequence[Sequence[Quadratic]],
        dense: Sequence[Array],
        arrays: Sequence[Array],
        loss: OutputLoss,
    ):
        self._layers, self._rows, self._loss = layers, rows, loss
        self._arrays = list(arrays)
        of = [quadratics[row.layer][row.group] for row in rows]
        self._scale = of[0].scale
        self._delta = np.concatenate([q.prior_precisions for q in of])
        self._keep = np.concatenate([row.keep for row in rows])
        start, now = (
            [layer_weights(layer, given) for layer in layers] for given in (dense, arrays)
        )
        self._dense = self._of_rows(start)
        self._weights = np.where(self._keep, self._of_rows(now), 0.0)
        width = block_width(int(self._keep.sum()))
        self._blocks = []
        first = 0
        for row, quadratic in zip(rows, of, strict=True):
            for where, factor in row_factors(row, quadratic, width):
                self._blocks.append((first + where, factor))
            first += len(row.keep)

    def _of_rows(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([weights[row.layer][row.group, row.output] for row in self._rows])

    def _arrays_at(self, weights: np.ndarray) -> list[Array]:
        first = 0
        for row in self._rows:
            row.weights[:] = weights[first : first + len(row.keep)]
            first += len(row.keep)
        return filled(self._layers, self._arrays, self._rows)

    def _scattered(self, change: np.ndarray) -> list[np.ndarray]:
        """Return a change of the rows as one of the arrays that move."""
        found = {i: np.zeros(self._arrays[i].size) for i in self._loss.moved}
        first = 0
        for row in self._rows:
            layer, of = self._layers[row.layer], change[first : first + len(row.keep)]
            places = layer.index[row.group, row.output]
            found[layer.array][places] = of[: len(places)]
            if layer.bias is not None:
                array, biases = layer.bias
                found[array][biases[row.group, row.output]] += of[len(places)]
            first += len(row.keep)
        return [found[i].reshape(self._arrays[i].shape) for i in self._loss.moved]

    def _gathered(self, gradient: Sequence[np.ndarray]) -> np.ndarray:
        """Return a gradient in the arrays that move as one in the kept weights of rows."""
        by_array = dict(zip(self._loss.moved, (g.ravel() for g in gradient), strict=True))
        parts = []
        for row in self._rows:
            layer = self._layers[row.layer]
            parts.append(by_array[layer.array][layer.index[row.group, row.output]])
            if layer.bias is not None:
                array, biases = layer.bias
                parts.append(by_array[array][biases[row.group, row.output]][None])
        return np.where(self._keep, np.concatenate(parts), 0.0)

    def _total(self, weights: np.ndarray) -> float:
        prior = 0.5 * np.sum(self._delta * self._keep * (weights - self._dense) ** 2)
        return self._scale * self._loss.value(self._arrays_at(weights)) + float(prior)

    def _pull(self, weights: np.ndarray) -> np.ndarray:
        """Return minus the gradient."""
        gradient = self._gathered(self._loss.gradient(self._arrays_at(weights)))
        return -self._scale * gradient - self._delta * self._keep * (weights - self._dense)

    def _preconditioned(self, vector: np.ndarray) -> np.ndarray:
        found = np.zeros_like(vector)
        for where, factor in self._blocks:
            found[where] = solved(factor, vector[where])
        return found

    def solve(self) -> list[Array]:
        now = self._total(self._weights)
        first = now
        for turn in range(NEWTON_STEPS):
            change = self._newton_step(turn)
            size, lower = 1.0, now
            for _ in range(HALVINGS + 1):
                lower = self._total(self._weights + size * change)
                if lower < now:
                    break
                size /= 2
            if not lower < now:
                break
            self._weights = self._weights + size * change
            gain, now = now - lower, lower
            if gain <= LEAST_GAIN * (first - now):
                break
        return self._arrays_at(self._weights)

    def _newton_step(self, turn: int) -> np.ndarray:
        arrays = self._arrays_at(self._weights)
        residual = self._pull(self._weights)
        change = np.zeros_like(residual)
        direction = fresh = self._preconditioned(residual)
        square, total = float(residual @ fresh), 0.0
        for _ in range(CONJUGATE_STEPS):
            of_loss = self._loss.times(arrays, self._scattered(direction), turn)
            times = self._scale * self._gathered(of_loss) + self._delta * self._keep * direction
            curvature = float(direction @ times)
            if not (curvature > 0 and square > 0):
                break
            size = square / curvature
            change = change + size * direction
            residual = residual - size * times
            gain = 0.5 * size * square
            total += gain
            if gain <= LEAST_GAIN * total:
                break
            fresh = self._preconditioned(residual)
            square, before = float(residual @ fresh), square
            direction = fresh + square / before * direction
        return change

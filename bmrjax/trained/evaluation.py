"""The loss of a network on rows that were kept out, row by row, and what it tells between two networks."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.trained.capture import Capture
from bmrjax.trained.losses import Loss

EVALUATION_BATCH = 256

# Points that are measured in one reduction, roughly: how long a program may be compiled.
PATH_POINTS = 16

# One-sided 5 % of a normal distribution.
QUANTILE = 1.6449


class Evaluation:
    """Loss and metrics on some rows.

    Args:
        capture: The network.
        loss: The loss.
        inputs: One array for each input of the network.
        targets: Their targets.
    """

    def __init__(self, capture: Capture, loss: Loss, inputs: Sequence[np.ndarray], targets: Any):
        self._inputs, self._targets = inputs, targets

        def batch(arrays: Sequence[Array], x: Any, y: Any) -> dict[str, Array]:
            def row(x: Any, y: Any) -> dict[str, Array]:
                outputs = capture.outputs(arrays, x)
                return {"loss": loss.value(outputs, y), **loss.metrics(outputs, y)}

            return jax.vmap(row)(x, y)

        calls = PATH_POINTS * -(-len(inputs[0]) // EVALUATION_BATCH)
        self._batch = quick_jit(batch, num_calls=calls, mostly_products=True)

    def __call__(self, arrays: Sequence[Array]) -> dict[str, Float[np.ndarray, " rows"]]:
        """Return the loss and the metrics of each row."""
        count = len(self._inputs[0])
        size = min(EVALUATION_BATCH, count)
        found = []
        for start in range(0, count, size):
            some = np.minimum(np.arange(start, start + size), count - 1)
            x, y = rows_at(self._inputs, self._targets, some)
            rows = self._batch(list(arrays), x, y)
            found.append({k: np.asarray(v, np.float64)[: count - start] for k, v in rows.items()})
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def rows_at(
    inputs: Sequence[np.ndarray], targets: Any, some: Int[np.ndarray, " rows"]
) -> tuple[tuple[Array, ...], Any]:
    """Return some rows of the inputs and the targets of a network."""
    x = tuple(jnp.asarray(part[some]) for part in inputs)
    return x, jax.tree.map(lambda part: jnp.asarray(part[some]), targets)


def increase(
    dense: Float[np.ndarray, " rows"], other: Float[np.ndarray, " rows"]
) -> tuple[float, float]:
    """Return the mean of the paired differences, and its standard error."""
    difference = other - dense
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))

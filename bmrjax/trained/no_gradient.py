"""Layers that matter to the outputs, and that no gradient of the loss reaches."""

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.run.diagnose import Finding
from bmrjax.trained.evaluation import Evaluation
from bmrjax.trained.layers import TracedLayer, layer_parts
from bmrjax.trained.moments import LayerMoments

WHY = (
    "no gradient of the loss reaches it, or some of its outputs (stop_gradient, sign, round, argmax), so "
    "what its weights are worth is not known"
)
# By which part weights move.
_MOVE = 0.05
# Part of the rows whose loss changes where some outputs of a layer, and not all, have no gradient.
_MOST = 0.5


def without_gradient(
    layers: Sequence[TracedLayer],
    dense: Sequence[Array],
    moments: Sequence[LayerMoments],
    evaluate: Evaluation,
    losses: Any,
) -> set[int]:
    """Return the numbers of the layers with outputs that have no curvature and change the loss.

    Outputs that nothing reads, and units that are dead, have no curvature either; but the loss of most rows
    stays as it is when their weights move a little.

    Args:
        layers: Of the network.
        dense: Arrays of the given network.
        moments: Of its layers.
        evaluate: Gives losses of rows that are kept out.
        losses: Of the given network there.
    """
    found: set[int] = set()
    for parts in layer_parts(layers):
        flat = np.asarray(moments[parts[0]].outputs) == 0
        if not flat.any():
            continue
        array = layers[parts[0]].array
        weights = np.array(dense[array])
        at = np.concatenate([layers[k].index[flat].ravel() for k in parts])
        moved = np.random.default_rng(parts[0]).uniform(1 - _MOVE, 1 + _MOVE, len(at))
        weights.reshape(-1)[at] *= moved.astype(weights.dtype)
        arrays = list(dense)
        arrays[array] = jnp.asarray(weights)
        changed = np.asarray(evaluate(arrays)["loss"]) != np.asarray(losses)
        # Some units of a layer may be dead on the calibration rows, and alive on a few others.
        if changed.mean() >= _MOST if not flat.all() else changed.any():
            found.update(parts)
    return found


def no_gradient(layers: Sequence[TracedLayer], unknown: Collection[int]) -> list[Finding]:
    """Return a finding if some layers were left as they are.

    Args:
        layers: Of the network.
        unknown: Numbers of those that `without_gradient` returns.
    """
    names = dict.fromkeys(layers[k].name for k in sorted(unknown))
    if not names:
        return []
    return [
        Finding(
            "no-gradient",
            "; ".join(f"{name} was left alone: {WHY}" for name in names) + ".",
            "Reduce the part of the network behind it by itself, or give it a gradient: x + "
            "jax.lax.stop_gradient(f(x) - x) in place of f(x). Derivatives of jax.custom_vjp are not used.",
        )
    ]


def why_left(
    layers: Sequence[TracedLayer], left: Collection[int], unknown: Collection[int]
) -> dict[str, str]:
    """Return the names of the layers that are left alone, with the reason.

    Args:
        layers: Of the network.
        left: Numbers of those that are left alone.
        unknown: Numbers of those that `without_gradient` returns, which are among them.
    """
    return {layers[k].name: WHY if k in unknown else "left alone, as asked" for k in left}

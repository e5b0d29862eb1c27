"""Layers that matter to the outputs, and that no gradient of the loss reaches."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.run.diagnose import Finding
from bmrjax.trained.evaluation import Evaluation
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.moments import LayerMoments

WHY = (
    "no gradient of the loss reaches it (stop_gradient, sign, round, argmax), so that what its weights are "
    "worth is not known"
)


def without_gradient(
    layers: Sequence[TracedLayer],
    dense: Sequence[Array],
    moments: Sequence[LayerMoments],
    evaluate: Evaluation,
    losses: Any,
) -> set[int]:
    """Return the numbers of the layers without curvature whose weights change the loss.

    A layer whose outputs nothing reads, or whose units are all dead, has no curvature either; its weights
    may go, since the loss stays as it is.

    Args:
        layers: Of the network.
        dense: Arrays of the given network.
        moments: Of its layers.
        evaluate: Gives losses of rows that are kept out.
        losses: Of the given network there.
    """
    found = set()
    for k, (layer, of_layer) in enumerate(zip(layers, moments, strict=True)):
        if np.any(np.asarray(of_layer.outputs)):
            continue
        arrays = list(dense)
        arrays[layer.array] = jnp.zeros_like(arrays[layer.array])
        if not np.array_equal(np.asarray(evaluate(arrays)["loss"]), np.asarray(losses)):
            found.add(k)
    return found


def no_gradient(names: Sequence[str]) -> Finding:
    """Return the finding that these layers were left as they are."""
    return Finding(
        "no-gradient",
        "; ".join(f"{name} was left alone: {WHY}" for name in names) + ".",
        "Reduce the part of the network behind it by itself, or give it a gradient, as a straight-through "
        "estimator has.",
    )

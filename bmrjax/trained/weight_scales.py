"""How far a weight of a trained network can move: its posterior standard deviation, the others held."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Array, Float

from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.moments import LayerMoments


def weight_scales(
    layers: Sequence[TracedLayer],
    arrays: Sequence[Array],
    moments: Sequence[LayerMoments],
    precisions: Sequence[float],
    *,
    scale: float,
    left: Collection[int],
) -> dict[int, Float[np.ndarray, "..."]]:
    """Return (H_ii)^(-1/2) of each weight, H = scale · diag(g) ⊗ A + δ I.

    Args:
        layers: The layers.
        arrays: Of the network.
        moments: Of each layer.
        precisions: Prior precision δ of each layer.
        scale: Number of data points over the temperature.
        left: Numbers of layers that are left alone, which have no scales.

    Returns:
        By number of the array: the scale of each of its weights, float32; 0 for what no layer reads.
    """
    found: dict[int, np.ndarray] = {}
    for k, (layer, of, prior) in enumerate(zip(layers, moments, precisions, strict=True)):
        if k in left:
            continue
        diagonal = np.diagonal(np.asarray(of.inputs, np.float64), axis1=1, axis2=2)
        curvature = scale * np.einsum(
            "go,gi->goi", np.asarray(of.outputs, np.float64), diagonal[:, : layer.index.shape[2]]
        )
        whole = found.setdefault(layer.array, np.zeros(arrays[layer.array].size))
        whole[layer.index] += curvature + prior
    return {
        array: np.where(whole > 0, np.maximum(whole, np.finfo(float).tiny) ** -0.5, 0)
        .astype(np.float32)
        .reshape(arrays[array].shape)
        for array, whole in found.items()
    }


def scales_of_kept(
    scales: Mapping[int, Float[np.ndarray, "..."]],
    masks: Mapping[int, np.ndarray],
    names: Sequence[str],
) -> dict[str, Float[np.ndarray, "..."]]:
    """Return scales by the path of the array, 0 where a weight is removed."""
    return {
        names[i]: np.where(masks[i], scale, 0) if i in masks else scale
        for i, scale in sorted(scales.items())
    }

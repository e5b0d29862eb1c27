"""Flax NNX networks as Equinox modules that hold the same arrays, which is what the codec describes."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bmrjax.codec.codec_error import CodecError
from bmrjax.nn import NNXMLP, NNXViT
from bmrjax.structure import named_arrays
from bmrjax.structure.network_arrays import parts_of
from bmrjax.structure.nnx_select import NNXSelectInputs

# Building as many layers, or blocks, must not take long.
_DEEPEST, _MOST_BLOCKS = 2**10, 2**7
_LARGEST_SIDE = 2**14


class FlaxMLP(eqx.Module):
    """What a `nn.NNXMLP` holds."""

    layers: list
    activation: Callable
    dropout: float


class FlaxViT(eqx.Module):
    """What a `nn.NNXViT` holds."""

    patches: dict
    class_token: dict
    positions: dict
    blocks: list
    norm: dict
    head: dict
    heads: list
    image_size: Any
    patch: int
    dropout: float


class FlaxSelectInputs(eqx.Module):
    """What a `structure` wrapper that selects the inputs of a Flax NNX network holds."""

    network: Any
    indices: jax.Array


def to_equinox(network: Any) -> eqx.Module:
    """Return a Flax NNX network of the zoo as an Equinox module.

    Raises:
        TypeError: For any other network, a subclass of one of these too.
    """
    if isinstance(network, NNXSelectInputs):
        return FlaxSelectInputs(to_equinox(network.network), network.indices[...])
    # A subclass may compute something else, and would come back without saying so.
    if type(network) is NNXMLP:
        layers: Any = network.layers
        layers = [{"kernel": each.kernel[...], "bias": each.bias[...]} for each in layers]
        return FlaxMLP(layers, network.activation, float(network.dropout.rate))
    if type(network) is NNXViT:
        return _held_vit(network)
    raise TypeError(
        f"encode: of Flax NNX networks it takes nn.NNXMLP and nn.NNXViT, got {type(network).__name__}. "
        "nn.save_weights writes the arrays of any network."
    )


def to_flax(held: Any) -> Any:
    """Return the Flax NNX network that a module was made of, or the module itself if of none.

    Raises:
        CodecError: If the arrays do not make a network.
    """
    if isinstance(held, FlaxSelectInputs):
        network = to_flax(held.network)
        return NNXSelectInputs(network, held.indices)
    if isinstance(held, FlaxViT):
        return _vit(held)
    return _mlp(held) if isinstance(held, FlaxMLP) else held


def _mlp(held: FlaxMLP) -> Any:
    from flax import nnx

    try:
        arrays = {
            f"layers.{i}.{part}": layer[part]
            for i, layer in enumerate(held.layers)
            for part in ("kernel", "bias")
        }
        sizes = [arrays["layers.0.kernel"].shape[0]]
        for i in range(len(held.layers)):
            shape = arrays[f"layers.{i}.kernel"].shape
            if shape != (sizes[-1], *arrays[f"layers.{i}.bias"].shape) or len(shape) != 2:
                raise ValueError(f"layer {i} has a kernel of shape {shape}")
            sizes.append(shape[1])
        if not (callable(held.activation) and 0 <= float(held.dropout) <= 1):
            raise ValueError("its activation or dropout is none")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"the description of the network is no NNXMLP: {error}") from None
    if len(held.layers) > _DEEPEST:
        raise CodecError(f"the file has an NNXMLP of {len(held.layers)} layers.")
    # The smallest network of as many layers, whose arrays are then replaced.
    hidden = (1,) * (len(held.layers) - 1)
    small = NNXMLP(
        1, hidden, 1, activation=held.activation, dropout=float(held.dropout), rngs=nnx.Rngs(0)
    )
    parts = parts_of(small)
    return parts.build([jax.numpy.asarray(np.asarray(arrays[name])) for name in parts.names])


def _smallest_vit(depth: int, dropout: float) -> Any:
    """Return the smallest network of as many blocks: a form for the arrays of another."""
    from flax import nnx

    sizes = {"image_size": 1, "patch": 1, "width": 1, "heads": 1, "hidden": 1}
    return NNXViT(1, 1, **sizes, depth=depth, dropout=dropout, rngs=nnx.Rngs(0))


def _held_vit(network: Any) -> FlaxViT:
    arrays = named_arrays(network)
    heads = [block.attention.heads for block in network.blocks]
    if list(arrays) != list(named_arrays(_smallest_vit(len(heads), 0.0))):
        raise TypeError(
            "encode: this nn.NNXViT has other layers than it was built with, which its file could not "
            "tell. nn.save_weights writes the arrays of any network."
        )
    held: dict[str, Any] = {"blocks": {}}
    for name, array in arrays.items():
        *path, last = name.split(".")
        inner = held
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = array
    return FlaxViT(
        **{**held, "blocks": list(held["blocks"].values())},
        heads=heads,
        image_size=network.image_size,
        patch=network.patch,
        dropout=float(network.dropout.rate),
    )


def _vit(held: FlaxViT) -> Any:
    try:
        heads = [int(count) for count in held.heads]
        if not len(held.blocks) == len(heads) <= _MOST_BLOCKS or min(heads, default=1) < 1:
            raise ValueError(f"it has {len(held.blocks)} blocks with {held.heads} heads")
        patch, sides = held.patch, held.image_size
        height, width = (sides, sides) if isinstance(sides, int) else sides
        if not 0 < patch <= min(height, width) or max(height, width) > _LARGEST_SIDE:
            raise ValueError(f"it has patches of {patch} in images of {sides}")
        dropout = float(held.dropout)
        if not 0 <= dropout <= 1:
            raise ValueError(f"it has a dropout of {dropout}")
        parts = parts_of(_smallest_vit(len(heads), dropout))
        network = parts.build([_at(held, name) for name in parts.names])
        for block, count in zip(network.blocks, heads, strict=True):
            block.attention.heads = count
        network.image_size, network.patch = sides, patch
        # Channels are what a patch has more than its pixels; the network's own code checks the rest.
        channels = max(network.patches.kernel.shape[0] // patch**2, 1)
        image = jax.ShapeDtypeStruct((1, channels, height, width), jax.numpy.float32)
        network.eval()
        jax.eval_shape(network, image)
        network.train()
    except Exception as error:  # of the network's own code too, whatever it raises
        raise CodecError(f"the description of the network is no NNXViT: {error}") from None
    return network


def _at(held: FlaxViT, name: str) -> jax.Array:
    """Return an array by the path to it."""
    first, *rest = name.split(".")
    inner = getattr(held, first)
    for part in rest:
        inner = inner[int(part) if isinstance(inner, list) else part]
    return jax.numpy.asarray(np.asarray(inner))

"""What stands for the Flax NNX networks of this package in compressed files."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bmrjax.codec.budget import Price
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.flax_networks import FlaxForm, register_flax
from bmrjax.structure import named_arrays
from bmrjax.structure.network_arrays import parts_of
from bmrjax.zoo.nnx_mlp import NNXMLP
from bmrjax.zoo.nnx_vit import NNXViT

# Building as many layers, or blocks, must not take long.
_DEEPEST, _MOST_BLOCKS = 2**10, 2**7
_LARGEST_SIDE = 2**14


# A layer of a Flax perceptron, and a transformer and each of its blocks.
FLAX_LAYER = Price(2_500_000, 100_000)
FLAX_TRANSFORMER = Price(10_000_000, 500_000)
FLAX_BLOCK = Price(32_000_000, 1_000_000)


class FlaxMLP(eqx.Module):
    """What a `zoo.NNXMLP` holds."""

    layers: list
    activation: Callable
    dropout: float


class FlaxViT(eqx.Module):
    """What a `zoo.NNXViT` holds."""

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


def _held_mlp(network: Any) -> FlaxMLP:
    layers = [{"kernel": x.kernel[...], "bias": x.bias[...]} for x in network.layers]
    return FlaxMLP(layers, network.activation, float(network.dropout.rate))


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
            "encode: this zoo.NNXViT has other layers than it was built with, which its file could not "
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


def _count(parts: Any) -> int:
    return len(parts) if isinstance(parts, list) else 0


def _mlp_prices(inner: dict[str, Any]) -> Iterator[tuple[Price, int]]:
    yield FLAX_LAYER, _count(inner["layers"])


def _vit_prices(inner: dict[str, Any]) -> Iterator[tuple[Price, int]]:
    yield FLAX_BLOCK, _count(inner["blocks"])
    yield FLAX_TRANSFORMER, 1


register_flax(FlaxForm(NNXMLP, FlaxMLP, hold=_held_mlp, build=_mlp, prices=_mlp_prices))
register_flax(FlaxForm(NNXViT, FlaxViT, hold=_held_vit, build=_vit, prices=_vit_prices))

"""What stands for the Flax NNX networks of this package in compressed files."""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bmrjax.codec.budget import Price
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.flax_networks import FlaxForm, register_flax
from bmrjax.structure import named_arrays
from bmrjax.zoo.nnx_mlp import NNXMLP
from bmrjax.zoo.nnx_vit import NNXViT
from bmrjax.zoo.patches import count_patches

# Building as many layers, or blocks, must not take long.
_DEEPEST, _MOST_BLOCKS = 2**10, 2**7
_LARGEST_SIDE = 2**14


# A layer of a Flax perceptron, and a transformer and each of its blocks.
FLAX_LAYER = Price(1_500_000, 100_000)
FLAX_TRANSFORMER = Price(10_000_000, 500_000)
FLAX_BLOCK = Price(14_000_000, 1_000_000)


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


_smallest: dict[type, Any] = {}


def _of_one_part(cls: type) -> Any:
    """Return a network of one layer, or of one block. Flax constructs one in ten times what a copy takes."""
    from flax import nnx

    if cls in _smallest:
        return _smallest[cls]
    if cls is NNXMLP:
        network = NNXMLP(1, (), 1, rngs=nnx.Rngs(0))
    else:
        sizes = {"image_size": 1, "patch": 1, "width": 1, "heads": 1, "hidden": 1}
        network = NNXViT(1, 1, **sizes, depth=1, rngs=nnx.Rngs(0))
    # What is made while another function is traced belongs to that function.
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(nnx.state(network))):
        _smallest[cls] = network
    return network


def _with_parts(cls: type, name: str, count: int) -> Any:
    """Return a network of the smallest size with as many layers, or blocks."""
    from flax import nnx

    smallest = _of_one_part(cls)
    network = nnx.clone(smallest)
    part = getattr(smallest, name)[0]
    setattr(network, name, nnx.List([nnx.clone(part) for _ in range(count)]))
    return network


def _set_arrays(layer: Any, held: dict[str, Any], **shapes: tuple[int, ...]) -> None:
    """Give a layer its arrays.

    Raises:
        ValueError: If one is of another shape or type.
    """
    for name, shape in shapes.items():
        array = held[name]
        if not isinstance(array, jax.Array | np.ndarray) or array.shape != shape:
            raise ValueError(
                f"'{name}' of a {type(layer).__name__} has shape {np.shape(array)}, expected {shape}"
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"'{name}' of a {type(layer).__name__} is of {array.dtype}")
        getattr(layer, name).set_raw_value(jnp.asarray(array))


def _set_linear(layer: Any, held: dict[str, Any], in_size: int, out_size: int) -> None:
    _set_arrays(layer, held, kernel=(in_size, out_size), bias=(out_size,))
    layer.in_features, layer.out_features = in_size, out_size


def _set_norm(layer: Any, held: dict[str, Any], width: int) -> None:
    _set_arrays(layer, held, scale=(width,), bias=(width,))
    layer.num_features = width


def _set_embedding(layer: Any, held: dict[str, Any], count: int, width: int) -> None:
    _set_arrays(layer, held, embedding=(count, width))
    layer.num_embeddings, layer.features = count, width


def _checked_rate(rate: Any) -> float:
    if not 0 <= float(rate) <= 1:
        raise ValueError(f"it has a dropout of {rate}")
    return float(rate)


def _set_dropouts(dropouts: Iterable[Any], rate: float) -> None:
    from flax import nnx

    rngs = nnx.Rngs(0)
    for dropout in dropouts:
        dropout.rate, dropout.rngs = rate, rngs["dropout"].fork()


def _mlp(held: FlaxMLP) -> Any:
    try:
        count = len(held.layers)
        if not 0 < count <= _DEEPEST:
            raise ValueError(f"it has {count} layers")
        if not callable(held.activation):
            raise TypeError("its activation is no function")
        rate = _checked_rate(held.dropout)
        network = _with_parts(NNXMLP, "layers", count)
        in_size = held.layers[0]["kernel"].shape[0]
        for layer, inner in zip(network.layers, held.layers, strict=True):
            out_size = inner["bias"].shape[0]
            _set_linear(layer, inner, in_size, out_size)
            in_size = out_size
        _set_dropouts([network.dropout], rate)
        network.activation = held.activation
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"the description of the network is no NNXMLP: {error}") from None
    return network


def _held_vit(network: Any) -> FlaxViT:
    arrays = named_arrays(network)
    heads = [block.attention.heads for block in network.blocks]
    smallest = _with_parts(NNXViT, "blocks", len(heads))
    if list(arrays) != list(named_arrays(smallest)):
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


def _set_block(block: Any, held: dict[str, Any], width: int, heads: int) -> None:
    attention, inner = held["attention"], held["attention"]["query"]["kernel"].shape[1]
    if heads < 1 or inner < 1 or inner % heads:
        raise ValueError(f"it has {heads} heads of {inner} features")
    for name in ("query", "key", "value"):
        _set_linear(getattr(block.attention, name), attention[name], width, inner)
    _set_linear(block.attention.output, attention["output"], inner, width)
    block.attention.heads = heads
    hidden = held["mlp"]["hidden"]["kernel"].shape[1]
    _set_linear(block.mlp.hidden, held["mlp"]["hidden"], width, hidden)
    _set_linear(block.mlp.output, held["mlp"]["output"], hidden, width)
    for name in ("attention_norm", "mlp_norm"):
        _set_norm(getattr(block, name), held[name], width)


def _vit(held: FlaxViT) -> Any:
    try:
        heads = [int(count) for count in held.heads]
        if not len(held.blocks) == len(heads) <= _MOST_BLOCKS:
            raise ValueError(f"it has {len(held.blocks)} blocks with {held.heads} heads")
        patch, sides = operator.index(held.patch), held.image_size
        both = tuple(map(operator.index, (sides, sides) if isinstance(sides, int) else sides))
        if not 0 < patch <= min(both) or max(both) > _LARGEST_SIDE:
            raise ValueError(f"it has patches of {patch} in images of {sides}")
        rate = _checked_rate(held.dropout)
        features, width = held.patches["kernel"].shape
        if features < 1 or features % patch**2:
            raise ValueError(f"it has patches of {patch} with {features} features")
        network = _with_parts(NNXViT, "blocks", len(heads))
        _set_linear(network.patches, held.patches, features, width)
        _set_embedding(network.class_token, held.class_token, 1, width)
        places = 1 + count_patches(sides, patch)
        _set_embedding(network.positions, held.positions, places, width)
        for block, inner, count in zip(network.blocks, held.blocks, heads, strict=True):
            _set_block(block, inner, width, count)
        _set_norm(network.norm, held.norm, width)
        _set_linear(network.head, held.head, width, held.head["kernel"].shape[1])
        inside = [each for x in network.blocks for each in (x.mlp.dropout, x.dropout)]
        _set_dropouts([*inside, network.dropout], rate)
        network.image_size, network.patch = sides, patch
    except Exception as error:  # whatever the libraries make of odd values where they expect others
        raise CodecError(f"the description of the network is no NNXViT: {error}") from None
    return network


def _count(parts: Any) -> int:
    return len(parts) if isinstance(parts, list) else 0


def _mlp_prices(inner: dict[str, Any]) -> Iterator[tuple[Price, int]]:
    yield FLAX_LAYER, _count(inner["layers"])


def _vit_prices(inner: dict[str, Any]) -> Iterator[tuple[Price, int]]:
    yield FLAX_BLOCK, _count(inner["blocks"])
    yield FLAX_TRANSFORMER, 1


register_flax(FlaxForm(NNXMLP, FlaxMLP, hold=_held_mlp, build=_mlp, prices=_mlp_prices))
register_flax(FlaxForm(NNXViT, FlaxViT, hold=_held_vit, build=_vit, prices=_vit_prices))

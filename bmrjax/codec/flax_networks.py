"""Flax NNX networks as Equinox modules that hold the same arrays, which is what the codec describes."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bmrjax.codec.errors import CodecError


class FlaxMLP(eqx.Module):
    """What a `nn.NNXMLP` holds."""

    layers: list
    activation: Callable
    dropout: float


class FlaxSelectInputs(eqx.Module):
    """What a `structure` wrapper that selects the inputs of a Flax NNX network holds."""

    network: Any
    indices: jax.Array


def to_equinox(network: Any) -> eqx.Module:
    """Return a Flax NNX network of the zoo as an Equinox module.

    Raises:
        TypeError: For any other network.
    """
    from bmrjax.nn import NNXMLP
    from bmrjax.structure.nnx_select import NNXSelectInputs

    if isinstance(network, NNXSelectInputs):
        return FlaxSelectInputs(to_equinox(network.network), network.indices[...])
    if isinstance(network, NNXMLP):
        layers: Any = network.layers
        layers = [{"kernel": each.kernel[...], "bias": each.bias[...]} for each in layers]
        return FlaxMLP(layers, network.activation, float(network.dropout.rate))
    raise TypeError(
        f"encode: of Flax NNX networks it takes nn.NNXMLP, got {type(network).__name__}. nn.save_weights "
        "writes the arrays of any network."
    )


def to_flax(held: Any) -> Any:
    """Return the Flax NNX network that a module was made of, or the module itself if of none.

    Raises:
        CodecError: If the arrays do not make a network.
    """
    if isinstance(held, FlaxSelectInputs):
        from bmrjax.structure.nnx_select import NNXSelectInputs

        network = to_flax(held.network)
        return NNXSelectInputs(network, held.indices)
    return _mlp(held) if isinstance(held, FlaxMLP) else held


def _mlp(held: FlaxMLP) -> Any:
    from flax import nnx

    from bmrjax.nn import NNXMLP
    from bmrjax.structure.parts import parts_of

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
    if len(held.layers) > 2**10:
        raise CodecError(f"the file has an NNXMLP of {len(held.layers)} layers.")
    # The smallest network of as many layers, whose arrays are then replaced.
    hidden = (1,) * (len(held.layers) - 1)
    small = NNXMLP(
        1, hidden, 1, activation=held.activation, dropout=float(held.dropout), rngs=nnx.Rngs(0)
    )
    parts = parts_of(small)
    return parts.build([jax.numpy.asarray(np.asarray(arrays[name])) for name in parts.names])

"""Sizes that modules keep beside their arrays."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax

SizeRule = Callable[[Any, Any], dict[str, Any]]
Function = TypeVar("Function", bound=SizeRule)

SIZE_RULES: dict[str, SizeRule] = {}


def sizes_of(*names: str) -> Callable[[Function], Function]:
    """Tell `compact` which attributes of a module say how large its arrays are.

    Args:
        *names: Full names of classes, such as ``"mypackage.layers.Attention"``; a subclass of one
            follows the same rule.

    Returns:
        A decorator for a function of the old and of the new module, whose arrays are smaller. It
        returns the attributes that change, by name.

    Example:
        >>> from bmrjax import structure
        >>> @structure.sizes_of("mypackage.layers.Attention")
        ... def attention(old, new):
        ...     head = old.query.weight.shape[0] // old.heads
        ...     return {"heads": new.query.weight.shape[0] // head}
    """

    def register(function: Function) -> Function:
        SIZE_RULES.update(dict.fromkeys(names, function))
        return function

    return register


def changed(old: Any, new: Any) -> dict[str, Any]:
    """Return the attributes of a module that say how large it is, as they are now.

    Raises:
        ValueError: If a rule fails on the module.
    """
    if _shapes(old) == _shapes(new):
        return {}
    for cls in type(old).__mro__:
        for name, rule in SIZE_RULES.items():
            # By the public name, wherever a library keeps the class.
            package, _, attribute = name.rpartition(".")
            if getattr(sys.modules.get(package), attribute, None) is cls:
                try:
                    return rule(old, new)
                except Exception as error:
                    raise ValueError(
                        f"the rule for the sizes of {name} (structure.sizes_of) failed: {error}"
                    ) from error
    return {}


def _shapes(module: Any) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(module) if hasattr(leaf, "shape")]


@sizes_of("equinox.nn.Linear")
def _linear(old: Any, new: Any) -> dict[str, Any]:
    out_size, in_size = new.weight.shape[-2:]  # those of stacked layers come after the layers
    found = {"in_features": in_size, "out_features": out_size}
    return {k: v for k, v in found.items() if getattr(old, k) != "scalar"}


@sizes_of("equinox.nn.Conv")
def _conv(old: Any, new: Any) -> dict[str, Any]:
    out, ins = new.weight.shape[:2]
    # In groups of one channel, each that went took its group along.
    groups = old.groups if old.weight.shape[1] > 1 or old.groups == 1 else _depthwise(old, new)
    return {"in_channels": ins * groups, "out_channels": out, "groups": groups}


def _depthwise(old: Any, new: Any) -> int:
    return new.weight.shape[0] * old.groups // old.weight.shape[0]


@sizes_of("equinox.nn.ConvTranspose")
def _conv_transpose(old: Any, new: Any) -> dict[str, Any]:
    out, ins = new.weight.shape[:2]
    return {"in_channels": ins * old.groups, "out_channels": out}


@sizes_of("equinox.nn.BatchNorm")
def _batch_norm(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {} if new.weight is None else {"input_size": new.weight.shape[0]}


@sizes_of("equinox.nn.GRUCell", "equinox.nn.LSTMCell")
def _recurrent(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {"input_size": new.weight_ih.shape[1], "hidden_size": new.weight_hh.shape[1]}


@sizes_of("equinox.nn.Embedding")
def _embedding(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {"num_embeddings": new.weight.shape[0], "embedding_size": new.weight.shape[1]}


def layer_weight(layer: Any) -> Any:
    """Return the weight of a linear layer, which may be inside of another module."""
    return getattr(layer, "layer", layer).weight


@sizes_of("equinox.nn.MLP")
def _mlp(old: Any, new: Any) -> dict[str, Any]:
    if old.in_size == "scalar" or not isinstance(new.layers, tuple):
        return {}
    width, in_size = layer_weight(new.layers[0]).shape
    return {"in_size": in_size, "width_size": width}


@sizes_of("equinox.nn.MultiheadAttention")
def _multihead(old: Any, new: Any) -> dict[str, Any]:
    head = layer_weight(old.query_proj).shape[0] // old.num_heads
    return {"num_heads": layer_weight(new.query_proj).shape[0] // head}


@sizes_of("flax.nnx.Linear")
def _nnx_linear(old: Any, new: Any) -> dict[str, Any]:
    del old
    ins, out = new.kernel.shape[-2:]
    return {"in_features": ins, "out_features": out}


@sizes_of("flax.nnx.Conv")
def _nnx_conv(old: Any, new: Any) -> dict[str, Any]:
    *taps, ins, out = new.kernel.shape
    groups = old.feature_group_count
    if groups > 1 and old.kernel.shape[-2] == 1:
        groups = out * groups // old.kernel.shape[-1]
    shape = (*taps, ins, out)
    return {
        "in_features": ins * groups,
        "out_features": out,
        "feature_group_count": groups,
        "kernel_shape": shape,
    }


@sizes_of("flax.nnx.ConvTranspose")
def _nnx_conv_transpose(old: Any, new: Any) -> dict[str, Any]:
    ins, out = new.kernel.shape[-2:]
    if old.transpose_kernel:
        ins, out = out, ins
    return {"in_features": ins, "out_features": out, "kernel_shape": new.kernel.shape}


@sizes_of("flax.nnx.BatchNorm")
def _nnx_norm(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {"num_features": new.mean.shape[0]}


@sizes_of("flax.nnx.Embed")
def _nnx_embed(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {"num_embeddings": new.embedding.shape[0], "features": new.embedding.shape[1]}


@sizes_of("flax.nnx.GRUCell", "flax.nnx.OptimizedLSTMCell", "flax.nnx.SimpleCell")
def _nnx_recurrent(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {
        "in_features": new.dense_i.kernel.shape[-2],
        "hidden_features": new.dense_h.kernel.shape[-2],
    }


@sizes_of("flax.nnx.LSTMCell")
def _nnx_lstm(old: Any, new: Any) -> dict[str, Any]:
    del old
    return {
        "in_features": new.ii.kernel.shape[-2],
        "hidden_features": new.hi.kernel.shape[-2],
    }


@sizes_of("flax.nnx.LinearGeneral")
def _nnx_general(old: Any, new: Any) -> dict[str, Any]:
    ins = len(old.in_features) if isinstance(old.in_features, tuple) else 1
    shape = new.kernel.shape
    return {"in_features": shape[:ins], "out_features": shape[ins:]}


@sizes_of("flax.nnx.MultiHeadAttention")
def _nnx_multihead(old: Any, new: Any) -> dict[str, Any]:
    del old
    heads, size = new.query.kernel.shape[-2:]
    return {"num_heads": heads, "qkv_features": heads * size}

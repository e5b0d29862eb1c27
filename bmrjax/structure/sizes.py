"""Sizes that modules keep beside their arrays."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax

SizeRule = Callable[..., dict[str, Any]]
Function = TypeVar("Function", bound=SizeRule)

SIZE_RULES: dict[str, SizeRule] = {}


class ModuleSplit(Protocol):
    """What an axis of an array was made of, and is now; see `sizes_of`."""

    def __call__(self, path: str, axis: int, sizes: tuple[int, ...], /) -> tuple[int, ...]:
        """Return the sizes now of several axes that the code makes of one.

        Args:
            path: From the module to the array.
            axis: An axis of it.
            sizes: Those that the code made of it in the old module.
        """
        ...


def sizes_of(*names: str) -> Callable[[Function], Function]:
    """Tell `compact` which attributes of a module say how large its arrays are.

    It looks for them itself where a network does not run without; a rule is quicker, and says so where
    several would do.

    Args:
        *names: Full names of classes, such as ``"mypackage.layers.Attention"``; a subclass of one
            follows the same rule.

    Returns:
        A decorator for a function of the old and of the new module, whose arrays are smaller. It
        returns the attributes that change, by name. If it has a third argument, that is a function which
        says what became of an axis that the code cuts into several: of the path to an array, an axis of it,
        and the sizes that the code made of it, to the sizes now.

    Example:
        >>> from bmrjax import structure
        >>> @structure.sizes_of("mypackage.layers.Attention")
        ... def attention(old, new, split):
        ...     heads, size = split("query.weight", 0, (old.heads, old.size))
        ...     return {"heads": heads, "size": size}
    """

    def register(function: Function) -> Function:
        SIZE_RULES.update(dict.fromkeys(names, function))
        return function

    return register


def rule_for(kind: type) -> tuple[str, SizeRule] | None:
    """Return the rule that a class follows, with the name that it was given for."""
    for cls in kind.__mro__:
        for name, rule in SIZE_RULES.items():
            # By the public name, wherever a library keeps the class.
            package, _, attribute = name.rpartition(".")
            if getattr(sys.modules.get(package), attribute, None) is cls:
                return name, rule
    return None


def changed(old: Any, new: Any, split: ModuleSplit) -> dict[str, Any]:
    """Return the attributes of a module that say how large it is, as they are now, by its rule.

    Raises:
        ValueError: If a rule fails on the module.
    """
    if shapes_in(old) == shapes_in(new):
        return {}
    found = rule_for(type(old))
    if found is None:
        return {}
    name, rule = found
    try:
        return (
            rule(old, new, split) if len(inspect.signature(rule).parameters) > 2 else rule(old, new)
        )
    except Exception as error:
        raise ValueError(
            f"the rule for the sizes of {name} (structure.sizes_of) failed: {error}"
        ) from error


def shapes_in(module: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays in a module."""
    return [leaf.shape for leaf in jax.tree.leaves(module) if hasattr(leaf, "shape")]


@sizes_of("equinox.nn.Linear")
def _linear(old: Any, new: Any) -> dict[str, Any]:
    out_size, in_size = new.weight.shape[-2:]  # those of stacked layers come after the layers
    found = {"in_features": in_size, "out_features": out_size}
    return {k: v for k, v in found.items() if getattr(old, k) != "scalar"}


@sizes_of("equinox.nn.Conv")
def _conv(old: Any, new: Any, split: ModuleSplit) -> dict[str, Any]:
    ins = new.weight.shape[1]
    groups, each = split("weight", 0, (old.groups, old.out_channels // old.groups))
    return {"in_channels": ins * groups, "out_channels": groups * each, "groups": groups}


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
    width, in_size = layer_weight(new.layers[0]).shape[-2:]
    return {"in_size": in_size, "width_size": width}


@sizes_of("equinox.nn.MultiheadAttention")
def _multihead(old: Any, new: Any, split: ModuleSplit) -> dict[str, Any]:
    axis = layer_weight(old.query_proj).ndim - 2  # those of stacked layers come first
    heads, qk_size = split("query_proj.weight", axis, (old.num_heads, old.qk_size))
    _, vo_size = split("value_proj.weight", axis, (old.num_heads, old.vo_size))
    parts = {"query": new.query_proj, "key": new.key_proj, "value": new.value_proj}
    found = {f"{name}_size": layer_weight(x).shape[-1] for name, x in parts.items()}
    return found | {
        "num_heads": heads,
        "qk_size": qk_size,
        "vo_size": vo_size,
        "output_size": layer_weight(new.output_proj).shape[-2],
    }


@sizes_of("flax.nnx.Linear")
def _nnx_linear(old: Any, new: Any) -> dict[str, Any]:
    del old
    ins, out = new.kernel.shape[-2:]
    return {"in_features": ins, "out_features": out}


@sizes_of("flax.nnx.Conv")
def _nnx_conv(old: Any, new: Any, split: ModuleSplit) -> dict[str, Any]:
    groups = old.feature_group_count
    *taps, ins, out = new.kernel.shape
    last = old.kernel.ndim - 1
    groups, _ = split("kernel", last, (groups, old.kernel.shape[-1] // groups))
    return {
        "in_features": ins * groups,
        "out_features": out,
        "feature_group_count": groups,
        "kernel_shape": (*taps, ins, out),
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
    ins, heads, size = new.query.kernel.shape[-3:]
    return {
        "in_features": ins,
        "num_heads": heads,
        "head_dim": size,
        "qkv_features": heads * size,
        "out_features": new.out.kernel.shape[-1],
    }

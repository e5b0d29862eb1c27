"""Tensors of PyTorch's layers as arrays of the same layers in Equinox and Flax NNX."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.tree_util as jtu
import numpy as np

from bmrjax.structure.network_arrays import is_equinox, is_numeric, parts_of, path_name

# So many batches that Equinox divides its running statistics by one.
MANY_BATCHES = 1_000_000
_STATISTICS = {"running_mean": 0, "running_var": 1}
_ATTENTION = {
    "equinox": ("query_proj", "key_proj", "value_proj"),
    "flax": ("query", "key", "value"),
}


def from_torch(network: Any) -> Callable[[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Return what turns PyTorch's tensors into the arrays of a network, for `load_weights(translate=...)`.

    It knows linear layers, convolutions and transposed ones, embeddings, normalisation with its running
    statistics, and multi-head attention; what else there is keeps its name and values. Layers must have
    the same paths here and there, such as ``"encoder.0"``; where they differ, `rename` of `load_weights`
    makes them the same first. What is between the layers is the network's own: a flattened image of
    PyTorch, channels first, has another order than one of Flax, channels last.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, or a Flax NNX module.

    Returns:
        A function of a name and its tensor, which returns arrays by their names in the network.

    Raises:
        TypeError: For anything but a network.

    Example:
        >>> import numpy as np
        >>> from flax import nnx
        >>> from bmrjax import nn
        >>> tensors = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
        >>> layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nn.load_weights(layer, tensors, translate=nn.from_torch(layer)).kernel.shape
        (2, 3)
    """
    parts = parts_of(network, is_numeric, caller="from_torch")
    own = {name: array.shape for name, array in zip(parts.names, parts.arrays, strict=True)}
    library = "equinox" if is_equinox(network) else "flax"
    one = _of_equinox if library == "equinox" else _of_flax
    transposed = _transposed_convolutions(network)

    def translate(name: str, tensor: np.ndarray) -> Mapping[str, np.ndarray]:
        layer, _, part = name.rpartition(".")
        at = f"{layer}." if layer else ""
        if part == "num_batches_tracked":
            return {}
        if part in ("in_proj_weight", "in_proj_bias"):
            found: dict[str, np.ndarray] = {}
            for inner, third in zip(_ATTENTION[library], np.split(tensor, 3), strict=True):
                found |= one(own, f"{at}{inner}.", part.removeprefix("in_proj_"), third)
            return found
        if layer.endswith("out_proj") and name not in own:
            new = "output_proj" if library == "equinox" else "out"
            at = f"{layer.removesuffix('out_proj')}{new}."
        if part == "weight" and layer in transposed and tensor.ndim > 2:
            return {
                f"{at}{'weight' if library == 'equinox' else 'kernel'}": transposed[layer](tensor)
            }
        return one(own, at, part, tensor)

    return translate


def _of_equinox(
    own: Mapping[str, tuple[int, ...]], at: str, part: str, tensor: np.ndarray
) -> dict[str, np.ndarray]:
    if part not in _STATISTICS:
        return {f"{at}{part}": tensor}
    found = {}
    for kind in ("batch_state_index", "ema_state_index"):
        name = f"{at}{kind}.{_STATISTICS[part]}"
        if name in own:
            found[name] = tensor
    # Else Equinox would divide the statistics by how few batches it has seen, or wait for the first.
    for name, value in (("batch_counter", MANY_BATCHES), ("ema_first_time_index", False)):
        if part == "running_var" and f"{at}{name}" in own:
            found[f"{at}{name}"] = np.asarray(value)
    return found or {f"{at}{part}": tensor}


def _of_flax(
    own: Mapping[str, tuple[int, ...]], at: str, part: str, tensor: np.ndarray
) -> dict[str, np.ndarray]:
    if part in _STATISTICS:
        return {f"{at}{'mean' if part == 'running_mean' else 'var'}": tensor}
    if part == "weight":
        for name in ("kernel", "scale", "embedding"):
            if f"{at}{name}" in own:
                return {f"{at}{name}": _turned(tensor, own[f"{at}{name}"], name)}
    shape = own.get(f"{at}{part}", tensor.shape)
    # Of attention, whose heads are an axis of their own.
    same = int(np.prod(shape)) == tensor.size
    return {f"{at}{part}": tensor.reshape(shape) if same else tensor}


def _turned(tensor: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return a kernel with its axes as Flax has them: places, inputs, outputs."""
    if name != "kernel" or tensor.ndim < 2:
        return tensor
    turned = np.moveaxis(tensor, (0, 1), (-1, -2))
    heads = turned.ndim == 2 and len(shape) == 3 and int(np.prod(shape)) == turned.size
    return turned.reshape(shape) if heads else turned


def _transposed_convolutions(network: Any) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Return what turns the kernel of each transposed convolution, by the path of the layer.

    PyTorch keeps the kernel of the convolution that it is the transpose of: inputs first, and each place
    where the other libraries have the opposite one. Shapes do not tell, if there are as many channels in as
    out.
    """
    found: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    if is_equinox(network):
        import equinox as eqx

        module = network[0] if isinstance(network, tuple) else network
        is_one = lambda node: isinstance(node, eqx.nn.ConvTranspose)  # noqa: E731
        for path, node in jtu.tree_leaves_with_path(module, is_leaf=is_one):
            if is_one(node):
                found[path_name(path)] = partial(_outputs_first, groups=node.groups)
        return found
    from flax import nnx

    for path, node in nnx.iter_modules(network):
        # With transpose_kernel=True, Flax has PyTorch's kernel with its axes turned.
        if isinstance(node, nnx.ConvTranspose) and not node.transpose_kernel:
            found[".".join(map(str, path))] = _channels_last
    return found


def _outputs_first(kernel: np.ndarray, groups: int) -> np.ndarray:
    """Return (inputs, outputs per group, *places) as (outputs, inputs per group, *places reversed)."""
    ins, each, *places = kernel.shape
    apart = kernel.reshape(groups, ins // groups, each, *places).swapaxes(1, 2)
    return np.flip(apart.reshape(groups * each, ins // groups, *places), _places(kernel))


def _channels_last(kernel: np.ndarray) -> np.ndarray:
    """Return (inputs, outputs, *places) as (*places reversed, inputs, outputs)."""
    return np.moveaxis(np.flip(kernel, _places(kernel)), (0, 1), (-2, -1))


def _places(kernel: np.ndarray) -> tuple[int, ...]:
    return tuple(range(2, kernel.ndim))

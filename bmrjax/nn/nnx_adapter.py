"""Flax NNX modules with random weights."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from bmrjax.nn.adapter import Values, check_tensor
from bmrjax.nn.nnx_multiplicative_noise import NNXMultiplicativeNoise
from bmrjax.priors.layer import Tensor
from bmrjax.structure.call_arguments import requires, takes


def _fan_in(node: Any, part: str, shape: tuple[int, ...]) -> int:
    if len(shape) < 2 or part == "bias" or isinstance(node, nnx.Embed):
        return 1
    into = shape[:-1]
    # Of stacked layers, these come first.
    if part == "kernel" and isinstance(node, nnx.Linear):
        into = shape[-2:-1]
    elif part == "kernel" and isinstance(node, nnx.LinearGeneral):
        into = np.atleast_1d(node.in_features)
    elif part == "kernel" and isinstance(node, nnx.Conv | nnx.ConvTranspose):
        *places, first, second = shape[-2 - len(node.kernel_size) :]
        into = (*places, second if _is_turned(node) else first)
    return math.prod(int(size) for size in into)


def _is_turned(node: Any) -> bool:
    """Return whether a layer's kernel has its outputs before its inputs."""
    return isinstance(node, nnx.ConvTranspose) and node.transpose_kernel


def _row_axis(node: Any, part: str) -> int:
    # Kernels end in the output axis; a table of embeddings begins with its entries.
    if isinstance(node, nnx.Embed):
        return 0
    return -2 if part == "kernel" and _is_turned(node) else -1


def _fill(rest: dict[Any, Any], buffers: Mapping[str, Array]) -> None:
    for path in rest:
        dotted = ".".join(map(str, path))
        if dotted in buffers:
            rest[path] = rest[path].replace(buffers[dotted])


class NNXAdapter:
    """See `bmrjax.nn.adapter.Adapter`."""

    def __init__(self, name: str, network: nnx.Module):
        self._network = network
        self._graph, parameters, self._rest = nnx.split(network, nnx.Param, ...)
        self._flat = dict(nnx.to_flat_state(parameters))
        self._random = {
            path: (".".join(map(str, path[:-1])), str(path[-1]))
            for path, variable in self._flat.items()
            if check_tensor(name, ".".join(map(str, path)), variable[...])
        }

    def layers(self) -> dict[str, tuple[str, dict[str, Tensor]]]:
        """See `Adapter.layers`."""
        found: dict[str, tuple[str, dict[str, Tensor]]] = {}
        for path, (layer, part) in self._random.items():
            node = self._node(path[:-1])
            owner = type(node)
            noise = node.noise if isinstance(node, NNXMultiplicativeNoise) else None
            value = self._flat[path][...]
            fan_in = _fan_in(node, part, value.shape)
            row_axis = _row_axis(node, part)
            tensor = Tensor(value.shape, fan_in, value, row_axis=row_axis, noise=noise)
            found.setdefault(layer, (owner.__name__, {}))[1][part] = tensor
        return found

    def _node(self, path: tuple[Any, ...]) -> Any:
        node: Any = self._network
        for step in path:
            node = (
                node[step]
                if isinstance(step, int) or isinstance(node, dict)
                else getattr(node, step)
            )
        return node

    def _statistics(self, rest: Any) -> dict[str, Array]:
        flat = nnx.to_flat_state(nnx.filter_state(rest, nnx.BatchStat))
        return {".".join(map(str, path)): variable[...] for path, variable in flat}

    def buffers(self) -> dict[str, Array]:
        """See `Adapter.buffers`."""
        return self._statistics(self._rest)

    def _parameters(self, values: Values) -> Any:
        flat = dict(self._flat)
        for path, (layer, part) in self._random.items():
            flat[path] = flat[path].replace(values[layer][part])
        return nnx.from_flat_state(flat)

    def build(self, values: Values) -> nnx.Module:
        """See `Adapter.build`."""
        return nnx.merge(self._graph, self._parameters(values), self._rest, copy=True)

    def whole(self, values: Values, buffers: Mapping[str, Array]) -> nnx.Module:
        """See `Adapter.whole`."""
        rest = dict(nnx.to_flat_state(self._rest))
        _fill(rest, buffers)
        state = nnx.from_flat_state(rest)
        return nnx.merge(self._graph, self._parameters(values), state, copy=True)

    def apply(
        self,
        values: Values,
        buffers: Mapping[str, Array],
        args: tuple[Array, ...],
        *,
        inference: bool,
        key: Array | None,
    ) -> tuple[Any, dict[str, Array]]:
        """See `Adapter.apply`."""
        rest = dict(nnx.to_flat_state(self._rest))
        streams = [path for path, variable in rest.items() if isinstance(variable, nnx.RngKey)]
        _fill(rest, buffers)
        if key is not None:
            for path, fresh in zip(
                streams, jax.random.split(key, max(len(streams), 1)), strict=False
            ):
                shape = rest[path].get_value().shape  # one for each of several stacked layers
                rest[path] = rest[path].replace(jax.random.split(fresh, shape) if shape else fresh)
        network: Any = nnx.merge(
            self._graph, self._parameters(values), nnx.from_flat_state(rest), copy=True
        )
        if inference or key is None:
            network.eval()
        else:
            network.train()
        needed = {}
        if key is not None and takes(network, "rngs"):
            needed["rngs"] = nnx.Rngs(jax.random.fold_in(key, len(streams)))
        elif requires(network, "rngs", args):
            needed["rngs"] = nnx.Rngs(0)  # in inference, nothing comes of it
        outputs = network(*args, **needed)
        return outputs, self._statistics(nnx.split(network, nnx.Param, ...)[2])

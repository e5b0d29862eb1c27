"""Equinox modules with random weights."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from bmrjax.nn.adapter import Values, check_tensor
from bmrjax.nn.multiplicative_noise import MultiplicativeNoise
from bmrjax.priors.layer import Tensor
from bmrjax.structure.call_arguments import requires, takes
from bmrjax.structure.network_arrays import path_name
from bmrjax.structure.weight_norm import finite_weight_norms


def _fan_in(node: Any, part: str, shape: tuple[int, ...]) -> int:
    if len(shape) < 2 or isinstance(node, eqx.nn.Embedding) or part.startswith("bias"):
        return 1
    # Of stacked layers, these come first.
    if part == "weight" and isinstance(node, eqx.nn.Linear):
        return shape[-1]
    if part == "weight" and isinstance(node, eqx.nn.Conv | eqx.nn.ConvTranspose):
        return _product(shape[-1 - node.num_spatial_dims :])
    return _product(shape[1:])


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


class EquinoxAdapter:
    """See `bmrjax.nn.adapter.Adapter`."""

    def __init__(self, name: str, network: eqx.Module, state: eqx.nn.State | None):
        self._name, self._network, self._state = name, network, state
        self._takes_key = takes(network, "key")
        leaves, self._structure = jtu.tree_flatten_with_path(network)
        self._leaves = [leaf for _, leaf in leaves]
        self._where: dict[tuple[str, str], int] = {}
        seen: dict[int, str] = {}
        for index, (path, leaf) in enumerate(leaves):
            if not eqx.is_array(leaf):
                continue
            layer, part = path_name(path[:-1]), path_name(path[-1:])
            if not check_tensor(name, path_name(path), leaf):
                continue
            if id(leaf) in seen:
                raise TypeError(
                    f"random_module('{name}'): layers '{seen[id(leaf)]}' and '{path_name(path)}' hold the "
                    "same array, so drawing them would untie them. Tie them with equinox.nn.Shared."
                )
            seen[id(leaf)] = path_name(path)
            self._where[layer, part] = index

    def layers(self) -> dict[str, tuple[str, dict[str, Tensor]]]:
        """See `Adapter.layers`."""
        found: dict[str, tuple[str, dict[str, Tensor]]] = {}
        for (path, part), index in self._where.items():
            node = self._node(path)
            owner, leaf = type(node), self._leaves[index]
            noise = node.noise if isinstance(node, MultiplicativeNoise) else None
            tensor = Tensor(leaf.shape, _fan_in(node, part, leaf.shape), leaf, noise=noise)
            found.setdefault(path, (owner.__name__, {}))[1][part] = tensor
        return found

    def _node(self, path: str) -> Any:
        node: Any = self._network
        for step in path.split(".") if path else ():
            if isinstance(node, list | tuple):
                node = node[int(step)]
            elif isinstance(node, dict):
                node = node[step] if step in node else node[int(step)]
            else:
                node = getattr(node, step)
        return node

    def _per_datum(self, values: Values) -> dict[int, Array]:
        """Return the arrays of which every data point has one of its own, by position among the leaves."""
        return {
            index: values[path][part]
            for (path, part), index in self._where.items()
            if jnp.ndim(values[path][part]) > self._leaves[index].ndim
        }

    def buffers(self) -> dict[str, Array]:
        """See `Adapter.buffers`."""
        if self._state is None:
            return {}
        return {f"{i:04d}": leaf for i, leaf in enumerate(jtu.tree_leaves(self._state))}

    def build(self, values: Values) -> eqx.Module:
        """See `Adapter.build`."""
        leaves = list(self._leaves)
        for (path, part), index in self._where.items():
            leaves[index] = values[path][part]
        return jtu.tree_unflatten(self._structure, leaves)

    def whole(self, values: Values, buffers: Mapping[str, Array]) -> Any:
        """See `Adapter.whole`."""
        network = self.build(values)
        if self._state is None:
            return network
        return network, self._filled(buffers)

    def _filled(self, buffers: Mapping[str, Array]) -> Any:
        structure = jtu.tree_structure(self._state)
        return jtu.tree_unflatten(structure, [buffers[name] for name in sorted(buffers)])

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
        network: Any = finite_weight_norms(self.build(values))
        network = eqx.nn.inference_mode(network, inference or key is None)
        keys = None
        rows = jax.tree.leaves(args)[0].shape[0]
        if key is not None and self._takes_key:
            keys = jax.random.split(key, rows)
        elif requires(network, "key", args if self._state is None else (*args, self._state)):
            keys = jax.random.split(jax.random.key(0), rows)  # in inference, nothing comes of it
        key_axis = None if keys is None else 0
        each = self._per_datum(values)
        leaves, structure = jtu.tree_flatten(network)

        def of_datum(each: dict[int, Array]) -> Any:
            mine = [each.get(index, leaf) for index, leaf in enumerate(leaves)]
            return jtu.tree_unflatten(structure, mine)

        if self._state is None:

            def run(args: tuple[Array, ...], each: dict[int, Array], key: Array | None) -> Any:
                return of_datum(each)(*args, **({} if key is None else {"key": key}))

            axes = (0, 0, key_axis)
            return jax.vmap(run, in_axes=axes, axis_name="batch")(args, each, keys), {}
        state = self._filled(buffers)

        def run_with_state(
            args: tuple[Array, ...], state: Any, each: dict[int, Array], key: Array | None
        ) -> Any:
            return of_datum(each)(*args, state, **({} if key is None else {"key": key}))

        outputs, state = jax.vmap(
            run_with_state,
            in_axes=(0, None, 0, key_axis),
            out_axes=(0, None),
            axis_name="batch",
        )(args, state, each, keys)
        return outputs, {f"{i:04d}": leaf for i, leaf in enumerate(jtu.tree_leaves(state))}

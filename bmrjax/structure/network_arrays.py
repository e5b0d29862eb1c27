"""Networks as a list of arrays and a function of them; one class a library."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from bmrjax.structure.attribute_sizes import AttributeSizes, ByRules
from bmrjax.structure.call_arguments import Arguments, arguments_of, requires
from bmrjax.structure.no_network import no_network
from bmrjax.structure.traced_once import trace_once

BY_RULES = ByRules()


class Parts(Protocol):
    """What `compact` needs to know of a network."""

    names: list[str]
    arrays: list[Array]
    trained: list[bool]

    def call(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """Run the network, in inference, with other arrays."""
        ...

    def build(self, arrays: Sequence[Array], sizes: AttributeSizes = BY_RULES) -> Any:
        """Return the network with other arrays, and the sizes that they have.

        Args:
            arrays: The arrays.
            sizes: Says which attributes of its modules are sizes.
        """
        ...


def is_equinox(network: Any) -> bool:
    """Say whether a network is an Equinox module, or one with its state."""
    if "equinox" not in sys.modules:  # so nothing is one
        return False
    import equinox as eqx

    if isinstance(network, tuple) and len(network) == 2:
        return isinstance(network[0], eqx.Module) and isinstance(network[1], eqx.nn.State)
    return isinstance(network, eqx.Module)


def is_nnx(network: Any) -> bool:
    """Say whether a network is a Flax NNX module."""
    return any(cls.__module__.startswith("flax.nnx") for cls in type(network).__mro__)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def is_numeric(leaf: Any) -> bool:
    """Say whether a leaf is an array of numbers or truth values: anything but a random key."""
    return isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)


def parts_of(network: Any, select: Callable[[Any], bool] = _is_float, *, caller: str = "") -> Parts:
    """Take a network apart.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, or a Flax NNX module.
        select: Says which leaves are its arrays; those of floating-point numbers by default.
        caller: Name of the calling function, for messages.

    Raises:
        TypeError: For anything else, and for a network of NumPy arrays.
    """
    found: Parts | None = None
    if is_equinox(network):
        found = EquinoxParts(network, select)
    elif is_nnx(network):
        found = NNXParts(network, select)
    if found is not None:
        if not found.arrays and any(isinstance(x, np.ndarray) for x in jax.tree.leaves(network)):
            raise TypeError(
                f"{caller and caller + ': '}the network's arrays are NumPy's, which Equinox and Flax take "
                "for constants. Make parameters of them: jax.tree.map(lambda x: jnp.asarray(x) if "
                "isinstance(x, np.ndarray) else x, network)."
            )
        return found
    raise no_network(caller, network)


class WithArguments:
    """A network whose inputs are the arrays of its arguments; see `Parts`."""

    def __init__(self, parts: Parts, arguments: Arguments):
        self._parts, self._arguments = parts, arguments
        self.names: list[str] = parts.names
        self.arrays: list[Array] = parts.arrays
        self.trained: list[bool] = parts.trained

    def call(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """See `Parts.call`."""
        return self._parts.call(arrays, self._arguments.of(inputs))

    def build(self, arrays: Sequence[Array], sizes: AttributeSizes = BY_RULES) -> Any:
        """See `Parts.build`."""
        return self._parts.build(arrays, sizes)


def checked_inputs(
    caller: str, network: Any, parts: Parts, given: Sequence[Any]
) -> tuple[Array, ...]:
    """Return example inputs as arrays, for a network whose arguments are arrays; see `checked_arguments`."""
    return checked_arguments(caller, network, parts, given).arrays


def checked_arguments(caller: str, network: Any, parts: Parts, given: Sequence[Any]) -> Arguments:
    """Return example inputs as arrays, and how they make up the arguments.

    Args:
        caller: Name of the calling function, for the message.
        network: The network.
        parts: The network, taken apart.
        given: Example inputs: arrays, or pytrees of arrays.

    Raises:
        TypeError: For what is not an array.
        ValueError: If the network's code raises on inputs of these shapes.
    """
    arguments = arguments_of(caller, given)
    try:
        call = WithArguments(parts, arguments).call
        traced = trace_once(call, parts.arrays, arguments.arrays)
    except Exception as error:
        shapes = ", ".join(str(x.shape) for x in arguments.arrays) or "no inputs"
        one = "one data point" if is_equinox(network) else "a batch"
        advice = (
            f"give example inputs as the network takes them, {one} each (all are traced: an option that is "
            "not an array belongs in a module around the network)"
        )
        if is_equinox(network) and not isinstance(network, tuple) and _has_state(network):
            advice = "it has layers with state, so give the pair (network, state)"
        raise ValueError(
            f"{caller}: {type(network).__name__} does not run on {shapes}; {advice}. It said: {error}"
        ) from error
    return replace(arguments, traced=traced)


def _has_state(network: Any) -> bool:
    """Return whether a layer of an Equinox module keeps something in an `equinox.nn.State`."""
    import equinox as eqx

    is_index = lambda x: isinstance(x, eqx.nn.StateIndex)  # noqa: E731
    return any(map(is_index, jax.tree.leaves(network, is_leaf=is_index)))


def named_arrays(network: Any) -> dict[str, Array]:
    """Return the floating-point arrays of a network by the path to them.

    What an Equinox network keeps in its state, such as running statistics, has the path of the layer that
    it belongs to.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, or a Flax NNX module.

    Raises:
        TypeError: For anything else.

    Example:
        >>> import jax
        >>> from bmrjax import structure, zoo
        >>> network = zoo.MLP(4, (3,), 2, key=jax.random.key(0))
        >>> {path: array.shape for path, array in structure.named_arrays(network).items()}
        {'layers.0.weight': (3, 4), 'layers.0.bias': (3,), 'layers.1.weight': (2, 3), 'layers.1.bias': (2,)}
    """
    parts = parts_of(network, caller="named_arrays")
    return dict(zip(parts.names, parts.arrays, strict=True))


class EquinoxParts:
    """See `Parts`. A pair of module and state is taken apart as one tree."""

    def __init__(self, network: Any, select: Callable[[Any], bool] = _is_float):
        import equinox as eqx

        self._pair = isinstance(network, tuple)
        self._tree = network
        leaves, self._structure = jtu.tree_flatten_with_path(network)
        self._leaves = [leaf for _, leaf in leaves]
        self._where = [i for i, leaf in enumerate(self._leaves) if select(leaf)]
        self.arrays: list[Any] = [self._leaves[i] for i in self._where]
        if self._pair:
            names = [path_name(path) for path, _ in jtu.tree_leaves_with_path(network[0])]
            names += _state_names(*network)
        else:
            names = [path_name(path) for path, _ in leaves]
        self.names: list[str] = [names[i] for i in self._where]
        first = len(jtu.tree_leaves(network[0])) if self._pair else len(leaves)
        self.trained: list[bool] = [i < first for i in self._where]
        self._inference = eqx.nn.inference_mode

    def _filled(self, arrays: Sequence[Array]) -> Any:
        leaves = list(self._leaves)
        for i, array in zip(self._where, arrays, strict=True):
            leaves[i] = array
        return jtu.tree_unflatten(self._structure, leaves)

    def call(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """See `Parts.call`."""
        return _call_equinox(self._inference(self._filled(arrays)), inputs)

    def build(self, arrays: Sequence[Array], sizes: AttributeSizes = BY_RULES) -> Any:
        """See `Parts.build`."""
        new = self._filled(arrays)
        old, fresh = (self._tree[0], new[0]) if self._pair else (self._tree, new)
        _resize_equinox(old, fresh, sizes, "")
        return new


def path_name(path: Any) -> str:
    """Return a path of JAX's in a tree, such as ``"layers.0.weight"``."""
    return jtu.keystr(path, simple=True, separator=".")


def _state_names(module: Any, state: Any) -> list[str]:
    """Return names for the leaves of a state: the path of the index that a layer has for them."""
    import equinox as eqx

    leaves, structure = jtu.tree_flatten(state)
    names = [f"state.{i}" for i in range(len(leaves))]
    numbers = jtu.tree_unflatten(structure, range(len(leaves)))
    is_index = lambda x: isinstance(x, eqx.nn.StateIndex)  # noqa: E731
    for path, index in jtu.tree_leaves_with_path(module, is_leaf=is_index):
        if is_index(index):
            for inner, number in jtu.tree_leaves_with_path(numbers.get(index)):
                names[number] = path_name((*path, *inner))
    return names


def _call_equinox(network: Any, inputs: Sequence[Array]) -> Any:
    module, *state = network if isinstance(network, tuple) else (network,)
    args = (*inputs, *state)
    # In inference, nothing comes of it.
    needed = {"key": jax.random.key(0)} if requires(module, "key", args) else {}
    outputs = module(*args, **needed)
    return outputs[0] if state else outputs


def equinox_batched(network: Any) -> Callable[..., Any]:
    """Return a function of a batch for a network that is written for one data point."""
    import equinox as eqx

    network = eqx.nn.inference_mode(network)
    return jax.vmap(lambda *inputs: _call_equinox(network, inputs), axis_name="batch")


def _resize_equinox(old: Any, new: Any, sizes: AttributeSizes, path: str) -> None:
    """Set the sizes of a fresh copy, and of the modules in it."""
    import equinox as eqx

    if isinstance(old, eqx.Module):
        for name, value in vars(old).items():
            _resize_equinox(value, getattr(new, name), sizes, f"{path}{name}.")
        for name, value in sizes(path, old, new).items():
            object.__setattr__(new, name, value)
    elif isinstance(old, list | tuple):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            _resize_equinox(a, b, sizes, f"{path}{i}.")
    elif isinstance(old, dict):
        for key in old:
            _resize_equinox(old[key], new[key], sizes, f"{path}{key}.")


def _call_nnx(network: Any, inputs: Sequence[Any]) -> Any:
    from flax import nnx

    needed = {"rngs": nnx.Rngs(0)} if requires(network, "rngs", inputs) else {}
    return network(*inputs, **needed)


def _without_intermediates(network: Any) -> Any:
    """Return a network without what its last call sowed."""
    from flax import nnx

    sown = lambda path, value: type(value) is nnx.Intermediate  # noqa: E731
    if not any(type(v) is nnx.Intermediate for _, v in nnx.to_flat_state(nnx.state(network))):
        return network
    network = nnx.clone(network)
    nnx.pop(network, sown)
    return network


def _with_value(leaf: Any, value: Any) -> Any:
    """Return a leaf of a Flax NNX module's state, a variable or a plain array, with another value."""
    from flax import nnx

    return leaf.replace(value) if isinstance(leaf, nnx.Variable) else value


class NNXParts:
    """See `Parts`. Plain arrays that a module holds are data of the network, not trained."""

    def __init__(self, network: Any, select: Callable[[Any], bool] = _is_float):
        from flax import nnx

        self._nnx, self._network = nnx, _without_intermediates(network)
        self._graph, state = nnx.split(self._network)
        self._flat = dict(nnx.to_flat_state(state))
        self._where = [
            path
            for path, v in self._flat.items()
            if not isinstance(v, nnx.RngState)
            and select(v.get_value() if isinstance(v, nnx.Variable) else v)
        ]
        self.arrays: list[Any] = [self._flat[path][...] for path in self._where]
        self.names: list[str] = [".".join(map(str, path)) for path in self._where]
        self.trained: list[bool] = [isinstance(self._flat[path], nnx.Param) for path in self._where]

    def _filled(self, arrays: Sequence[Array]) -> Any:
        flat = dict(self._flat)
        for path, array in zip(self._where, arrays, strict=True):
            flat[path] = _with_value(flat[path], array)
        return self._nnx.merge(self._graph, self._nnx.from_flat_state(flat), copy=True)

    def call(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """See `Parts.call`."""
        network = self._filled(arrays)
        network.eval()
        return _call_nnx(network, inputs)

    def build(self, arrays: Sequence[Array], sizes: AttributeSizes = BY_RULES) -> Any:
        """See `Parts.build`."""
        new = self._filled(arrays)
        before = dict(self._nnx.iter_modules(self._network))
        for path, module in self._nnx.iter_modules(new):
            prefix = "".join(f"{step}." for step in path)
            for name, value in sizes(prefix, before[path], module).items():
                setattr(module, name, value)
        return new


def nnx_batched(network: Any) -> Callable[..., Any]:
    """Return a function of a batch, in inference."""
    from flax import nnx

    graph, state = nnx.split(network)

    def run(*inputs: Array) -> Any:
        network: Any = nnx.merge(graph, state, copy=True)
        network.eval()
        return _call_nnx(network, inputs)

    return run

"""Networks that are really smaller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lazy_loader
import numpy as np

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.structure.call_arguments import Arguments
from bmrjax.structure.cost import Cost, Latency, cost, latency
from bmrjax.structure.equivalence import Trial, random_inputs
from bmrjax.structure.flat_input import flat_input
from bmrjax.structure.largest import Tried, largest
from bmrjax.structure.network_arrays import (
    Parts,
    WithArguments,
    checked_arguments,
    equinox_batched,
    is_equinox,
    nnx_batched,
    parts_of,
)
from bmrjax.structure.plan import Planner
from bmrjax.structure.traced_once import trace_once

NOTHING = (
    "nothing may go: every neuron, channel and head varies with the input and is read. Zeros make a network "
    "smaller where all weights into a unit, or all that read it, are zero."
)
_weight_norm: Any = lazy_loader.load("bmrjax.structure.weight_norm", suppress_warning=True)


@dataclass(frozen=True)
class Resized:
    """An array of the network that became smaller, or could not.

    Attributes:
        name: Path to it.
        before: Its shape.
        after: Its shape now.
        stays: Reasons why indices stayed that nothing needs, and for each how many of which axis.
        keep: For each axis, which of its indices stayed.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> weight = network.layers[1].weight.at[:, 3:].set(0.0)
        >>> network = eqx.tree_at(lambda n: n.layers[1].weight, network, weight)
        >>> array = bmr.compact(network, jnp.ones(4)).arrays[0]
        >>> array.name, array.before, array.after, array.keep[0].tolist()
        ('layers.0.weight', (8, 4), (3, 4), [True, True, True, False, False, False, False, False])
    """

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    stays: tuple[str, ...] = ()
    keep: tuple[np.ndarray, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Compact:
    """A network without what it does not use: what `compact` returns.

    Attributes:
        network: Of the same class, with smaller arrays. If input features are removed too (`drop_inputs`), it
            is within a `structure.SelectInputs`, which takes the same inputs as before.
        before: What the network cost.
        after: What it costs now.
        arrays: What became of each array.
        inputs: Positions in the flattened input that the network still reads; None for all.
        error: Largest difference of an output on the example and on random inputs, relative to the
            largest output.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> weight = network.layers[1].weight.at[:, 3:].set(0.0)
        >>> network = eqx.tree_at(lambda n: n.layers[1].weight, network, weight)
        >>> small = bmr.compact(network, jnp.ones(4))
        >>> small.before.parameters, small.after.parameters, small.error < 1e-6
        (58, 23, True)
    """

    network: Any
    before: Cost
    after: Cost
    arrays: list[Resized] = field(repr=False)
    inputs: np.ndarray | None = field(repr=False)
    error: float
    _old: Any = field(repr=False)
    _arguments: Arguments = field(repr=False)
    _shapes: list[tuple[tuple[int, ...], Any]] = field(repr=False)

    def latency(self, *, batch_sizes: Sequence[int] = (1, 256), repeats: int = 50) -> list[Latency]:
        """Time the network as it was and as it is, in turns, on the default device.

        Each is compiled in the form that is fastest there; see `compile_fastest`.

        Args:
            batch_sizes: Data a call.
            repeats: Calls of each.

        Returns:
            A row a batch size, in milliseconds.
        """
        both = (_batched(self._old), _batched(self.network))
        before, after = map(self._arguments.function, both)
        return latency(before, after, self._shapes, batch_sizes=batch_sizes, repeats=repeats)

    def cut(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return arrays that go with those of the old network, cut as these were.

        Args:
            arrays: Path in the old network to an array of the same shape, or to a number.

        Returns:
            Path in the smaller network to the array without the indices that are removed.

        Raises:
            ValueError: For a path that the old network does not have, or another shape.
        """
        prefix = "" if self.inputs is None else "network."
        known = {a.name: a for a in self.arrays}
        found = {}
        for name, given in arrays.items():
            array = np.asarray(given)
            old = known.get(name)
            if old is None or array.shape not in ((), old.before):
                expected = f"shape {old.before}" if old else f"one of {list(known)[:3]}, ..."
                raise ValueError(f"cut: '{name}' has shape {array.shape}, expected {expected}.")
            found[prefix + name] = array[np.ix_(*old.keep)] if array.ndim else array
        return found

    def __str__(self) -> str:
        """Return a table of what was removed, and what could not be."""
        rows = [("parameters", self.before.parameters, self.after.parameters)]
        rows += [("not zero", self.before.nonzero, self.after.nonzero)]
        rows += [("bytes", self.before.bytes, self.after.bytes)]
        rows += [("FLOPs per data point", int(self.before.flops), int(self.after.flops))]
        lines = [f"{name:<21} {a:>14,} -> {b:>12,}  ({_times(a, b)})" for name, a, b in rows]
        if self.inputs is not None:
            lines.append(f"inputs read: {len(self.inputs):,}")
        for a in self.arrays:
            if a.before != a.after:
                lines.append(f"{a.name}: {_shape(a.before)} -> {_shape(a.after)}")
            lines += [f"{a.name}: {reason}" for reason in a.stays]
        if not any(a.before != a.after or a.stays for a in self.arrays):
            lines.append(NOTHING)
        return "\n".join(lines)


def _times(before: float, after: float) -> str:
    return f"{before / after:.1f}x smaller" if after else "nothing left"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@not_after_fork
def compact(network: Any, *inputs: Any, drop_inputs: bool = False) -> Compact:
    """Return the same network without the neurons, filters, channels and heads that do nothing.

    What may go follows from the network's own operations: they say which indices of which arrays
    go together (a skip connection ties the outputs of its summands, a flattening ties a channel to
    a block of columns), which numbers vary with the input, and which of those reach an output. A
    unit whose output is constant goes too, and its constant goes into the next bias. So a network
    need not be declared in any way, and its outputs stay the same.

    Normalisation over a residual stream reads all its features: they stay, and the report says so. So
    does what the network's own code cannot do without: `structure.sizes_of` tells `compact` of sizes
    that a module of your own keeps in attributes.

    Args:
        network: An Equinox module, an ``(equinox module, equinox.nn.State)`` pair, or a Flax NNX
            module, with zeros where its weights were removed (as `Result.network` returns it).
        *inputs: Example inputs as the network takes them: one data point for Equinox, a batch for Flax
            NNX; arrays, or dicts and tuples of them. Shapes and dtypes count, and of integers (tokens,
            lengths) their range too: the smaller network is tried on these inputs, and on random ones
            like them. A `key` or `rngs` that the network's call requires is made here.
        drop_inputs: Whether input features that nothing reads go as well, if the network flattens
            its single input. It is then no longer of its own class, but wrapped in a
            `structure.SelectInputs`. False by default.

    Returns:
        The smaller network with a report; see `Compact`.

    Raises:
        TypeError: For anything but a network of JAX arrays, or inputs that are no arrays.
        ValueError: If the network does not run on the inputs, if its parameters are not finite, or if
            its outputs are not numbers.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> weight = network.layers[1].weight.at[:, 3:].set(0.0)
        >>> network = eqx.tree_at(lambda n: n.layers[1].weight, network, weight)
        >>> bmr.compact(network, jnp.ones(4)).network.layers[0].weight.shape
        (3, 4)
    """
    return _compacted(network, inputs, drop_inputs=drop_inputs)


@not_after_fork
def compact_for_any(network: Any, *inputs: Any, varies: Mapping[str, Any]) -> Compact:
    """Return the same network without what adds nothing to it, whatever values its arrays have.

    Elements outside of the masks are zero; all others may have any value. So the same units can be removed
    from all draws from a posterior with masks: `Compact.cut` cuts any of them. No constant is folded into a
    bias, and no axis loses all of its indices.

    Args:
        network: See `compact`.
        *inputs: Example inputs; see `compact`.
        varies: Path in the network to a mask of the elements that are not always zero, shaped as the array;
            by default all elements of an array.

    Raises:
        TypeError: See `compact`.
        ValueError: See `compact`.

    Example:
        A neuron with a bias, but without weights, is a constant, which `compact` folds. If the bias is
        not known, the neuron stays:

        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> from bmrjax.structure.compact import compact_for_any
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> weight = network.layers[0].weight.at[3:].set(0.0)
        >>> network = eqx.tree_at(lambda n: n.layers[0].weight, network, weight)
        >>> varies = {"layers.0.weight": weight != 0}
        >>> small = compact_for_any(network, jnp.ones(4), varies=varies)
        >>> small.network.layers[0].weight.shape
        (8, 4)
        >>> bmr.compact(network, jnp.ones(4)).network.layers[0].weight.shape
        (3, 4)
        >>> varies["layers.0.bias"] = jnp.arange(8) < 3
        >>> small = compact_for_any(network, jnp.ones(4), varies=varies)
        >>> small.network.layers[0].weight.shape
        (3, 4)
    """
    return _compacted(network, inputs, varies=varies)


def _compacted(
    network: Any,
    inputs: tuple[Any, ...],
    *,
    drop_inputs: bool = False,
    varies: Mapping[str, Any] | None = None,
) -> Compact:
    if is_equinox(network):
        network = _weight_norm.finite_weight_norms(network)
    parts = parts_of(network, caller="compact")
    for name, array in zip(parts.names, parts.arrays, strict=True):
        if not np.isfinite(np.asarray(array)).all():
            raise ValueError(
                f"compact: '{name}' has values that are not finite. What adds minus infinity to hide "
                "something, as a mask of attention, is a constant: make it in the network's code."
            )
    arguments = checked_arguments("compact", network, parts, inputs)
    inputs, flat = arguments.arrays, None
    if drop_inputs and arguments.structure is None:
        flat = flat_input(parts, inputs, batch=not is_equinox(network))
    parts = WithArguments(parts, arguments)
    taken = inputs if flat is None else (flat,)
    whole = arguments.traced
    seen = whole if flat is None else trace_once(parts.call, parts.arrays, taken)
    masks = None
    if varies is not None:
        ones = [np.ones(array.shape, bool) for array in parts.arrays]
        masks = [varies.get(name, one) for name, one in zip(parts.names, ones, strict=True)]
    planner = Planner(seen, parts.arrays, taken, free_inputs=flat is not None, varies=masks)
    old = Trial(whole, parts.arrays, random_inputs(inputs), shake=True)
    again = lambda small: WithArguments(parts_of(small, caller="compact"), arguments)  # noqa: E731
    tried = largest(parts, again, planner, old, flat=flat is not None)
    new = parts_of(tried.network, caller="compact")
    size = 1 if is_equinox(network) else inputs[0].shape[0]
    return Compact(
        network=tried.network,
        before=cost(parts.arrays, parts.trained, old.flops / size),
        after=cost(new.arrays, new.trained, tried.flops / size),
        arrays=_resized(parts, tried),
        inputs=tried.inputs,
        error=tried.error,
        _old=network,
        _arguments=arguments,
        _shapes=[(x.shape if is_equinox(network) else x.shape[1:], x.dtype) for x in inputs],
    )


def _batched(network: Any) -> Any:
    return equinox_batched(network) if is_equinox(network) else nnx_batched(network)


def _resized(parts: Parts, tried: Tried) -> list[Resized]:
    found = []
    for i, (name, old) in enumerate(zip(parts.names, parts.arrays, strict=True)):
        after = tuple(int(mask.sum()) for mask in tried.plan.keep[i])
        stays = []
        for axis in range(old.ndim):
            why = tried.plan.stays.get((i, axis), {})
            stays += [f"{n} of axis {axis} stay: {reason}" for reason, n in why.items()]
            if (i, axis) in tried.refused:
                stays.append(f"axis {axis} stays: {tried.refused[i, axis]}")
        keep = tuple(np.asarray(mask, bool) for mask in tried.plan.keep[i])
        found.append(Resized(name, old.shape, after, tuple(stays), keep))
    return found

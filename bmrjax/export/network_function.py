"""A network as a function of a batch, with its arrays by name."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.structure import Compact
from bmrjax.structure.equivalence import ZERO_BY_ZERO
from bmrjax.structure.network_arrays import WithArguments, checked_arguments, is_equinox, parts_of


@dataclass(frozen=True)
class NetworkFunction:
    """A network, ready to be exported.

    Attributes:
        network: The network.
        names: Paths of its floating-point arrays.
        arrays: The arrays.
        inputs: A batch for it.
        output_axis: Axis of a weight that numbers its outputs: 0 for Equinox, -1 for Flax.
        call: From arrays and inputs to outputs, of a batch.
        compiled: The same, compiled: one by one, operations take longer than to compile them together.
        cut: Arrays of the network as it was before `compact`, as they are now.
    """

    network: Any
    names: list[str]
    arrays: list[jax.Array]
    inputs: tuple[jax.Array, ...]
    output_axis: int
    call: Callable[..., Any]
    compiled: Callable[..., Any]
    cut: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    def function(self, arrays: Any = None) -> Callable[..., Any]:
        """Return the function of a batch, with these arrays in place of the network's."""
        held = list(self.arrays if arrays is None else arrays)
        return lambda *inputs: self.call(held, inputs)

    def outputs(self, inputs: Any, arrays: Any = None) -> Any:
        """Return what the network gives for a batch, with these arrays in place of its own."""
        return self.compiled(list(self.arrays if arrays is None else arrays), tuple(inputs))

    def batch(self, rows: int) -> tuple[np.ndarray, ...]:
        """Return so many rows of the example, the last ones repeated and changed a little."""
        found = []
        for x in self.inputs:
            x = np.asarray(x)
            more = x[np.arange(rows) % len(x)]
            if np.issubdtype(x.dtype, np.floating):
                ramp = 1 + 0.1 * (np.arange(rows) // len(x)).reshape(-1, *[1] * (x.ndim - 1))
                more = (more * ramp).astype(x.dtype)
            found.append(more)
        return tuple(found)


def network_function(caller: str, network: Any, example: Any) -> NetworkFunction:
    """Take a network apart for export.

    Args:
        caller: Name of the calling function, for messages.
        network: An Equinox module, an (Equinox module, State) pair, a Flax NNX module, or what `compact`
            returned.
        example: As the network takes it: one data point for Equinox, a batch for Flax; a tuple where it takes
            several arrays. Of a dict, and other trees of arrays, the function takes the leaves.

    Raises:
        TypeError: For anything else.
        ValueError: If the network does not run on the example.
    """
    cut: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    if isinstance(network, Compact):
        network, cut = network.network, network.cut
    parts = parts_of(network, caller=caller)
    given = example if isinstance(example, tuple) else (example,)
    arguments = checked_arguments(caller, network, parts, given)
    inputs, parts = arguments.arrays, WithArguments(parts, arguments)
    if not inputs:
        raise ValueError(f"{caller}: give an example of the network's inputs.")
    call = parts.call
    equinox = is_equinox(network)
    if equinox:
        inputs = tuple(x[None] for x in inputs)
        call = _batched(parts.call)
    elif any(x.ndim == 0 for x in inputs) or len({len(x) for x in inputs}) > 1:
        raise ValueError(
            f"{caller}: a Flax network takes batches; give inputs with one row per data point."
        )
    compiled = jax.jit(call)
    made = NetworkFunction(
        network,
        list(parts.names),
        list(parts.arrays),
        inputs,
        0 if equinox else -1,
        call,
        compiled,
        cut,
    )
    if not all(np.isfinite(y).all() for y in flat(made.outputs(inputs))):
        raise ValueError(
            f"{caller}: the outputs of the network on the example are not finite; give another example. "
            f"{ZERO_BY_ZERO}"
        )
    return made


def _batched(call: Callable[..., Any]) -> Callable[..., Any]:
    def batched(arrays: Any, inputs: Any) -> Any:
        return jax.vmap(lambda *x: call(arrays, x), axis_name="batch")(*inputs)

    return batched


def flat(outputs: Any) -> list[np.ndarray]:
    """Return outputs as a list of arrays."""
    return [np.asarray(x) for x in jax.tree.leaves(outputs)]


def output_difference(found: Any, expected: Any) -> float:
    """Return the largest difference between outputs, relative to the largest of those expected."""
    first, second = flat(found), flat(expected)
    if [x.shape for x in first] != [x.shape for x in second]:
        return float("inf")
    if not all(np.isfinite(x).all() for x in first + second):
        return float("inf")
    largest = max((np.abs(x).max(initial=0) for x in second), default=0.0)
    gaps = [
        np.abs(a.astype(np.float64) - b).max(initial=0) for a, b in zip(first, second, strict=True)
    ]
    return float(max(gaps, default=0.0) / (largest or 1.0))


def check_outputs(caller: str, file: Any, error: float, tolerance: float) -> None:
    """Raise ValueError if outputs of what was written differ from those of the network."""
    if not error <= tolerance:
        raise ValueError(
            f"{caller}: the outputs of what would be {file} differ from the network's by {error:.1e} of the "
            f"largest, and {tolerance:.0e} is allowed, so nothing was written. A larger tolerance= accepts "
            "it."
        )


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call, after one that is not timed; NaN for no repeats."""
    if not repeats:
        return float("nan")
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times))


def compiled_call(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """Return a call of a compiled function on a batch."""
    run, held = jax.jit(function), tuple(jnp.asarray(x) for x in inputs)
    return lambda: run(*held)

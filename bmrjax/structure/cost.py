"""What a network costs: parameters, floating-point operations, bytes, and measured time."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.backend.jaxprs import CALLS, closed, inner
from bmrjax.backend.quick_compile import quick_options
from bmrjax.structure.inference import compile_fastest


@dataclass(frozen=True)
class Cost:
    """What one network costs.

    Attributes:
        parameters: Floating-point parameters, running statistics not among them.
        nonzero: Those that are not zero.
        bytes: Of all its floating-point arrays.
        flops: Floating-point operations for one data point, as the compiler counts them.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> weight = network.layers[1].weight.at[:, 3:].set(0.0)
        >>> network = eqx.tree_at(lambda n: n.layers[1].weight, network, weight)
        >>> cost = bmr.compact(network, jnp.ones(4)).before
        >>> cost.parameters, cost.nonzero, cost.bytes
        (58, 38, 232)
    """

    parameters: int
    nonzero: int
    bytes: int
    flops: float


@dataclass(frozen=True)
class Latency:
    """Measured time of one call.

    Attributes:
        batch_size: Data in the batch.
        before: Milliseconds, median over the repeats, of the network as it was.
        after: Of the smaller one.
        device: Where.

    Example:
        >>> from bmrjax import structure
        >>> structure.Latency(batch_size=256, before=6.0, after=1.5, device="cpu").speedup
        4.0
    """

    batch_size: int
    before: float
    after: float
    device: str

    @property
    def speedup(self) -> float:
        """`before` over `after`."""
        return self.before / self.after


def compiled_exactly(function: Callable[..., Any], *args: Any) -> Any:
    """Compile a function that runs a few times: fast to compile, not fast, with products in full precision.

    Args:
        function: Of arrays.
        *args: Its arguments.

    Returns:
        A `jax.stages.Compiled`.
    """
    # Else accelerators round products to fewer digits than outputs are compared by.
    with jax.default_matmul_precision("highest"):
        return jax.jit(function).lower(*args).compile(compiler_options=quick_options())


def flops(program: Any, jaxpr: Any) -> float:
    """Return the floating-point operations of a compiled function, as XLA counts them.

    XLA counts what is in a loop once; here a scan counts as often as it runs. A loop whose length is not
    known still counts once.

    Args:
        program: A `jax.stages.Compiled`.
        jaxpr: What was compiled.
    """
    return _counted(program) + _in_loops(jaxpr)


def _counted(program: Any) -> float:
    found = program.cost_analysis()
    found = found[0] if isinstance(found, list) else found
    return float((found or {}).get("flops", 0.0))


def _in_loops(jaxpr: Any) -> float:
    """Return the operations that scans run beyond those that are counted."""
    found = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in CALLS:
            found += _in_loops(closed(inner(eqn))[0])
        elif eqn.primitive.name == "scan":
            body, length = eqn.params["jaxpr"], eqn.params["length"]
            args = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in body.jaxpr.invars]
            once = _counted(compiled_exactly(jec.jaxpr_as_fun(body), *args))
            found += length * (once + _in_loops(body.jaxpr)) - min(length, 1) * once
    return found


def cost(arrays: Sequence[Array], trained: Sequence[bool], count: float) -> Cost:
    """Return what a network costs.

    Args:
        arrays: Its floating-point arrays.
        trained: Which are parameters.
        count: Floating-point operations for one data point.
    """
    parameters = [a for a, flag in zip(arrays, trained, strict=True) if flag]
    return Cost(
        sum(a.size for a in parameters),
        sum(int(np.count_nonzero(np.asarray(a))) for a in parameters),
        sum(a.nbytes for a in arrays),
        count,
    )


def latency(
    before: Callable[..., Any],
    after: Callable[..., Any],
    shapes: Sequence[tuple[tuple[int, ...], Any]],
    *,
    batch_sizes: Sequence[int] = (1, 256),
    repeats: int = 50,
) -> list[Latency]:
    """Time two functions of batches, in turns, each in the form that is fastest here; see `compile_fastest`.

    Args:
        before: A function of batches.
        after: Another one of the same arguments.
        shapes: Shape and dtype of one data point of each argument.
        batch_sizes: How many data to time them on.
        repeats: Calls of each; the median counts.
    """
    found = []
    for size in batch_sizes:
        batch = [jnp.ones((size, *shape), dtype) for shape, dtype in shapes]
        compiled = [compile_fastest(f, *batch) for f in (before, after)]
        times: list[list[float]] = [[], []]
        for turn in range(repeats + 3):
            for one, kept in zip(compiled, times, strict=True):
                begin = time.perf_counter()
                jax.block_until_ready(one(*batch))
                if turn >= 3:
                    kept.append(1e3 * (time.perf_counter() - begin))
        middle = [statistics.median(t) for t in times]
        found.append(Latency(size, middle[0], middle[1], jax.devices()[0].device_kind))
    return found

"""Compile quickly what computes little."""

import functools
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import jax
from jax.core import Tracer

# Settings of XLA's CPU compiler with which a program is compiled in less than half of the time, and takes
# longer to run. Measured once on two cores, on a network of 501 weights and batches of 128 rows, whose step
# has 2,828 equations and 244,000 elements: 5.1 s of CPU to compile by default and 2.1 s with these; .14 ms
# and .39 ms per step.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
# For everything else: the compiler's defaults, and what ``XLA_FLAGS`` says.
_DEFAULT: dict[str, Any] = {}

_SECONDS_PER_EQUATION = 1.1e-3
_SECONDS_PER_ELEMENT = 1.0e-9


@functools.cache
def quick_options() -> dict[str, Any]:
    """Return compiler options for a program that runs a few times; none where the backend has none."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=_QUICK)
    except (jax.errors.JaxRuntimeError, ValueError):
        return {}  # another version of XLA, without one of them
    return dict(_QUICK)


def quick_jit(
    function: Callable[..., Any], *, num_calls: int = 100, **settings: Any
) -> Callable[..., Any]:
    """Return ``jax.jit(function, **settings)``, with the compiler options that give its results soonest.

    Args:
        function: A pure function.
        num_calls: How often it will be called, roughly.
        **settings: Of `jax.jit`.
    """
    plain = jax.jit(function, **settings)

    @functools.cache
    def quick() -> Callable[..., Any]:
        return jax.jit(function, compiler_options=quick_options(), **settings)

    # Which of the two, by the shapes of the arguments.
    chosen: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return plain(*args, **kwargs)
        shapes = structure, tuple(getattr(leaf, "shape", leaf) for leaf in leaves)
        if shapes not in chosen:
            jaxpr = plain.trace(*args, **kwargs).jaxpr.jaxpr
            chosen[shapes] = plain if options_for(jaxpr, num_calls) is _DEFAULT else quick()
        return chosen[shapes](*args, **kwargs)

    return call


def options_for(jaxpr: Any, num_calls: int) -> dict[str, Any]:
    """Return the compiler options that give the results of `num_calls` calls soonest.

    Args:
        jaxpr: The program.
        num_calls: How often it runs. The body of a ``while`` loop counts once a call.
    """
    elements, equations = _size(jaxpr)
    slower = num_calls * elements * _SECONDS_PER_ELEMENT
    return quick_options() if slower < equations * _SECONDS_PER_EQUATION else _DEFAULT


def _size(jaxpr: Any) -> tuple[int, int]:
    """Return the number of elements that a program computes, and the number of its equations."""
    elements = equations = 0
    for equation in jaxpr.eqns:
        inner = [each for value in equation.params.values() for each in _programs(value)]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        if not inner:
            equations += 1
            elements += sum(prod(getattr(x.aval, "shape", ())) for x in equation.outvars)
        for each in inner:
            of_one, in_one = _size(each)
            elements += times * of_one
            equations += in_one
    return elements, equations


def _programs(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield value.jaxpr
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _programs(each)

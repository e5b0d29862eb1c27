"""Compile quickly what computes little."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

# Settings of XLA's CPU compiler, from those that compile soonest to its own defaults (and what ``XLA_FLAGS``
# says), with the seconds that an equation of a program takes to compile, and an element that it computes.
# Measured on two cores, on the steps of two networks: one of 501 weights and batches of 128 rows (2,830
# equations, 244,000 elements) took 2.3, 3.5 and 6.6 s to compile and .45, .13 and .13 ms to run; one of
# 17,510 weights (3,891 equations, 5.7 million elements) took 2.9, 6.5 and 6.1 s, and 4.5, 1.3 and .7 ms.
_QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_MIDDLE: dict[str, Any] = _QUICK | {"xla_backend_optimization_level": 1}
_DEFAULT: dict[str, Any] = {}
_COSTS = (
    (_QUICK, 0.8e-3, 1.2e-9),
    (_MIDDLE, 1.3e-3, 0.25e-9),
    (_DEFAULT, 2.0e-3, 0.15e-9),
)


def _outside_of_any_program() -> Any:
    """Return what `get_opaque_trace_state` says where nothing is traced, wherever this is called."""
    with ThreadPoolExecutor(1) as pool:  # tracing is a matter of one thread
        return pool.submit(get_opaque_trace_state).result()


# This module may be imported while a program is traced.
_OUTSIDE = _outside_of_any_program()


@functools.cache
def has_options() -> bool:
    """Return whether the compiler of the default backend knows these settings."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=_QUICK)
    except (jax.errors.JaxRuntimeError, ValueError):
        return False  # another version of XLA, without one of them
    return True


def quick_options() -> dict[str, Any]:
    """Return compiler options for a program that runs once; none where the backend has none."""
    return dict(_QUICK) if has_options() else {}


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
    def with_options(chosen: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
        return jax.jit(function, compiler_options=dict(chosen), **settings) if chosen else plain

    # Which of them, by the shapes of the arguments.
    known: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if get_opaque_trace_state() != _OUTSIDE:  # options are for programs, not for parts of one
            return plain(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        shapes = structure, tuple(getattr(leaf, "shape", leaf) for leaf in leaves)
        if shapes not in known:
            jaxpr = plain.trace(*args, **kwargs).jaxpr.jaxpr
            known[shapes] = with_options(tuple(options_for(jaxpr, num_calls).items()))
        return known[shapes](*args, **kwargs)

    return call


def options_for(jaxpr: Any, num_calls: int) -> dict[str, Any]:
    """Return the compiler options that give the results of `num_calls` calls soonest.

    Args:
        jaxpr: The program.
        num_calls: How often it runs. The body of a ``while`` loop counts once a call.
    """
    if not has_options():
        return _DEFAULT
    elements, equations = _size(jaxpr)

    def seconds(of: tuple[dict[str, Any], float, float]) -> float:
        _, per_equation, per_element = of
        return equations * per_equation + num_calls * elements * per_element

    return min(_COSTS, key=seconds)[0]


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

"""Compile quickly what computes little."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

from bmrjax.backend.shared_programs import compiled

# Settings of XLA's CPU compiler, from those that compile soonest to its own defaults (and what ``XLA_FLAGS``
# says), with the seconds that a line of a program's text takes to compile, and an element that it computes.
# Measured in seconds of a core, on the training programs of six jobs: a regression and five networks, of
# 1,307 to 5,401 lines and .3 to 296 million elements. A line took .19 to .27 ms to compile with the first
# settings, .39 to .82 with the second and .81 to 1.8 with the defaults; an element .3 to .9, .12 to .32 and
# .07 to .23 ns.
_QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    # Parts that are compiled side by side are more work: a fifth to a third of that of so small a program.
    "xla_cpu_parallel_codegen_split_count": 1,
}
_MIDDLE: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_DEFAULT: dict[str, Any] = {}
_COSTS = (
    (_QUICK, 0.22e-3, 0.60e-9),
    (_MIDDLE, 0.60e-3, 0.17e-9),
    (_DEFAULT, 1.05e-3, 0.14e-9),
)


def _outside_of_any_program() -> Any:
    """Return what `get_opaque_trace_state` says where nothing is traced, wherever this is called."""
    with ThreadPoolExecutor(1) as pool:  # tracing is a matter of one thread
        return pool.submit(get_opaque_trace_state).result()


# This module may be imported while a program is traced.
_OUTSIDE = _outside_of_any_program()


def traces_nothing() -> bool:
    """Return whether operations are computed where they stand, and not made part of a program."""
    return get_opaque_trace_state() == _OUTSIDE


@functools.cache
def has_options() -> bool:
    """Return whether the compiler of the default backend knows these settings."""
    if jax.default_backend() != "cpu":
        return False
    return _takes_options()


def _takes_options() -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=_QUICK)
    except (jax.errors.JaxRuntimeError, ValueError):
        return False  # another version of XLA, without one of them
    return True


def quick_options() -> dict[str, Any]:
    """Return compiler options for a program that runs once; none where the backend has none."""
    return dict(_QUICK) if has_options() else {}


@functools.cache
def host_options() -> dict[str, Any]:
    """Return compiler options for a program that runs once on the host, beside an accelerator."""
    with jax.default_device(jax.devices("cpu")[0]):
        return dict(_QUICK) if _takes_options() else {}


def quick_jit(
    function: Callable[..., Any],
    *,
    num_calls: int = 100,
    mostly_products: bool = False,
    **settings: Any,
) -> Callable[..., Any]:
    """Return ``jax.jit(function, **settings)``, with the compiler options that give its results soonest.

    The same program that this process has compiled before, for another function, is used again.

    Args:
        function: A pure function. What it closes over must not change.
        num_calls: How often it will be called, roughly.
        mostly_products: Whether its time goes into matrix products and convolutions, for which it makes no
            difference how the rest is compiled. Then XLA's own settings are not considered. Going back
            through a LeNet-5 took as long with them, 37 ms, and 5.0 s to compile in place of 1.7.
        **settings: Of `jax.jit`. An argument in `static_argnames` is given by its name.
    """
    plain = jax.jit(function, **settings)
    positions = settings.get("static_argnums", ())
    positions = {positions} if isinstance(positions, int) else set(positions)
    names = settings.get("static_argnames", ())
    names = {names} if isinstance(names, str) else set(names)

    @functools.cache
    def with_options(chosen: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
        return jax.jit(function, compiler_options=dict(chosen), **settings) if chosen else plain

    # The program for arguments of each shape.
    known: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Options are for programs, not for parts of one, nor for operations one by one.
        if not traces_nothing() or jax.config.values["jax_disable_jit"]:
            return plain(*args, **kwargs)
        static = (
            tuple(each for i, each in enumerate(args) if i in positions),
            tuple(item for item in sorted(kwargs.items()) if item[0] in names),
        )
        traced = tuple(each for i, each in enumerate(args) if i not in positions)
        by_name = {name: each for name, each in kwargs.items() if name not in names}
        if jax.device_count() > 1:  # JAX's own cache knows on which of them arguments lie
            key = None, static, _kinds((traced, by_name))
            if key not in known:
                jaxpr = plain.trace(*args, **kwargs).jaxpr.jaxpr
                known[key] = with_options(
                    tuple(options_for(jaxpr, num_calls, mostly_products=mostly_products).items())
                )
            return known[key](*args, **kwargs)
        key = static, _kinds((traced, by_name))
        if key not in known:
            traced_once = plain.trace(*args, **kwargs)
            known[key] = compiled_for(traced_once, num_calls, mostly_products=mostly_products)
        return known[key](*traced, **by_name)

    return call


def compiled_for(traced: Any, num_calls: int, *, mostly_products: bool = False) -> Any:
    """Return a traced program compiled with the options that give its results soonest, or an earlier one.

    Args:
        traced: From ``jax.jit(f).trace(...)``.
        num_calls: How often it will be called, roughly. The choice must not depend on more of a run than its
            program, since a run that is resumed has to use the same one.
        mostly_products: See `quick_jit`.
    """
    jaxpr = traced.jaxpr.jaxpr

    def options(num_lines: int) -> dict[str, Any]:
        return options_for(jaxpr, num_calls, num_lines=num_lines, mostly_products=mostly_products)

    return compiled(traced, options)


def _kinds(tree: Any) -> Any:
    """Return what a program is compiled for: shapes and types of its arguments, and the precision."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = (
        (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False))
        if hasattr(leaf, "dtype")
        else type(leaf)
        for leaf in leaves
    )
    values = jax.config.values
    precision = values["jax_enable_x64"], values["jax_default_matmul_precision"]
    return structure, tuple(kinds), precision


def options_for(
    jaxpr: Any, num_calls: int, *, num_lines: int | None = None, mostly_products: bool = False
) -> dict[str, Any]:
    """Return the compiler options that give the results of `num_calls` calls soonest.

    Args:
        jaxpr: The program.
        num_calls: How often it runs. The body of a ``while`` loop counts once a call.
        num_lines: Length of its text, lowered; about as many as equations, unless it draws much.
        mostly_products: See `quick_jit`.
    """
    if not has_options():
        return {}
    elements, equations = _size(jaxpr)
    lines = equations if num_lines is None else num_lines

    def seconds(of: tuple[dict[str, Any], float, float]) -> float:
        _, per_line, per_element = of
        return lines * per_line + num_calls * elements * per_element

    return min(_COSTS[:2] if mostly_products else _COSTS, key=seconds)[0]


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

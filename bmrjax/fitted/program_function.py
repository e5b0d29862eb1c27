"""Functions of a program and its data, compiled once for all data of the same shapes."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from bmrjax.backend.shared_programs import compiled
from bmrjax.fitted.layout import shortened
from bmrjax.handlers import inference
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import at_start
from bmrjax.infer.tracing import sites_of

T = TypeVar("T")


# What JAX raises where a program computes with the values of its data while it is traced.
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def with_parameters(model: Callable, params: Mapping[str, Any] | None) -> Callable:
    """Return a program whose parameters and mutable sites have the values that a fit gave them.

    Without this, they would have those that they start from.

    Args:
        model: NumPyro program.
        params: Constrained parameters of the fit, those of its guide among them, and mutable sites, such as
            running statistics; None for a fit without.
    """
    if not params:
        return model

    def fitted(site: Mapping[str, Any]) -> Any:
        return params.get(site["name"]) if site["type"] in ("param", "mutable") else None

    return numpyro.handlers.substitute(model, substitute_fn=fitted)


def check_parameters(model: Callable, params: Mapping[str, Any] | None, data: Data) -> None:
    """Refuse a program some of whose parameters or mutable sites are not among those of the fit.

    They would be evaluated where they start, which is not where the fit ended.

    Args:
        model: NumPyro program.
        params: Constrained parameters and mutable sites of the fit.
        data: The program's arguments.

    Raises:
        ValueError: If there are such sites, unless a handler around the program sets them.
    """
    unknown: dict[str, str] = {}

    def note(site: Mapping[str, Any]) -> None:
        if site["type"] not in ("param", "mutable") or site["name"] in (params or {}):
            return
        if site["value"] is None or site["value"] is site["args"][0]:
            unknown[site["name"]] = site["type"]

    look_at_sites(lambda _: None, numpyro.handlers.substitute(model, substitute_fn=note), data)
    if unknown:
        mutable = " and svi_result.state.mutable_state" if "mutable" in unknown.values() else ""
        raise ValueError(
            f"reduce_fit: the program has {shortened(list(unknown))} "
            f"(numpyro.{next(iter(unknown.values()))}), and nothing says at which value it was fitted: give "
            f"params=, a dict with that value. Of SVI, it is in svi_result.params{mutable}."
        )


def program_function(
    function: Callable[..., Any], model: Callable, data: Data
) -> Callable[[Any], Any]:
    """Return a compiled function of one argument, for a program and its data.

    The data are arguments of what is compiled, unless the program computes with their values while it is
    traced; then they are constants of it, and other data are compiled anew.

    Args:
        function: `function(seeded_model, args, kwargs, points)`.
        model: NumPyro program.
        data: Its arguments.
    """
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    arrays, rest = eqx.partition(arguments(data), _is_array)
    arrays = jax.tree.map(jnp.asarray, arrays)

    def of_arrays(arrays: Any, points: Any) -> Any:
        args, kwargs = eqx.combine(arrays, rest)
        return function(seeded, args, kwargs, points)

    def of_constants(_: Any, points: Any) -> Any:
        args, kwargs = arguments(data)
        return function(seeded, args, kwargs, points)

    programs: dict[Any, Any] = {}

    def call(points: Any) -> Any:
        points = jax.tree.map(jnp.asarray, points)
        shapes = tuple((a.shape, str(a.dtype)) for a in jax.tree.leaves(points))
        if shapes not in programs:
            with inference():
                try:
                    traced = jax.jit(of_arrays).trace(arrays, points)
                except _NEEDS_VALUES:
                    traced = jax.jit(of_constants).trace(arrays, points)
                programs[shapes] = compiled(traced)
        return programs[shapes](arrays, points)

    return call


def look_at_sites(look: Callable[[Any], T], model: Callable, data: Data) -> T:
    """Return what can be seen of the sites of a program without computing anything.

    Where a program computes with the values of its data while it is traced, it is run.

    Args:
        look: Function of the sites that does not return any of their values.
        model: NumPyro program.
        data: Its arguments.
    """
    seen: list[T] = []

    def run() -> None:
        args, kwargs = arguments(data)
        seen.append(look(sites_of(at_start(model), args, kwargs)))

    with inference():
        try:
            jax.eval_shape(run)
        except _NEEDS_VALUES:
            run()
    return seen[-1]


def remembered_function(
    known: dict[str, Any], function: Callable[..., Any], model: Callable, data: Data
) -> Callable[[Any], Any]:
    """Return `program_function` of a function, the one of before if there was one for this program.

    Args:
        known: Name of a function to the program, the data and what was compiled.
        function: See `program_function`.
        model: NumPyro program.
        data: Its arguments.
    """
    name = function.__qualname__
    of_before = known.get(name)
    if of_before is None or of_before[0] is not model or of_before[1] is not data:
        known[name] = of_before = model, data, program_function(function, model, data)
    return of_before[2]


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | jax.Array) and value.dtype.kind in "biufc"

"""Helpers for reading jaxprs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jec
from jaxtyping import Array

# Operations that only hold a function.
CALLS = (
    "pjit", "jit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
)  # fmt: skip


def inner(eqn: Any) -> Any:
    """Return the jaxpr of an operation that only holds a function."""
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return next(eqn.params[name] for name in names if name in eqn.params)


def closed(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return a jaxpr, open or closed, and its constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())


def scan_parts(eqn: Any, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Split what goes into a `scan`: constants, what is carried along, and what has a part for each turn.

    Args:
        eqn: The operation.
        values: One for each of its inputs.
    """
    first = eqn.params["num_consts"]
    last = first + eqn.params["num_carry"]
    return list(values[:first]), list(values[first:last]), list(values[last:])


def bind(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run an operation on arrays."""
    # Older versions of JAX hand the functions that an operation holds out apart from its parameters.
    params = eqn.primitive.get_bind_params(eqn.params)
    functions, params = params if isinstance(params, tuple) else ((), params)
    found = eqn.primitive.bind(*functions, *inputs, **params)
    return list(found) if eqn.primitive.multiple_results else [found]


def bind_one(eqn: Any, inputs: Sequence[Any]) -> Array:
    """Run an operation with one result on arrays."""
    return bind(eqn, inputs)[0]


def evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    rule: Callable[[Any, list[Any]], list[Any] | None],
) -> list[Any]:
    """Run a jaxpr with another form of some operations, calls written out.

    Args:
        jaxpr: An open jaxpr.
        consts: Its constants.
        args: Its arguments.
        rule: Takes an operation and its inputs, and returns its results; None to run it as it is.
    """
    values: dict[Any, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True)
    )

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jec.Literal) else values[var]

    for eqn in jaxpr.eqns:
        inputs = [read(var) for var in eqn.invars]
        if eqn.primitive.name in CALLS:
            found = evaluate(*closed(inner(eqn)), inputs, rule)
        else:
            found = rule(eqn, inputs)
            found = bind(eqn, inputs) if found is None else found
        values.update(zip(eqn.outvars, found, strict=True))
    return [read(var) for var in jaxpr.outvars]

"""What those who read a jaxpr share."""

from collections.abc import Sequence
from typing import Any

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

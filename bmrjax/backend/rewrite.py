"""Running a function with some of its operations in another form, wherever they stand in it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jec

from bmrjax.backend.jaxprs import CALLS, bind, closed

Form = Callable[[list[Any]], list[Any]]
Replace = Callable[[Any, str], Form | None]

# Operations whose functions may be written anew. What others hold (a linear solve, a kernel) stays as it is.
_HOLDERS = (*CALLS, "scan", "while", "cond")


def rewritten(function: Callable[..., Any], rule: Replace) -> Callable[..., Any]:
    """Return a function that computes some operations in another form, in loops and branches too.

    Args:
        function: A pure, traceable function of pytrees of arrays. Its derivatives must be taken before.
        rule: Takes an operation of a jaxpr, and the names of the scopes that it stands in. Returns what
            computes its results from its inputs, or None to leave it as it is.

    Returns:
        The function, traced anew at each call.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.backend.rewrite import rewritten
        >>> def squared(eqn, names):
        ...     return (lambda x: [jnp.sin(x[0]) ** 2]) if eqn.primitive.name == "sin" else None
        >>> print(f"{rewritten(jnp.sin, squared)(jnp.pi / 4):.2f}")
        0.50
    """

    def run(*args: Any) -> Any:
        whole, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        found = _run(whole.jaxpr, whole.consts, jax.tree.leaves(args), rule, "")
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return run


def any_operation(jaxpr: Any, is_one: Callable[[Any], bool]) -> bool:
    """Say whether a jaxpr, or one that its operations hold, has an operation of some kind."""
    return any(
        is_one(eqn)
        or any(any_operation(inner, is_one) for inner in jec.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def _run(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], rule: Replace, outer: str
) -> list[Any]:
    values: dict[Any, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True)
    )

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jec.Literal) else values[var]

    for eqn in jaxpr.eqns:
        found = _apply(eqn, [read(var) for var in eqn.invars], rule, _names(eqn, outer))
        values.update(zip(eqn.outvars, found, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _names(eqn: Any, outer: str) -> str:
    # A function inside of an operation has names of its own.
    return f"{outer}/{eqn.source_info.name_stack}"


def _apply(eqn: Any, inputs: list[Any], rule: Replace, names: str) -> list[Any]:
    form = rule(eqn, names)
    if form is not None:
        return form(inputs)
    if eqn.primitive.name in _HOLDERS and _holds(eqn, rule, names):
        params = {name: _anew(value, rule, names) for name, value in eqn.params.items()}
        eqn = eqn.replace(params=params)
    return bind(eqn, inputs)


def _holds(eqn: Any, rule: Replace, names: str) -> bool:
    return any(
        rule(inner, _names(inner, names)) is not None or _holds(inner, rule, _names(inner, names))
        for jaxpr in jec.jaxprs_in_params(eqn.params)
        for inner in jaxpr.eqns
    )


def _anew(value: Any, rule: Replace, names: str) -> Any:
    """Return a parameter of an operation with the functions in it written anew."""
    if isinstance(value, tuple) and any(hasattr(part, "eqns") for part in value):
        return tuple(_anew(part, rule, names) for part in value)
    if not hasattr(value, "eqns"):
        return value
    jaxpr, consts = closed(value)

    def run(*args: Any) -> list[Any]:
        return _run(jaxpr, consts, args, rule, names)

    found = jax.make_jaxpr(run)(*[v.aval for v in jaxpr.invars])
    return found if hasattr(value, "consts") else found.jaxpr

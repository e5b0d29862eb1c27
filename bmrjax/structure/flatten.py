"""A function as one flat list of operations, without calls and loops in it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jec
from jaxtyping import Array

from bmrjax.jaxprs import CALLS, bind, closed, inner

# A longer loop stays one operation, of which nothing is known.
MAX_UNROLLED = 128


def flatten(function: Callable[..., Any], *args: Array) -> jec.ClosedJaxpr:
    """Trace a function of arrays, calls written out and short loops unrolled.

    Args:
        function: A pure, traceable function, to a pytree of arrays.
        *args: Arrays.
    """
    whole = jax.make_jaxpr(function)(*args)

    def flat(*values: Any) -> list[Any]:
        return _run(whole.jaxpr, whole.consts, values)

    return jax.make_jaxpr(flat)(*args)


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True)
    )

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jec.Literal) else values[var]

    for eqn in jaxpr.eqns:
        inputs = [read(var) for var in eqn.invars]
        if eqn.primitive.name in CALLS:
            found = _run(*closed(inner(eqn)), inputs)
        elif eqn.primitive.name == "scan" and eqn.params["length"] <= MAX_UNROLLED:
            found = _unrolled(eqn, inputs)
        else:
            found = bind(eqn, inputs)
        values.update(zip(eqn.outvars, found, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _unrolled(eqn: Any, inputs: list[Any]) -> list[Any]:
    params = eqn.params
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, xs = inputs[:first], inputs[first:last], inputs[last:]
    rows: list[list[Any]] = []
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        step = [jax.lax.index_in_dim(x, i, keepdims=False) for x in xs]
        found = _run(*closed(params["jaxpr"]), [*consts, *carry, *step])
        carry = found[: len(carry)]
        rows.append(found[len(carry) :])
    if params["reverse"]:
        rows.reverse()
    if not rows:
        return bind(eqn, inputs)
    stacked = [jax.numpy.stack(ys) for ys in zip(*rows, strict=True)]
    return [*carry, *stacked]

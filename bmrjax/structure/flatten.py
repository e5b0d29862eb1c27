"""A function as one flat list of operations, without calls and loops in it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jec
from jaxtyping import Array

from bmrjax.jaxprs import bind, closed, evaluate

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
        return evaluate(whole.jaxpr, whole.consts, values, _unroll_short)

    return jax.make_jaxpr(flat)(*args)


def _unroll_short(eqn: Any, inputs: list[Any]) -> list[Any] | None:
    short = eqn.primitive.name == "scan" and eqn.params["length"] <= MAX_UNROLLED
    return _unrolled(eqn, inputs) if short else None


def _unrolled(eqn: Any, inputs: list[Any]) -> list[Any]:
    params = eqn.params
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, xs = inputs[:first], inputs[first:last], inputs[last:]
    rows: list[list[Any]] = []
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        step = [jax.lax.index_in_dim(x, i, keepdims=False) for x in xs]
        found = evaluate(*closed(params["jaxpr"]), [*consts, *carry, *step], _unroll_short)
        carry = found[: len(carry)]
        rows.append(found[len(carry) :])
    if params["reverse"]:
        rows.reverse()
    if not rows:
        return bind(eqn, inputs)
    stacked = [jax.numpy.stack(ys) for ys in zip(*rows, strict=True)]
    return [*carry, *stacked]

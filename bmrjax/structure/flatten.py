"""A function as one flat list of operations, without calls, branches and short loops in it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jec
from jaxtyping import Array

from bmrjax.backend.jaxprs import bind, closed, evaluate, scan_parts
from bmrjax.structure.repeated import repeated

# A longer loop stays one operation.
MAX_UNROLLED = 128
# Of a loop of unknown length, so many turns stand for all of them.
TURNS = 3
# Returns what stands for an operation of these inputs; None if it stays.
Simpler = Callable[[Any, list[Any]], list[Any] | None]


def flatten(
    function: Callable[..., Any], *args: Array, max_unrolled: int = MAX_UNROLLED
) -> jec.ClosedJaxpr:
    """Trace a function of arrays, calls written out, short loops unrolled, stacks and tiles as their parts.

    All branches of a conditional are there, and one is selected. A longer loop stays one operation, and its
    body is flat too. One of unknown length stays as it is, so the values are those of the function.

    Args:
        function: A pure, traceable function, to a pytree of arrays.
        *args: Arrays.
        max_unrolled: Turns of a loop that is unrolled, at most.
    """
    whole = jax.make_jaxpr(function)(*args)
    return flatten_jaxpr(whole, *args, turns=0, max_unrolled=max_unrolled)


def flatten_jaxpr(
    whole: Any, *args: Array, turns: int = TURNS, max_unrolled: int = MAX_UNROLLED
) -> jec.ClosedJaxpr:
    """Return a jaxpr as `flatten` does, with loops of unknown length in it written out too.

    Of such a loop there are a few turns, with `repeated` after each. So the result has the same arrays, and
    need not have the same values.

    Args:
        whole: A closed jaxpr.
        *args: Arrays of the shapes of its arguments.
        turns: How many; with 0, these loops stay one operation.
        max_unrolled: See `flatten`.
    """

    def simpler(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        return _simpler(eqn, inputs, turns, max_unrolled, simpler)

    def flat(*values: Any) -> list[Any]:
        return evaluate(whole.jaxpr, whole.consts, values, simpler)

    return jax.make_jaxpr(flat)(*args)


def _simpler(
    eqn: Any, inputs: list[Any], turns: int, max_unrolled: int, simpler: Simpler
) -> list[Any] | None:
    """Return the results of an operation that others can stand for; None if there is no need."""
    name = eqn.primitive.name
    if name == "scan":
        short = eqn.params["length"] <= max_unrolled
        return _unrolled(eqn, inputs, simpler) if short else _rolled(eqn, inputs, simpler)
    if name == "cond" and not any(b.effects for b in eqn.params["branches"]):
        return _branched(eqn, inputs, simpler)
    if name == "while" and turns and not eqn.params["body_jaxpr"].effects:
        return _looped(eqn, inputs, turns, simpler)
    if name == "stack":
        return [_stacked(inputs, eqn.params["axis"])]
    if name == "unstack":
        axis = eqn.params["axis"]
        return [
            jax.lax.index_in_dim(inputs[0], i, axis, keepdims=False)
            for i in range(inputs[0].shape[axis])
        ]
    if name == "tile":
        return [_tiled(inputs[0], eqn.params["reps"])]
    return None


def _stacked(arrays: Sequence[Array], axis: int) -> Array:
    return jax.lax.concatenate([jax.lax.expand_dims(x, (axis,)) for x in arrays], axis)


def _tiled(x: Array, times: Sequence[int]) -> Array:
    for axis, count in enumerate(times):
        if count == 0:
            x = jax.lax.slice_in_dim(x, 0, 0, axis=axis)
        elif count > 1:
            x = jax.lax.concatenate([x] * count, axis)
    return x


def _unrolled(eqn: Any, inputs: list[Any], simpler: Simpler) -> list[Any]:
    params = eqn.params
    consts, carry, xs = scan_parts(eqn, inputs)
    rows: list[list[Any]] = []
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        step = [jax.lax.index_in_dim(x, i, keepdims=False) for x in xs]
        found = evaluate(*closed(params["jaxpr"]), [*consts, *carry, *step], simpler)
        carry = found[: len(carry)]
        rows.append(found[len(carry) :])
    if params["reverse"]:
        rows.reverse()
    if not rows:
        return bind(eqn, inputs)
    stacked = [_stacked(ys, 0) for ys in zip(*rows, strict=True)]
    return [*carry, *stacked]


def _rolled(eqn: Any, inputs: list[Any], simpler: Simpler) -> list[Any]:
    params = eqn.params
    consts, carry, xs = scan_parts(eqn, inputs)

    def turn(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        found = evaluate(*closed(params["jaxpr"]), [*consts, *carry, *x], simpler)
        return found[: len(carry)], found[len(carry) :]

    settings = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, ys = jax.lax.scan(turn, carry, xs, **settings)
    return [*carry, *ys]


def _branched(eqn: Any, inputs: list[Any], simpler: Simpler) -> list[Any]:
    which, *operands = inputs
    branches = [evaluate(*closed(b), operands, simpler) for b in eqn.params["branches"]]
    return [jax.lax.select_n(which, *cases) for cases in zip(*branches, strict=True)]


def _looped(eqn: Any, inputs: list[Any], turns: int, simpler: Simpler) -> list[Any]:
    params = eqn.params
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    for_condition, for_body, carry = inputs[:first], inputs[first:last], inputs[last:]
    for turn in range(turns):
        goes_on = evaluate(*closed(params["cond_jaxpr"]), [*for_condition, *carry], simpler)
        after = evaluate(*closed(params["body_jaxpr"]), [*for_body, *carry], simpler)
        carry = repeated(carry, after, goes_on[0], last=turn == turns - 1)
    return carry

"""Operations that hold functions: calls, loops over a sequence, and branches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
from jax import lax

from bmrjax.backend.jaxprs import CALLS, bind, closed, inner
from bmrjax.infer.propagate.interpreter import Context, interpret, rule
from bmrjax.infer.propagate.linear import elementwise_rule, parts
from bmrjax.infer.propagate.uncertain import FunctionOf, Uncertain


@rule(*CALLS)
def _call(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    jaxpr, consts = closed(inner(eqn))
    custom = eqn.primitive.name.startswith("custom_")
    if ctx.mode == "local" and custom and not _contracts(jaxpr):
        # Its arguments would be drawn inside; drawn here, its own derivative stays in force.
        return bind(eqn, [ctx.draw(value) for value in inputs])
    found = interpret(ctx, jaxpr, consts, inputs)
    if ctx.mode == "local" or not custom or not _is_elementwise(jaxpr, found):
        return found
    # One function with a derivative of its own, unless its moments are known without nodes.
    return found if found[0].has_moments else elementwise_rule(ctx, eqn, inputs)


def _is_elementwise(jaxpr: Any, found: list[Any]) -> bool:
    """Say whether a function is elementwise, with one result that is a function of its sources."""
    if len(found) != 1 or not isinstance(found[0], FunctionOf):
        return False
    shapes = {var.aval.shape for eqn in jaxpr.eqns for var in eqn.outvars}
    return shapes <= {(), found[0].shape}


def _contracts(jaxpr: Any) -> bool:
    """Say whether a function has a matrix product or a convolution anywhere inside."""
    return any(
        eqn.primitive.name in ("dot_general", "conv_general_dilated")
        or any(_contracts(part) for part in jec.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def _flat(values: Sequence[Any]) -> tuple[list[bool], list[Any]]:
    """Return which values are uncertain, and each as an array or a pair of them."""
    flags = [isinstance(value, Uncertain) for value in values]
    return flags, [parts(v) if flag else v for v, flag in zip(values, flags, strict=True)]


def _whole(flags: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    """Undo `_flat`."""
    return [Uncertain(*v) if flag else v for v, flag in zip(values, flags, strict=True)]


def _as(flags: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    """Return each value as an array, or as a pair where the flag is set."""
    return [parts(v) if flag else v for v, flag in zip(values, flags, strict=True)]


@rule("scan")
def _scan(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    params = eqn.params
    jaxpr, held = closed(params["jaxpr"])
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, xs = inputs[:first], inputs[first:last], inputs[last:]
    const_flags, flat_consts = _flat(consts)
    x_flags, flat_xs = _flat(xs)
    # Weights stay independent of each other; a step draws noise of its own.
    distinct = [isinstance(c, Uncertain) and c.distinct for c in consts]
    keys = jax.random.split(ctx.next_key(), params["length"])
    xs_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (keys, flat_xs))
    y_flags: list[bool] = []

    def body(flags: list[bool], state: list[Any], step: Any) -> tuple[list[Any], list[Any]]:
        key, x = step
        inside = replace(ctx, key=key, _count=0)
        whole = _whole(const_flags, flat_consts)
        for value, independent in zip(whole, distinct, strict=True):
            if isinstance(value, Uncertain):
                value.distinct = independent
        args = [*whole, *_whole(flags, state), *_whole(x_flags, x)]
        found = interpret(inside, jaxpr, held, args)
        out, ys = found[: len(flags)], found[len(flags) :]
        grown.append([flag or isinstance(v, Uncertain) for flag, v in zip(flags, out, strict=True)])
        y_flags[:] = [isinstance(y, Uncertain) for y in ys]
        return _as(grown[-1], out), _flat(ys)[1]

    flags = [isinstance(c, Uncertain) for c in carry]
    grown: list[list[bool]] = []
    while True:
        # What a step makes uncertain is uncertain when the next one begins.
        start = _as(flags, carry)
        jax.eval_shape(lambda s, x, flags=flags: body(flags, s, x), start, xs_shapes)
        if grown[-1] == flags:
            break
        flags = grown[-1]
    state, ys = lax.scan(
        lambda s, x: body(flags, s, x),
        _as(flags, carry),
        (keys, flat_xs),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*_whole(flags, state), *_whole(y_flags, ys)]


@rule("cond")
def _cond(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    which, *operands = inputs
    if isinstance(which, Uncertain):
        return NotImplemented
    flags, flat = _flat(operands)
    key = ctx.next_key()
    branches = [closed(branch) for branch in eqn.params["branches"]]
    varies = [False] * len(eqn.outvars)

    def run(branch: Any, values: list[Any]) -> list[Any]:
        jaxpr, consts = branch
        found = interpret(replace(ctx, key=key, _count=0), jaxpr, consts, _whole(flags, values))
        for i, value in enumerate(found):
            varies[i] = varies[i] or isinstance(value, Uncertain)
        return found

    for branch in branches:  # what one branch makes uncertain, all give as a pair
        jax.eval_shape(lambda v, branch=branch: _flat(run(branch, v))[1], flat)
    chosen = [lambda v, branch=branch: _as(varies, run(branch, v)) for branch in branches]
    return _whole(varies, lax.switch(jnp.asarray(which), chosen, flat))

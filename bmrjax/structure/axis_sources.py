"""Which axes of which parameters an axis of an intermediate weight comes from."""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jec

from bmrjax.structure.unit_rules import blocks

# For each axis of a variable, the axes of parameters, as (parameter, axis), that its indices come from.
Sources = list[set[tuple[int, int]]]


def axis_sources(jaxpr: Any, params: Sequence[Any], reached: set[Any]) -> dict[Any, Sources]:
    """Return where the axes of all variables come from that the input does not reach.

    Who reads ``w1 * w2`` along an axis reads both along it; who reads a weight that was reshaped reads the
    axes that it had before.

    Args:
        jaxpr: Without calls.
        params: Its parameters.
        reached: The variables that the input reaches.
    """
    found: dict[Any, Sources] = {v: [set() for _ in v.aval.shape] for v in jaxpr.constvars}
    for i, var in enumerate(params):
        found[var] = [{(i, axis)} for axis in range(var.aval.ndim)]
    for eqn in jaxpr.eqns:
        if not set(eqn.outvars) & reached:
            ins = [_of(v, found) for v in eqn.invars]
            for out in eqn.outvars:
                found[out] = _through(eqn, ins, out.aval.ndim)
    return found


def _of(v: Any, found: dict[Any, Sources]) -> Sources:
    if not isinstance(v, jec.Literal):
        return found[v]
    aval: Any = v.aval
    return [set() for _ in aval.shape]


def _through(eqn: Any, ins: list[Sources], rank: int) -> Sources:
    name, p = eqn.primitive.name, eqn.params
    if not ins:
        return [set() for _ in range(rank)]
    first = ins[0]
    if name == "transpose":
        return [first[i] for i in p["permutation"]]
    if name == "squeeze":
        return [x for i, x in enumerate(first) if i not in p["dimensions"]]
    if name == "expand_dims":
        rest = iter(first)
        return [set() if i in p["dimensions"] else next(rest) for i in range(rank)]
    if name == "broadcast_in_dim":
        made: Sources = [set() for _ in range(rank)]
        for axis, source in zip(p["broadcast_dimensions"], first, strict=True):
            made[axis] = source
        return made
    if name == "reshape":
        made = []
        for inner, outer in blocks(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape):
            made += [set().union(*(first[i] for i in inner)) for _ in outer]
        return made
    if name.startswith("reduce_") and "axes" in p:
        return [x for i, x in enumerate(first) if i not in p["axes"]]
    if name == "dot_general":
        (contract_a, contract_b), (batch_a, batch_b) = p["dimension_numbers"]
        a, b = ins
        made = [a[i] | b[j] for i, j in zip(batch_a, batch_b, strict=True)]
        made += [x for i, x in enumerate(a) if i not in (*contract_a, *batch_a)]
        return made + [x for i, x in enumerate(b) if i not in (*contract_b, *batch_b)]
    same = [x for x in ins if len(x) == rank]
    return [set().union(*(x[i] for x in same)) for i in range(rank)]

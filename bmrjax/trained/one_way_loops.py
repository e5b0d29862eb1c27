"""Arrays that no gradient of the outputs reaches, because a loop of unknown length lies between."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jec
from jaxtyping import Array

from bmrjax.backend.jaxprs import closed

BEHIND_LOOP = (
    "a `while`, a loop of unknown length, lies between it and the outputs, and no gradient goes back through "
    "one; through a `scan`, or a `fori_loop` whose bounds are numbers, it does"
)


def behind_one_way_loops(
    traced: jec.ClosedJaxpr, args: Sequence[Array], differentiated: Sequence[int]
) -> frozenset[int]:
    """Return the numbers of the arrays whose gradient would have to go back through a `while`.

    Args:
        traced: Operations of the network, calls written out; with one floating-point output.
        args: Its arguments.
        differentiated: Numbers of the arguments that are looked at.
    """
    if not _has_while(traced.jaxpr):
        return frozenset()

    def fails(some: Sequence[int]) -> bool:
        def outputs(moved: list[Array]) -> Array:
            values = list(args)
            for i, value in zip(some, moved, strict=True):
                values[i] = value
            return jec.jaxpr_as_fun(traced)(*values)[0]

        def back(moved: list[Array]) -> Any:
            found, pull = jax.vjp(outputs, moved)
            return pull(found)

        try:
            jax.eval_shape(back, [args[i] for i in some])
        except ValueError as error:
            if "while_loop" not in str(error):  # JAX names it
                raise
            return True
        return False

    def failing(some: Sequence[int]) -> set[int]:
        if not some or not fails(some):
            return set()
        if len(some) == 1:
            return set(some)
        half = len(some) // 2
        return failing(some[:half]) | failing(some[half:])

    return frozenset(failing(list(differentiated)))


def _has_while(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name == "while"
        or (eqn.primitive.name == "scan" and _has_while(closed(eqn.params["jaxpr"])[0]))
        for eqn in jaxpr.eqns
    )

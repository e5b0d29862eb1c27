"""The mark of a loop of unknown length in a flat list of operations."""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jec
import jax.numpy as jnp
from jax.interpreters import mlir
from jaxtyping import Array

REPEATED = "repeated"
repeated_p = jec.Primitive(REPEATED)
repeated_p.multiple_results = True


def repeated(
    before: Sequence[Array], after: Sequence[Array], goes_on: Array, *, last: bool
) -> list[Any]:
    """Return what a loop carries after a turn, as an operation that readers of its jaxpr can find.

    Args:
        before: What it carried before the turn.
        after: And after it.
        goes_on: Whether there was a turn.
        last: Whether this is the last turn that is looked at, and stands for all others.
    """
    arrays = [*map(jnp.asarray, before), *map(jnp.asarray, after), jnp.asarray(goes_on)]
    return repeated_p.bind(*arrays, last=last)


def _after(*arrays: Array, last: bool) -> list[Array]:
    del last
    count = len(arrays) // 2
    return list(arrays[count : 2 * count])


repeated_p.def_impl(_after)
repeated_p.def_abstract_eval(_after)
mlir.register_lowering(repeated_p, mlir.lower_fun(_after, multiple_results=True))

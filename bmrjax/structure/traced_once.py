"""A network traced once, and read, compiled and run from that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jec
from jaxtyping import Array


@dataclass(frozen=True)
class TracedOnce:
    """A function of parameters and inputs as its jaxpr; called like the function.

    Attributes:
        closed: The jaxpr: parameters, then inputs.
        structure: Of what the function returns.
    """

    closed: Any
    structure: Any

    def __call__(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """Run the operations of the function."""
        found = jec.jaxpr_as_fun(self.closed)(*arrays, *inputs)
        return jax.tree.unflatten(self.structure, found)

    @property
    def shapes(self) -> list[Any]:
        """Shape and dtype of each leaf of the outputs."""
        return [v.aval for v in self.closed.jaxpr.outvars]


def trace_once(
    function: Callable[..., Any], arrays: Sequence[Array], inputs: Sequence[Array]
) -> TracedOnce:
    """Trace a function, with products in full precision.

    Args:
        function: Of a list of parameters and a list of inputs.
        arrays: The parameters; only their shapes count.
        inputs: The inputs.
    """
    count = len(arrays)

    def flat(*values: Any) -> Any:
        return function(values[:count], values[count:])

    # Else accelerators round products to fewer digits than outputs are compared by.
    with jax.default_matmul_precision("highest"):
        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*arrays, *inputs)
    return TracedOnce(closed, jax.tree.structure(shape))

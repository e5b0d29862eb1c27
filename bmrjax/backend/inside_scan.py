"""Handlers around a program, inside NumPyro's `scan` and `cond` too.

What `numpyro.contrib.control_flow` runs is hidden from the handlers around it, until it is over; they can
only put functions in place of those that it is given.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


class ScanStep(NamedTuple):
    """Where a handler stands inside a scan.

    Attributes:
        step: Position along the leading axis of the sites inside; None in a branch of `cond`.
        length: Number of steps; 0 in a branch.
        reverse: Whether the scan runs from the last step to the first.
    """

    step: Int[Array, ""] | None = None
    length: int = 0
    reverse: bool = False


def enter(message: dict[str, Any], handler: Callable[[Callable, ScanStep], Callable]) -> None:
    """Put handlers around each step of a scan, or each branch of `cond`.

    Args:
        message: Of type ``"control_flow"``, as a handler gets it; it is changed.
        handler: Function and where it stands -> the same function inside a handler.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> from numpyro.contrib.control_flow import scan
        >>> from bmrjax.backend.inside_scan import enter
        >>> from bmrjax.noise_draws import draws, noise_draws
        >>> class at_mean(numpyro.primitives.Messenger):
        ...     def process_message(self, msg):
        ...         if msg["type"] == "control_flow":
        ...             enter(msg, lambda step, at: draws(step, at_mean=True))
        >>> with at_mean():
        ...     scan(lambda c, x: (c, jnp.asarray(noise_draws().at_mean)), 0, jnp.arange(2))[1]
        Array([ True,  True], dtype=bool)
    """
    if message["fn"].__name__ == "cond_wrapper":
        chosen, *branches, operand = message["args"]
        message["args"] = (chosen, *(handler(branch, ScanStep()) for branch in branches), operand)
        return
    body, start, xs, length, reverse = message["args"]
    if length is None:
        length = len(jax.tree.leaves(xs)[0])

    def step(carry: Any, x: Any) -> Any:
        i, own = x
        return handler(body, ScanStep(i, length, reverse))(carry, own)

    message["args"] = (step, start, (jnp.arange(length), xs), length, reverse)

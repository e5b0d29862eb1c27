"""Another network for the random modules of a program to start at."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_START: ContextVar[Any] = ContextVar("network_at_start", default=None)


@contextlib.contextmanager
def starting_at(network: Any) -> Iterator[None]:
    """Let the random modules of programs that are run in it start at another network of the same arrays.

    Args:
        network: The network; None changes nothing.
    """
    token = _START.set(network)
    try:
        yield
    finally:
        _START.reset(token)


def network_at_start() -> Any:
    """Return the network that `starting_at` gave, or None."""
    return _START.get()

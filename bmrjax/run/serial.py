"""One call at a time: NumPyro's stack of handlers is shared by all threads."""

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = threading.RLock()


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Let calls from several threads wait for each other.

    NumPyro keeps the effect handlers that are in force in one stack per process, so two programs that
    are traced in two threads at once would see each other's handlers.
    """

    @functools.wraps(function)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        with _LOCK:
            return function(*args, **kwargs)

    return waiting

"""One call at a time, in a process that has the threads which JAX started."""

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from bmrjax.backend.entry_point import settings_for_computing
from bmrjax.backend.forked import refuse_after_fork
from bmrjax.backend.positions import check_positions

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = threading.RLock()


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Let calls from several threads wait for each other, and refuse them in a process that cannot compute.

    NumPyro keeps the effect handlers that are in force in one stack per process, so two programs that
    are traced in two threads at once would see each other's handlers.

    Raises:
        RuntimeError: From the function, in a process that was forked after JAX had computed. Forking before
            that works, and so do processes that are spawned.
    """

    @functools.wraps(function)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_after_fork(function.__name__)
        check_positions(function, args)
        with _LOCK, settings_for_computing():
            return function(*args, **kwargs)

    return waiting


def _after_fork() -> None:
    """Make a new lock: the one that was copied may be held by a thread that is not here."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

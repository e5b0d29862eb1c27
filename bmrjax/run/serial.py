"""One call at a time, in a process that has the threads which JAX started."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = threading.RLock()
_process: dict[str, Any] = {"used": False, "forked": False}


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Let calls from several threads wait for each other, and refuse them in a process that cannot compute.

    NumPyro keeps the effect handlers that are in force in one stack per process, so two programs that
    are traced in two threads at once would see each other's handlers. And a process that was forked after
    JAX had computed has none of JAX's threads: a computation there may wait for ever.

    Raises:
        RuntimeError: From the function, in a process that was forked after one of these functions had been
            called. Forking before that works, and so do processes that are spawned.
    """

    @functools.wraps(function)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        if _process["forked"]:
            raise RuntimeError(
                f"{function.__name__}: this process was forked from one in which JAX had computed, and JAX's "
                "threads do not survive that. Start processes by multiprocessing.get_context('spawn') (or "
                "'forkserver'), or fork before the first fit."
            )
        with _LOCK:
            _process["used"] = True
            return function(*args, **kwargs)

    return waiting


def _after_fork() -> None:
    """Note in the child that its parent had computed; a lock that another thread held is nobody's here."""
    global _LOCK
    _process["forked"] = _process["forked"] or _process["used"]
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

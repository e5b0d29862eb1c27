"""Whether this process was forked after JAX had computed, so that it cannot compute itself."""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from bmrjax.backend.positions import check_positions

Call = ParamSpec("Call")
Computed = TypeVar("Computed")

_process = {"forked": False}


def refuse_after_fork(name: str) -> None:
    """Raise RuntimeError in a process that was forked from one in which JAX had computed.

    Such a process has none of JAX's threads, and a computation in it waits for them for ever.

    Args:
        name: Of the function that is called, for the message.

    Raises:
        RuntimeError: If it was. Processes that are spawned, or forked before, are not refused.
    """
    if _process["forked"]:
        raise RuntimeError(
            f"{name}: this process was forked from one in which JAX had computed, and JAX's threads do not "
            "survive that. Start processes by multiprocessing.get_context('spawn') (or 'forkserver'), or "
            "fork before the first computation."
        )


def not_after_fork(function: Callable[Call, Computed]) -> Callable[Call, Computed]:
    """Let a function raise the error of `refuse_after_fork` instead of waiting for ever.

    Args:
        function: One that computes with JAX.
    """

    @functools.wraps(function)
    def checked(*args: Call.args, **kwargs: Call.kwargs) -> Computed:
        refuse_after_fork(function.__name__)
        check_positions(function, args)
        # Where `numpy.seterr(all="raise")` is set: a probability of zero is no error.
        with np.errstate(under="ignore"):
            return function(*args, **kwargs)

    return checked


def _jax_has_computed() -> bool:
    """Say whether JAX has started its threads, in this process or in one that this one is a copy of."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    return started is not None and started()


def _is_alone() -> bool:
    """Say whether this process has a single thread; False where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _after_fork() -> None:
    _process["forked"] = _process["forked"] or _jax_has_computed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
    # A module that is first imported in a fork has missed the fork itself, and looks at what is left of it.
    _process["forked"] = _jax_has_computed() and _is_alone()

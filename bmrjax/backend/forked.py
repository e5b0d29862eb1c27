"""Whether this process was forked after JAX had computed, so that it cannot compute itself."""

import os
import sys

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

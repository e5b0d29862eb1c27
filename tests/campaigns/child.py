"""Run cases in a child process with limits, and measure what each of them costs.

A case that blows up is killed by a limit of the child, not by the machine: the parent notes it and starts
another child with the next case.
"""

import gc
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Above what the child needs for itself: JAX, and V8 for reports, reserve addresses that they never use.
MOST_ADDRESSES = 512 * 2**30
MOST_DATA = 3 * 2**30
MOST_SECONDS = 120
# What took longer than so many seconds is measured again.
CHEAP = 0.04
# A child is replaced after so many cases, so that leaks do not look like costs.
CASES_PER_CHILD = 5000
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Cost:
    """What one case took.

    Attributes:
        outcome: What the function returned, or how it ended: ``"traceback ..."``, ``"died of signal 9"``.
        seconds: Processor time.
        memory: Bytes by which the resident memory grew at its peak.
    """

    outcome: str
    seconds: float
    memory: float

    @property
    def survived(self) -> bool:
        """Whether the function returned."""
        return not self.outcome.startswith(("traceback", "died", "hung"))


def resident(name: str) -> int:
    """Return a line of the memory of this process, such as ``"VmRSS"``, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise OSError(f"{_STATUS} has no {name}")


def measured(run: Callable[[Any], str], case: Any) -> Cost:
    """Run a case in this process.

    Args:
        run: Returns a word for the outcome; anything that it raises is a failure.
        case: Its argument.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    before, begin = resident("VmRSS"), time.process_time()
    try:
        outcome = run(case)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = (
            f"traceback {type(error).__name__}: {error!s:.200} ({where.name}, line {where.lineno})"
        )
    seconds = time.process_time() - begin
    return Cost(outcome, seconds, max(0, resident("VmHWM") - before))


def _work(run: Callable[[Any], str], warm_up: Any, pipe: Connection, repeats: int) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    for case in warm_up:
        run(case)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    gc.collect()
    gc.freeze()  # so that looking for garbage costs what the case made, not what the libraries did
    pipe.send("ready")
    while (case := pipe.recv()) is not None:
        soft = int(time.process_time()) + MOST_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        cost = measured(run, case)
        for _ in range(repeats):  # another process may have had the caches
            if not cost.survived or cost.seconds < CHEAP:
                break
            again = measured(run, case)
            seconds, memory = min(cost.seconds, again.seconds), min(cost.memory, again.memory)
            cost = Cost(again.outcome, seconds, memory)
        pipe.send(cost)
    pipe.close()


def in_children(
    run: Callable[[Any], str],
    cases: Iterable[Any],
    *,
    warm_up: Iterable[Any] = (),
    repeats: int = 3,
) -> Iterator[tuple[Any, Cost]]:
    """Run cases one after the other in a child with limits.

    Args:
        run: A function of a module, so that a child can import it.
        cases: What it is given.
        warm_up: Cases that every child runs first, so that libraries are loaded when it counts.
        repeats: How often a case that was not cheap is measured again, at most; the least counts.

    Yields:
        Each case and what it took.
    """
    context = multiprocessing.get_context("spawn")
    child, pipe, done = None, None, 0
    warm_up = list(warm_up)
    for case in cases:
        if child is None or pipe is None:
            pipe, theirs = context.Pipe()
            child = context.Process(target=_work, args=(run, warm_up, theirs, repeats), daemon=True)
            child.start()
            theirs.close()
            assert pipe.recv() == "ready"
            done = 0
        try:
            pipe.send(case)
            cost = pipe.recv() if pipe.poll(10 * MOST_SECONDS) else None
        except (EOFError, ConnectionError):
            child.join()
            cost = Cost(f"died of signal {-(child.exitcode or 0)}", float("inf"), float("inf"))
        if cost is None:
            child.kill()
            cost = Cost("hung", float("inf"), float("inf"))
        done += 1
        yield case, cost
        if not cost.survived or done == CASES_PER_CHILD:
            _end(child, pipe)
            child = pipe = None
    if child is not None:
        _end(child, pipe)


def _end(child: Any, pipe: Any) -> None:
    try:
        pipe.send(None)
        child.join(10)
    except OSError:
        pass
    child.kill()
    child.join()
    pipe.close()

"""Kill runs at any moment, cut off the power, and go on: nothing is lost but time.

Each run is a process of its own that is ended by SIGKILL: at a random time, or by a library that is loaded
before all others (`fault.c`, compiled here) at its n-th call that writes, before it or with half of it
written. With the power cut off, files that were not synced are emptied too. Another process then goes on with
what is on the disk.
"""

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bmrjax as bmr
from bmrjax.run.checkpoint import CheckpointWarning
from campaigns.child import in_children
from campaigns.command import run_command, until
from campaigns.saved_runs import python_run

EPOCHS = 5
KINDS = ("killed", "cut", "power", "any time")
# A run of some seconds that has not ended after so many hangs.
MOST_SECONDS = 600.0
_SOURCE = Path(__file__).with_name("fault.c")
_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@dataclass(frozen=True)
class Killed:
    """A run that was killed.

    Attributes:
        number: Of the case.
        kind: One of `KINDS`.
        at: The call that writes at which it was killed, or how many epochs later, a part of one counted.
        folder: What it left.
        calls: How many calls write in a run that is not killed.
        epochs: How many it had ended.
        ended: How it ended.
        lost: How many files lost what was not synced.
    """

    number: int
    kind: str
    at: float
    folder: str
    calls: int
    epochs: int
    ended: str
    lost: int


def compile_library(folder: Path) -> Path:
    """Compile the layer.

    Raises:
        FileNotFoundError: Without a C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("this campaign needs a C compiler, cc or gcc")
    library = folder / "fault.so"
    words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run([*words, "-lpthread"], check=True)
    return library


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def killable(scratch: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the layer, and the context of processes that it can kill and that share compiled programs."""
    library = str(compile_library(scratch))
    settings = {
        **_SETTINGS,
        "BMRJAX_FAULT_STATE": str(scratch / "state"),
        "JAX_COMPILATION_CACHE_DIR": str(scratch / "compiled"),
    }
    with _environment(**settings):
        layer: Any = ctypes.CDLL(library)
        layer.fault_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
        layer.fault_stop.restype = ctypes.c_long
        layer.fault_is_dirty.argtypes = [ctypes.c_ulong, ctypes.c_ulong]
        context = multiprocessing.get_context("forkserver")
        # JAX starts its threads when it is first used, so a process that has only imported it may fork.
        context.set_forkserver_preload(["campaigns.saved_runs"])
        forkserver._forkserver._stop()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        with _environment(LD_PRELOAD=library):
            forkserver.ensure_running()
        try:
            yield layer, context
        finally:
            forkserver._forkserver._stop()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def _values(result: Any) -> list[np.ndarray]:
    points = [(point.params, point.keep, point.vfe) for point in result.path]
    rows = [(row["vfe"], row.get("taken_back")) for row in result.history]
    return [np.asarray(x) for x in jax.tree.leaves((result.params, result.keep, points, rows))]


def same_result(found: Any, whole: Any) -> None:
    """Raise unless two results are the same, bit for bit."""
    a, b = _values(found), _values(whole)
    assert len(a) == len(b), f"{len(a)} arrays, expected {len(b)}"
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def same_as_one_of(found: Any, results: list[Any]) -> None:
    """Raise unless a result is one of several, bit for bit."""
    for each in results:
        try:
            return same_result(found, each)
        except AssertionError:
            continue
    raise AssertionError("a saved result is neither the old nor the new one")


def work(folder: Path, log: Path) -> None:
    """Run a fit with a checkpoint an epoch, and save a point of its path, then over it the whole result.

    Args:
        folder: Of the run.
        log: File of the epochs that ended, a byte for each.
    """
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(record: Any) -> None:
        if hasattr(record, "epoch"):
            os.write(file, bytes([record.epoch]))

    result = python_run(folder, num_epochs=EPOCHS, callbacks=[note])
    result.at(0).save(folder / "model")
    result.save(folder / "model")


def _run(context: Any, folder: Path, log: Path, epochs: float = np.inf) -> str:
    """Run `work` in a process, and kill it after some epochs; return how it ended."""
    process = context.Process(target=work, args=(folder, log), daemon=True)
    begin = time.monotonic()
    process.start()
    while process.exitcode is None and time.monotonic() - begin < MOST_SECONDS:
        if ended_epochs(log) >= int(min(epochs, EPOCHS + 1)):
            # An epoch lasts as long as those before it on average, and the first as long as the start.
            time.sleep(epochs % 1 * (time.monotonic() - begin) / (int(epochs) + 1))
            process.kill()
        process.join(0.01)
    hung = process.exitcode is None
    process.kill()
    process.join()
    return "hung" if hung else f"ended with {process.exitcode}"


def ended_epochs(log: Path) -> int:
    """Return how many epochs a run has ended."""
    return max(log.read_bytes(), default=0) if log.exists() else 0


def killed_runs(seed: int, count: int, scratch: Path, layer: Any, context: Any) -> Iterator[Killed]:
    """Kill runs, of each kind in turn, and yield what they left; folders last until the next one.

    Args:
        seed: Of the moments.
        count: How many.
        scratch: Folder for everything.
        layer: What `killable` yielded.
        context: What `killable` yielded.
    """
    log = scratch / "log"
    # The first compiles what all others load.
    calls = 0
    for name in ("first", "second"):
        layer.fault_start(str(scratch / name).encode(), 0, 0)
        ended = _run(context, scratch / name, log)
        calls = layer.fault_stop()
        assert ended == "ended with 0", f"a run that is not killed {ended}"
    for number in range(count):
        kind, rng = KINDS[number % len(KINDS)], np.random.default_rng((seed, number))
        folder = scratch / f"run{number}"
        any_time = kind == "any time"
        at = float(rng.uniform(0, EPOCHS + 1) if any_time else rng.integers(1, calls + 1))
        log.unlink(missing_ok=True)
        layer.fault_start(str(folder).encode(), 0 if any_time else int(at), int(kind == "cut"))
        ended = _run(context, folder, log, at if any_time else np.inf)
        layer.fault_stop()
        lost = _cut_off(layer, folder) if kind == "power" else 0
        yield Killed(number, kind, at, str(folder), calls, ended_epochs(log), ended, lost)
        shutil.rmtree(folder, ignore_errors=True)


def _cut_off(layer: Any, folder: Path) -> int:
    """Empty what was not on the disk when the power failed; return how many files."""
    lost = 0
    for path in folder.rglob("*"):
        if path.is_file():
            found = path.stat()
            if layer.fault_is_dirty(found.st_dev, found.st_ino):
                os.truncate(path, 0)
                lost += 1
    return lost


_whole: list[Any] = []


def go_on(case: Killed | None) -> str:
    """Go on with a run that was killed, and compare it with one that was not."""
    if not _whole:
        with tempfile.TemporaryDirectory() as made:
            _whole.append(python_run(Path(made, "run"), num_epochs=EPOCHS))
    whole = _whole[0]
    if case is None:
        return "ready"
    assert case.ended in ("ended with 0", "ended with -9"), f"the run {case.ended}"
    folder, resumed = Path(case.folder), []

    def note(record: Any) -> None:
        resumed.append(getattr(record, "epoch", 0))

    if (folder / "model").exists():
        same_as_one_of(bmr.load(folder / "model"), [whole, whole.at(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        found = python_run(folder, num_epochs=EPOCHS, resume=True, callbacks=[note])
    same_result(found, whole)
    # The checkpoint that was being written is lost, and the one before it is on the disk.
    begun = min(resumed, default=0)
    assert begun >= case.epochs - 2, f"went on from epoch {begun} after {case.epochs}"
    found.save(folder / "model")
    same_result(bmr.load(folder / "model"), whole)
    late = ", too late" if case.ended == "ended with 0" else ""
    return f"{case.kind}{late}{', files lost' if case.lost else ''}: went on"


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Kill runs and go on.

    Args:
        seed: Of the moments.
        count: How many kills.
        minutes: After which it ends early.
        keep: Where the folder of a failure is copied to, as what went on left it.
    """
    outcomes: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    begin, epochs = time.time(), 0
    with tempfile.TemporaryDirectory() as made, killable(Path(made)) as (layer, context):
        killed = until(killed_runs(seed, count, Path(made), layer, context), minutes)
        for case, cost in in_children(go_on, killed, warm_up=[None], repeats=0):
            print(case, cost.outcome, file=sys.stderr, flush=True)
            word = cost.outcome if cost.survived else "failed"
            outcomes[word] = outcomes.get(word, 0) + 1
            epochs += case.epochs
            if not cost.survived:
                failures.append({**vars(case), "outcome": cost.outcome})
                if keep is not None and Path(case.folder).exists():
                    shutil.copytree(case.folder, keep / f"kills-{seed}-{case.number}")
    return {
        "campaign": "kills", "seed": seed, "files": sum(outcomes.values()),
        "minutes": (time.time() - begin) / 60, "outcomes": dict(sorted(outcomes.items())),
        "epochs_before_the_kill": epochs / max(1, sum(outcomes.values())), "failures": failures,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(campaign, __doc__, files=200)

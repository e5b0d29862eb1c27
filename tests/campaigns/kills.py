"""Kill runs between any two calls that write, cut off the power, and go on: nothing is lost but time.

A library that is loaded before all others (`fault.c`, compiled here) lets the n-th call that writes to the
folder fail, and all after it. What is on the disk is then what a killed process leaves. With the power cut
off, files that were not synced are emptied too.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
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
KINDS = ("killed", "cut", "power")
_SOURCE = Path(__file__).with_name("fault.c")
_LIBRARY = "BMRJAX_FAULT_LIBRARY"


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


def _layer() -> Any:
    layer = ctypes.CDLL(os.environ[_LIBRARY])
    layer.fault_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    layer.fault_stop.restype = ctypes.c_long
    layer.fault_is_dirty.argtypes = [ctypes.c_ulong, ctypes.c_ulong]
    return layer


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


def _work(folder: Path, epochs: list[int]) -> Any:
    """Run a fit with a checkpoint an epoch, and save its result twice."""

    def note(record: Any) -> None:
        if hasattr(record, "epoch"):
            epochs.append(record.epoch)

    result = python_run(folder, num_epochs=EPOCHS, callbacks=[note])
    for _ in range(2):
        result.save(folder / "model")
    return result


_whole: dict[str, Any] = {}


def _prepared() -> tuple[Any, int]:
    """Return the result of a run that nobody kills, and how many calls write."""
    if not _whole:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made, "run")
            _whole["result"] = _work(folder, [])
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made, "run")
            layer = _layer()
            layer.fault_start(str(folder).encode(), 0, 0)
            _work(folder, [])
            _whole["calls"] = layer.fault_stop()
    return _whole["result"], _whole["calls"]


def kill(case: tuple[int, int, str]) -> str:
    """Kill a run at a random call that writes, and go on with what it left."""
    seed, number, kind = case
    whole, calls = _prepared()
    rng = np.random.default_rng((seed, number))
    at, layer, epochs = int(rng.integers(1, calls + 1)), _layer(), []
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        folder = Path(made, "run")
        layer.fault_start(str(folder).encode(), at, int(kind == "cut"))
        try:
            _work(folder, epochs)
        except Exception as error:
            if not layer.fault_dead():
                raise
            del error
        died = layer.fault_dead()
        layer.fault_stop()
        lost = _cut_off(layer, folder) if kind == "power" else 0
        resumed: list[int] = []

        def note(record: Any) -> None:
            resumed.append(getattr(record, "epoch", 0))

        there = (folder / "model").exists()
        if there:
            same_result(bmr.load(folder / "model"), whole)
        found = python_run(
            folder,
            num_epochs=EPOCHS,
            resume=True,
            callbacks=[lambda r: resumed.append(getattr(r, "epoch", 0))],
        )
        same_result(found, whole)
        # The checkpoint that was being written is lost, and the one before it is on the disk.
        done, begun = max(epochs, default=0), min(resumed, default=0)
        assert begun >= done - 2, f"went on from epoch {begun} after {done} (call {at} of {calls})"
        found.save(folder / "model")
        same_result(bmr.load(folder / "model"), whole)
    return f"{kind}{'' if died else ', too late'}{', files lost' if lost else ''}: went on"


def _cut_off(layer: Any, folder: Path) -> int:
    """Empty what was not on the disk when the power went; return how many files."""
    lost = 0
    for path in folder.rglob("*"):
        if path.is_file():
            found = path.stat()
            if layer.fault_is_dirty(found.st_dev, found.st_ino):
                os.truncate(path, 0)
                lost += 1
    return lost


def cases(seed: int, count: int) -> Iterator[tuple[int, int, str]]:
    """Yield kills, of each kind in turn."""
    for number in range(count):
        yield seed, number, KINDS[number % len(KINDS)]


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Kill runs and go on.

    Args:
        seed: Of the moments.
        count: How many kills.
        minutes: After which it ends early.
        keep: Not used: a case is its number.
    """
    del keep
    outcomes: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    begin = time.time()
    with tempfile.TemporaryDirectory() as made:
        library = str(compile_library(Path(made)))
        before = os.environ.get("LD_PRELOAD")
        os.environ |= {_LIBRARY: library, "LD_PRELOAD": library}
        try:
            for case, cost in in_children(kill, until(cases(seed, count), minutes), repeats=0):
                print(case, cost.outcome, file=sys.stderr, flush=True)
                word = cost.outcome if cost.survived else "failed"
                outcomes[word] = outcomes.get(word, 0) + 1
                if not cost.survived:
                    failures.append({"number": case[1], "kind": case[2], "outcome": cost.outcome})
                    print(failures[-1], file=sys.stderr, flush=True)
        finally:
            del os.environ["LD_PRELOAD"]
            if before is not None:
                os.environ["LD_PRELOAD"] = before
    return {
        "campaign": "kills", "seed": seed, "files": sum(outcomes.values()),
        "minutes": (time.time() - begin) / 60, "outcomes": dict(sorted(outcomes.items())),
        "failures": failures,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(campaign, __doc__, files=200)

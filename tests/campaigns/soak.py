"""Interrupt, kill and go on for hours: every result is that of an undisturbed run, and memory stays flat.

A worker fits the same small program again and again. Each fit is interrupted at random epochs and resumed in
the same process; the worker is killed at random moments, and the next goes on with the folder that it left.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bmrjax as bmr
from bmrjax.callbacks import EpochEnd
from bmrjax.run.checkpoint import CheckpointWarning
from campaigns.child import resident
from campaigns.command import run_command
from campaigns.kills import same_result
from campaigns.saved_runs import python_run

EPOCHS = 12
# A worker lives this many seconds on average. Every fourth is killed while it starts or goes on.
LIFE = 300.0
# A worker without a new line in its log for so many seconds hangs.
MOST_SECONDS = 900.0
# The memory of a worker grows in steps for so many fits, until allocators hold what they need.
WARM = 25
# A process may grow by so many bytes per fit: JAX and the allocator keep a little of what they trace.
MOST_GROWTH = 100e3


class _Interrupt:
    """Interrupt a fit after some of its epochs, as Ctrl-C does."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, record: Any) -> None:
        if isinstance(record, EpochEnd) and self.rng.uniform() < 0.15:
            os.kill(os.getpid(), signal.SIGINT)


def _one_fit(folder: Path, rng: np.random.Generator) -> tuple[Any, int]:
    """Fit, going on after each interruption; return the result and how many there were."""
    for interrupts in range(1000):
        there = any(folder.glob("*")) if folder.exists() else False
        try:
            callbacks = [_Interrupt(rng)]
            return python_run(
                folder, num_epochs=EPOCHS, resume=there, callbacks=callbacks
            ), interrupts
        except bmr.InterruptedFit:
            continue
    raise AssertionError("a fit that is interrupted a thousand times does not get on")


def work(folder: Path, seed: int) -> None:
    """Fit for ever, with a line in `log.jsonl` for each fit."""
    warnings.simplefilter("ignore", CheckpointWarning)
    # A shell starts what it runs in the background with interruptions ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as made:
        whole = python_run(Path(made, "run"), num_epochs=EPOCHS)
    while True:
        result, interrupts = _one_fit(folder / "run", rng)
        same_result(result, whole)
        result.save(folder / "run" / "model")
        same_result(bmr.load(folder / "run" / "model"), whole)
        size = sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file())
        row = {
            "pid": os.getpid(),
            "interrupts": interrupts,
            "memory": resident("VmRSS"),
            "disk": size,
        }
        with (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        shutil.rmtree(folder / "run")


def growth(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the bytes by which a worker grows per fit once it is warm, and the standard error of that.

    One slope is fitted to all workers by least squares, with an intercept for each.
    """
    numbers, sizes, left = [], [], -1
    for pid in {row["pid"] for row in rows}:
        memory = np.array([row["memory"] for row in rows if row["pid"] == pid][WARM:], float)
        if len(memory) > 1:
            numbers.append(np.arange(len(memory)) - (len(memory) - 1) / 2)
            sizes.append(memory - memory.mean())
            left += len(memory) - 1
    if left < 10:
        return float("nan"), float("nan")
    x, y = np.concatenate(numbers), np.concatenate(sizes)
    slope = float(x @ y / (x @ x))
    return slope, float(np.sqrt(np.sum((y - slope * x) ** 2) / left / (x @ x)))


def _rows(log: Path) -> list[dict[str, Any]]:
    """Read the lines of a log whose last one may be cut off."""
    rows = []
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Kill workers and start others on what they left.

    Args:
        seed: Of the moments.
        count: How many kills at most.
        minutes: After which it ends early.
        keep: Where the folder of a failure is copied to.
    """
    rng = np.random.default_rng(seed)
    context = multiprocessing.get_context("spawn")
    failures: list[dict[str, Any]] = []
    begin, kills = time.time(), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        while kills < count and time.time() - begin < 60 * minutes:
            before = len(_rows(folder / "log.jsonl"))
            worker = context.Process(target=work, args=(folder, seed + 1000 * kills), daemon=True)
            worker.start()
            life = rng.exponential(LIFE) if kills % 4 else rng.uniform(3, 30)
            worker.join(min(life, 60 * minutes - (time.time() - begin)))
            if worker.exitcode is not None:
                failures.append({"kill": kills, "outcome": f"ended with {worker.exitcode}"})
                if keep is not None:
                    shutil.copytree(folder, keep / f"soak-{seed}-{kills}", dirs_exist_ok=True)
                shutil.rmtree(folder / "run", ignore_errors=True)
            elif life > MOST_SECONDS and len(_rows(folder / "log.jsonl")) == before:
                failures.append({"kill": kills, "outcome": "hung"})
            worker.kill()
            worker.join()
            kills += 1
            print(kills, len(_rows(folder / "log.jsonl")), file=sys.stderr, flush=True)
        rows = _rows(folder / "log.jsonl")
    grown, error = growth(rows)
    if grown - 2 * error > MOST_GROWTH:
        failures.append({"outcome": f"memory grows by {grown:.0f} ± {error:.0f} bytes per fit"})
    disk = [row["disk"] for row in rows]
    return {
        "campaign": "soak", "seed": seed, "kills": kills, "minutes": (time.time() - begin) / 60,
        "fits": len(rows), "interrupts": sum(row["interrupts"] for row in rows),
        "bytes_per_fit": grown, "standard_error": error,
        "most_memory": max((row["memory"] for row in rows), default=0),
        "disk": [min(disk, default=0), max(disk, default=0)], "failures": failures,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(campaign, __doc__, files=100_000)

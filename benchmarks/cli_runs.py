"""Runs of the command line, several at a time, and the rows they leave."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What a row of a table does not need, long or told elsewhere.
_LEFT_OUT = ("history", "path", "config", "sparsity_per_layer", "command")


def add_arguments(parser: argparse.ArgumentParser, runs: str) -> None:
    """Add what `run_missing` needs to a command line."""
    parser.add_argument("--runs", type=Path, default=Path(runs), help="where the runs are kept")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a core each")


def run_missing(commands: Mapping[str, Sequence[str]], args: argparse.Namespace) -> None:
    """Run each command that has no results yet.

    Args:
        commands: Name of the run's folder to the words of its ``bmrjax`` command, without folders.
        args: With the arguments of `add_arguments`.
    """
    waiting = [n for n in commands if not (args.runs / n / "results.json").exists()]
    cores = sorted(os.sched_getaffinity(0))
    while waiting:
        batch, waiting = waiting[: args.jobs], waiting[args.jobs :]
        running = []
        for core, name in zip(cores, batch, strict=False):
            words = [sys.executable, "-c", "from bmrjax.cli import main; main()"]
            words += [*commands[name], "--no-progress", "--overwrite"]
            words += ["--out", str(args.runs / name)]
            words += ["--data-root", args.data_root] if args.data_root else []
            pin = (lambda c=core: os.sched_setaffinity(0, {c})) if args.jobs > 1 else None
            running.append(subprocess.Popen(words, preexec_fn=pin))
        for process in running:
            if process.wait():
                raise SystemExit(f"a run failed with exit code {process.returncode}")


def row_of(run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of a finished run, and the command that makes them."""
    found = json.loads((run / "results.json").read_text())
    config = found["config"]
    return {
        **{name: config[name] for name in ("method", "epochs", "steps_per_epoch")},
        "command": " ".join(["bmrjax", *words]),
        **{name: value for name, value in found.items() if name not in _LEFT_OUT},
    }

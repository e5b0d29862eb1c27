"""Measurements and command-line runs in processes of their own."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# What a row of a table does not need: long, or in another column.
_LEFT_OUT = ("history", "path", "config", "sparsity_per_layer", "command")
CLI = ("-c", "from bmrjax.cli import main; main()")


def print_row(row: Mapping[str, Any]) -> None:
    """Print a row for `measured`, in the process that `measured` started."""
    print("ROW " + json.dumps(row), flush=True)


def measured(module: str, *words: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a module in a process of its own and return the row that it prints.

    Raises:
        SystemExit: If it fails or prints none.
    """
    environment = None if env is None else {**os.environ, **env}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed with exit code {done.returncode}")
    return printed_row(done.stdout)


def virtual_devices(number: int) -> dict[str, str]:
    """Return the environment in which a process has so many virtual devices on the CPU."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={number}"
    # A virtual device that waits for the others holds a thread of XLA's pool, at times more than one.
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip(), "NPROC": str(8 * number)}


def printed_row(text: str) -> dict[str, Any]:
    """Return the last row that `print_row` put into a text."""
    lines = [line for line in text.splitlines() if line.startswith("ROW ")]
    if not lines:
        raise SystemExit("A process ended well and printed no row.")
    return json.loads(lines[-1][4:])


def run_all(
    commands: Mapping[Any, Sequence[str]], jobs: int, done: Callable[[Any, str], None]
) -> None:
    """Run commands of Python, so many at a time, on a core each if there are several.

    Args:
        commands: Anything to the words after ``python``.
        jobs: How many run at a time, at most.
        done: Receives the key of a command that ended well, and what it printed.

    Raises:
        SystemExit: If one fails; the others are ended.
    """
    waiting, free = list(commands), sorted(os.sched_getaffinity(0))[:jobs]
    running: dict[int, tuple[Any, Any, Any]] = {}
    try:
        while waiting or running:
            while waiting and free:
                core, key = free.pop(), waiting.pop(0)
                printed = tempfile.TemporaryFile("w+")
                process = subprocess.Popen([sys.executable, *commands[key]], stdout=printed)
                running[core] = process, printed, key
                if jobs > 1:
                    os.sched_setaffinity(process.pid, {core})  # before it has other threads
            time.sleep(0.2)
            for core, (process, printed, key) in list(running.items()):
                if process.poll() is None:
                    continue
                if process.returncode:
                    raise SystemExit(f"{key} failed with exit code {process.returncode}")
                del running[core]
                free.append(core)
                with printed:
                    printed.seek(0)
                    done(key, printed.read())
    finally:
        for process, printed, _ in running.values():
            process.terminate()
            process.wait()
            printed.close()


def run_missing(commands: Mapping[str, Sequence[str]], args: argparse.Namespace) -> None:
    """Run each ``bmrjax`` command that has no results in its folder of ``--runs`` yet.

    Args:
        commands: Name of the folder to the words of the command, without folders.
        args: From `options.parse`, with the options of jobs.
    """
    folders = ["--data-root", str(args.data_root)] if args.data_root else []
    missing = {n: w for n, w in commands.items() if not (args.runs / n / "results.json").exists()}
    words = {
        name: [
            *CLI,
            *line,
            "--no-progress",
            "--overwrite",
            "--out",
            str(args.runs / name),
            *folders,
        ]
        for name, line in missing.items()
    }
    run_all(words, args.jobs, lambda name, text: print(name, text.strip(), flush=True))


def row_of(run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of a finished ``bmrjax`` run, and the command that makes them."""
    found = json.loads((run / "results.json").read_text())
    config = found["config"]
    first = {name: config[name] for name in ("method", "steps_per_epoch")}
    first["epochs"] = config["num_epochs"]
    rest = {name: value for name, value in found.items() if name not in _LEFT_OUT}
    return {**first, "command": " ".join(["bmrjax", *words]), **rest}

"""What every benchmark shares: rows of results, where they ran, and tables of means."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("bmrjax", "jax", "jaxlib", "numpyro", "equinox", "optax", "numpy")


def environment() -> dict[str, Any]:
    """Return versions, device, cores and commit: what a figure depends on."""
    import jax

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit,
        "command": _command(),
    }


def _command() -> str:
    """Return the command without the folders of the machine it ran on."""
    words = [f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    folders = (
        "--data-root",
        "--out",
        "--runs",
        "--cache",
        "--bmr4pml",
        "--jaxpruner",
        "--peer-python",
    )
    after = [None, *words[:-1]]
    return "python " + " ".join(
        "DIR" if before in folders else word for before, word in zip(after, words, strict=True)
    )


class Rows:
    """The rows of a benchmark, kept in a file of a folder as they come in."""

    def __init__(self, directory: Path, name: str = "results.json"):
        self.path = directory / name
        directory.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = json.loads(self.path.read_text())

    def has(self, **what: Any) -> bool:
        """Say whether a row with these values is there already."""
        return any(all(row.get(k) == v for k, v in what.items()) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row and write the file."""
        self.rows.append(row)
        staged = self.path.with_suffix(".tmp")
        staged.write_text(json.dumps(self.rows, indent=1))
        os.replace(staged, self.path)


def mean_and_error(values: Sequence[float], digits: int) -> str:
    """Return ``mean ± standard error`` over seeds."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    spread = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.{digits}f} ± {spread / len(values) ** 0.5:.{digits}f}"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines]) + "\n"


def group(rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> dict[Any, list]:
    """Group rows, in the order of their first appearance."""
    found: dict[Any, list] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found

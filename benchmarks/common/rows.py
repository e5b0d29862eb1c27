"""Rows of results: what is in a row, where rows are kept, and tables of their means."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

from bmrjax.cli.former_names import in_names_of_today
from bmrjax.files import write_atomically

PACKAGES = ("bmrjax", "jax", "jaxlib", "numpyro", "equinox", "optax", "numpy")
FOLDERS = ("--data-root", "--out", "--runs", "--cache", "--bmr4pml", "--jaxpruner", "--peer-python")


def environment() -> dict[str, Any]:
    """Return versions, device, cores, commit and command: what a figure depends on."""
    import jax

    words = ["git", "rev-parse", "--short", "HEAD"]
    here = Path(__file__).parent
    try:
        commit = subprocess.run(words, capture_output=True, text=True, cwd=here).stdout.strip()
    except OSError:  # no git: a copy of the files on another machine
        commit = ""
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit,
        "command": _command(),
    }


def command_of_today(command: str) -> str:
    """Return the command of a row, with the names that its options have now, and the defaults of then.

    Example:
        >>> command_of_today("bmrjax sparsify --data digits --epochs 3 --seed 0")
        'bmrjax sparsify --data digits --num-epochs 3 --kl-warmup-epochs 0 --seed 0'
    """
    program, *words = command.split()
    words = in_names_of_today(words)
    if words[:1] == ["sparsify"] and "--kl-warmup-epochs" not in words:
        at = words.index("--seed") if "--seed" in words else len(words)
        words[at:at] = ["--kl-warmup-epochs", "0"]
    return " ".join([program, *words])


def _command() -> str:
    """Return the command without the folders of the machine it ran on."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    words = ["python", "-m", module.name if module else Path(sys.argv[0]).stem, *sys.argv[1:]]
    pairs = zip([None, *words], words, strict=False)
    return " ".join("DIR" if before in FOLDERS else word for before, word in pairs)


class Rows:
    """The rows of a benchmark, kept in a file as they come in.

    Args:
        folder: Of the file.
        name: Of the file.
        shared: Keep versions and command once for all rows, beside them; else each row has its own.
    """

    def __init__(self, folder: Path, name: str = "results.json", *, shared: bool = False):
        self.path, self.shared = folder / name, shared
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(self.path.read_text()) if self.path.exists() else []
        self.environment = found["environment"] if isinstance(found, dict) else None
        self.rows: list[dict[str, Any]] = found["rows"] if isinstance(found, dict) else found

    def has(self, **what: Any) -> bool:
        """Say whether a row with these values is there already."""
        return bool(self.where(**what))

    def where(self, **what: Any) -> list[dict[str, Any]]:
        """Return the rows with these values."""
        return [row for row in self.rows if all(row.get(k) == v for k, v in what.items())]

    def add(self, row: dict[str, Any]) -> None:
        """Append a row and write the file."""
        self.rows.append(row)
        self.save()

    def save(self) -> None:
        """Write the file."""
        found: Any = self.rows
        if self.shared:
            self.environment = environment()
            found = {"environment": self.environment, "rows": self.rows}
        write_atomically(self.path, json.dumps(found, indent=1))

    def write_table(self, text: str, name: str = "table.md") -> None:
        """Write a table beside the rows."""
        write_atomically(self.path.parent / name, text)


def mean_and_error(values: Sequence[float], digits: int) -> str:
    """Return ``mean ± standard error`` over seeds."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    spread = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.{digits}f} ± {spread / len(values) ** 0.5:.{digits}f}"


def means(rows: Sequence[dict[str, Any]], **digits: int) -> list[str]:
    """Return mean and error of each key, with so many digits; a dash where no row has a value."""
    cells = []
    for name, number in digits.items():
        values = [row[name] for row in rows if row.get(name) is not None]
        cells.append(mean_and_error(values, number) if values else "–")
    return cells


def table(header: Sequence[str] | str, lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a header of one string has its columns divided by " | "."""
    names = header.split(" | ") if isinstance(header, str) else header
    return "".join(f"| {' | '.join(line)} |\n" for line in [names, ["---"] * len(names), *lines])


def group(rows: Sequence[Any], key: Callable[[Any], Any] | str) -> dict[Any, list]:
    """Group rows by a function, or by keys such as ``"data network"``, in order of appearance."""
    pick = itemgetter(*key.split()) if isinstance(key, str) else key
    found: dict[Any, list] = {}
    for row in rows:
        found.setdefault(pick(row), []).append(row)
    return found

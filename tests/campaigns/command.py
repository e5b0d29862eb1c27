"""The command line of a campaign."""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def until(cases: Iterable[Any], minutes: float) -> Iterator[Any]:
    """Yield cases for so many minutes."""
    end = time.time() + 60 * minutes
    for case in cases:
        if time.time() > end:
            return
        yield case


def run_command(campaign: Callable[..., dict[str, Any]], about: str | None, *, files: int) -> None:
    """Run a campaign with the seed and number of files of the command line; exit with 1 on failures."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--files", type=int, default=files)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e6, help="after which it ends early")
    parser.add_argument("--keep", type=Path, help="folder for files that broke a promise")
    parser.add_argument("--out", type=Path, help="JSON file of what was found")
    options = parser.parse_args()
    found = campaign(options.seed, options.files, minutes=options.minutes, keep=options.keep)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    raise SystemExit(bool(found["failures"]))

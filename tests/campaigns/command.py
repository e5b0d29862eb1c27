"""The command line of a campaign."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_command(campaign: Callable[..., dict[str, Any]], about: str | None, *, files: int) -> None:
    """Run a campaign with the seed and number of files of the command line; exit with 1 on failures."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--files", type=int, default=files)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for files that broke a promise")
    parser.add_argument("--out", type=Path, help="JSON file of what was found")
    options = parser.parse_args()
    found = campaign(options.seed, options.files, keep=options.keep)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    raise SystemExit(bool(found["failures"]))

"""Measure how complete the wheel's types are, as a type checker of another project sees them.

    python tools/type_completeness.py --wheel dist/bmrjax-0.2.0-py3-none-any.whl

The wheel is installed, without what it requires, into an empty environment: pyright finds neither editable
installs nor checkouts. What it requires is taken from the environment of this command. Status 1 if less than
`--least` of the public symbols have known types.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path


def completeness(wheel: Path) -> dict[str, float]:
    """Return the share of symbols with known types, and how many are known, ambiguous and unknown."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binaries = Path(folder, "bin")
        install = [binaries / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel]
        subprocess.run(install, check=True)
        environment = os.environ | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": folder,
            "PYTHONPATH": sysconfig.get_path("purelib"),
        }
        pyright = Path(sys.executable).with_name("pyright")
        words = [pyright, "--verifytypes", "bmrjax", "--ignoreexternal", "--outputjson"]
        found = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    report = json.loads(found.stdout)["typeCompleteness"]
    counts = report["exportedSymbolCounts"]
    if not sum(counts.values()):
        raise SystemExit("pyright found no public symbol in the wheel.")
    return {
        "score": report["completenessScore"],
        "known": counts["withKnownType"],
        "ambiguous": counts["withAmbiguousType"],
        "unknown": counts["withUnknownType"],
    }


def main() -> None:
    """Print the figures, and fail below the least."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--least", type=float, default=0.95)
    options = parser.parse_args()
    found = completeness(options.wheel.resolve())
    print(
        f"types: {found['score']:.1%} complete; of the public symbols {found['known']} have known types, "
        f"{found['ambiguous']} ambiguous and {found['unknown']} unknown ones"
    )
    if found["score"] < options.least:
        raise SystemExit(f"types: less than {options.least:.0%} complete")


if __name__ == "__main__":
    main()

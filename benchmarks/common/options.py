"""The command line that all benchmarks share."""

import argparse
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def parser(
    doc: str | None,
    name: str,
    *,
    seeds: int | None = 3,
    data: bool = True,
    quick: str | None = None,
    report: bool = False,
    jobs: bool = False,
) -> argparse.ArgumentParser:
    """Return a parser with the options that many benchmarks have; read it by `parse`.

    Args:
        doc: Docstring of the benchmark.
        name: Folder of its rows in ``benchmarks/results``; with ``--quick``, ``runs/NAME_quick``.
        seeds: Default number of seeds; None for a benchmark without this option.
        data: Whether it reads data from ``--data-root``.
        quick: Help of ``--quick``; None for a benchmark without this option.
        report: Whether tables can be written without running anything.
        jobs: Whether it keeps runs in ``--runs``, of which ``--jobs`` run at a time.
    """
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.set_defaults(name=name, quick=False)
    found.add_argument("--out", type=Path, help=f"folder of the rows: benchmarks/results/{name}")
    if data:
        found.add_argument("--data-root", type=Path, help="folder of the data")
    if seeds is not None:
        found.add_argument("--seeds", type=int, default=seeds, help=f"how many: {seeds}")
    if quick is not None:
        found.add_argument("--quick", action="store_true", help=quick)
    if report:
        found.add_argument("--report", action="store_true", help="only write tables and figures")
    if jobs:
        found.add_argument("--runs", type=Path, help=f"where runs are kept: runs/{name}")
        found.add_argument("--jobs", type=int, default=1, help="runs at a time, a core for each")
    return found


def parse(parser: argparse.ArgumentParser) -> Any:
    """Return the arguments, with the folders that were not given."""
    args = parser.parse_args()
    kind = f"{args.name}_quick" if args.quick else args.name
    if args.out is None:
        args.out = Path("runs") / kind if args.quick else RESULTS / args.name
    if getattr(args, "runs", "") is None:
        args.runs = Path("runs") / kind
    return args

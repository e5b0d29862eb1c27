"""Committed rows run again: are they the same, to the last digit?

    python -m benchmarks.rerun --data-root DIR [--only digits wright2024]

A row of each paper, of digits, of a UCI table, of a run on a mesh, and the ten rows of an ensemble. Where a
figure differs, so much in standard errors as well: from the spread of the committed rows over their seeds
and, where several rows are run again, that of both means. Runs are kept in --runs; delete a folder there to
run its case again. There is no committed row of a mesh: the run on two virtual devices is compared with the
row of one device.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, environment, table
from benchmarks.tables import rows_of

# Two virtual devices share the cores; where these are busy, one waits longer for the other than by default.
MESH = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=1200"
}


@dataclass(frozen=True)
class Case:
    """Rows that are run again.

    `where` are the committed rows, and `row` is what those that are run again have. `command` is a module of
    the benchmarks with words that make them, or what starts with ``bmrjax``. A ``worker`` prints its row.
    """

    where: str
    row: dict[str, Any]
    figures: str
    command: str
    seed: str = "seed"
    worker: bool = False


CASES = {
    "markovic2024": Case(
        "markovic2024",
        {"data": "fashion_mnist", "network": "mlp", "method": "Flat-MAP", "epochs": 50, "seed": 0},
        "accuracy nll ece",
        "papers.markovic2024 --nets mlp --methods map --seeds 1",
    ),
    "beckers2024, an ensemble": Case(
        "beckers2024",
        {"data": "boston", "estimator": "local", "rows": "all"},
        "start.vfe once.vfe iterative.vfe iterative.sparsity regrown.vfe",
        "papers.beckers2024 --data boston --estimators local --rows all",
    ),
    "federici2017": Case(
        "federici2017",
        {"net": "lenet-300-100", "method": "L2"},
        "validation_accuracy test_accuracy test_nll",
        "papers.federici2017 --nets lenet-300-100 --methods L2",
    ),
    "neklyudov2017": Case(
        "neklyudov2017",
        {"net": "lenet-500-300", "random_labels": False, "seed": 0},
        "accuracy nll vfe parameters flops",
        "papers.neklyudov2017 --nets lenet-500-300 --seeds 1 --repeats 3",
    ),
    "wright2024": Case(
        "wright2024",
        {"data": "mnist", "net": "mlp", "rule": "ours", "seed": 0},
        "accuracy nll vfe compression",
        "papers.wright2024 --data mnist --nets mlp --rules ours --seeds 1 --epochs 20 --tune 10 "
        "--batch-size 128",
    ),
    "digits": Case(
        "schedules",
        {"data": "digits", "schedule": "verified (default)", "seed": 0},
        "vfe_per_datum kept accuracy nll",
        "papers.schedules --case 0 --seed 0",
        worker=True,
    ),
    "UCI": Case(
        "trust/tables.json",
        {"set": "boston", "split": 0},
        "bmrjax.rmse bmrjax.nll kept linear.nll",
        "trust.tables --sets boston --splits 1",
        seed="split",
    ),
    "trained": Case(
        "trained",
        {"network": "mlp", "seed": 0, "method": "reduce_network, its own choice"},
        "accuracy nll kept temperature",
        "trained.compare --networks mlp --seeds 0 --methods magnitude",
    ),
    "on a mesh": Case(
        "precision",
        {"dtype": "float32", "seed": 0},
        "accuracy nll vfe_per_datum kept",
        "bmrjax sparsify --data fashion_mnist --net lenet5 --method bmr --batch-size 128 --num-epochs 8 "
        "--steps-per-epoch 200 --num-samples 30 --seed 0 --mesh data=2 --kl-warmup-epochs 0",
    ),
}


WITH_RUNS = ("papers.federici2017", "trust.tables")


def run(case: Case, folder: Path, data_root: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a case from its folder, where they are made if they are not there."""
    first, *words = case.command.split()
    words += ["--data-root", str(data_root)] if data_root else []
    if first == "bmrjax":
        if not (folder / "results.json").exists():
            command = [sys.executable, *processes.CLI, *words, "--no-progress", "--overwrite"]
            command += ["--out", str(folder)]
            subprocess.run(command, check=True, env={**os.environ, **MESH})
        return [json.loads((folder / "results.json").read_text())]
    rows = Rows(folder, Path(case.where).name if "." in case.where else "results.json")
    if not rows.where(**case.row):
        if case.worker:
            rows.add(processes.measured(f"benchmarks.{first}", *words))
        else:
            words += ["--out", str(folder)]
            words += ["--runs", str(folder / "runs")] if first in WITH_RUNS else []
            command = [sys.executable, "-m", f"benchmarks.{first}", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Rows(folder, rows.path.name).where(**case.row)


def value(row: dict[str, Any], figure: str) -> float:
    """Return a figure of a row, such as ``"start.vfe"``."""
    for name in figure.split("."):
        row = row[name]
    return float(row)  # type: ignore[arg-type]


def compared(figure: str, old: Sequence[Any], new: Sequence[Any], others: Sequence[Any]) -> Any:
    """Return means before and now of a figure, how many rows are the same, and standard errors between."""
    before, now = ([value(row, figure) for row in rows] for rows in (old, new))
    spread = [value(row, figure) for row in others]
    means = [sum(values) / len(values) for values in (before, now, spread)]
    error = math.sqrt(sum((v - means[2]) ** 2 for v in spread) / max(len(spread) - 1, 1))
    error *= math.sqrt(2 / len(now)) if len(now) > 1 else 1
    same = sum(a == b for a, b in zip(before, now, strict=True))
    errors = abs(means[1] - means[0]) / error if error else None
    found = {"committed": means[0], "now": means[1], "rows": len(now), "same": same}
    return {"figure": figure, **found, "standard_errors": errors}


def write_table(rows: Rows) -> None:
    """Write ``table.md``: a line for each figure of each case."""
    lines = []
    for row in rows.rows:
        gap = f"{row['now'] - row['committed']:+.2g}"
        if row["standard_errors"] is not None:
            gap += f", {row['standard_errors']:.2f} standard errors"
        if row["same"]:
            gap += f"; {row['same']} of {row['rows']} rows the same"
        numbers = [f"{row[when]:.6g}" for when in ("committed", "now")]
        same = row["same"] == row["rows"]
        cells = [str(row["rows"]), *numbers, "to the last digit" if same else gap]
        lines.append([row["case"], row["figure"], *cells])
    rows.write_table(table("row | figure | rows | committed | now | difference", lines))


def main() -> None:
    """Run the cases and write how they compare with the committed rows."""
    parser = options.parser(__doc__, "rerun", seeds=None, jobs=True)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    args = options.parse(parser)
    rows = Rows(args.out)
    for name in args.only:
        case = CASES[name]
        committed = rows_of(case.where)
        old = sorted(committed.where(**case.row), key=lambda row: row[case.seed])
        new = run(case, args.runs / name.split(",")[0].replace(" ", "_"), args.data_root)
        new = sorted(new, key=lambda row: row.get(case.seed, 0))
        shared = {key: value for key, value in case.row.items() if key != case.seed}
        others = committed.where(**shared)
        figures = [compared(figure, old, new, others) for figure in case.figures.split()]
        about = {"case": name, "from_commit": old[0].get("commit"), **environment()}
        kept = [row for row in rows.rows if row["case"] != name]
        kept += [{**about, **found} for found in figures]
        rows.rows = sorted(kept, key=lambda row: list(CASES).index(row["case"]))
        rows.save()
        write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()

"""The command line on other people's tables, with no options, beside scikit-learn.

    python -m benchmarks.trust.tables --data-root DIR [--quick]

Each table is written as a CSV file and given to ``bmrjax sparsify --data FILE --out DIR``; the seed of
the split is the only option. The baselines see the same training rows and are scored on the same test
rows. Rows go to ``benchmarks/results/trust/tables.json`` as they come in, and those that are there are
not run again; the table to ``tables.md``. A run is timed in a process of its own; after the first split
of a table, with ``--cache DIR``, compiled programs are taken from there.
"""

import argparse
import os
import subprocess
import sys
import time
from json import loads
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import datasets, options, processes
from benchmarks.common.rows import Rows, group, mean_and_error, table
from benchmarks.trust.baselines import baselines
from bmrjax.data import load_dataset

QUICK = ("breast_cancer", "sk_wine", "iris", "diabetes", "noise", "one_column", "yacht", "boston")
# Where a nonlinear model has to be better than the linear one.
BETTER = ("energy", "concrete", "kin8nm", "yacht", "powerplant", "wine")


def run(name: str, split: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a table and a split: the run of the command line, and the baselines."""
    folder = args.runs / f"{name}-{split}"
    folder.mkdir(parents=True, exist_ok=True)
    file = args.runs / f"{name}.csv"
    if not file.exists():
        datasets.table(name, args.data_root).to_csv(file, index=False)
    words = ["sparsify", "--data", str(file), "--out", str(folder / "run")]
    words += ["--no-progress", "--overwrite", "--split-seed", str(split)]
    words += [] if args.temperature is None else ["--temperature", str(args.temperature)]
    env = dict(os.environ)
    if args.cache:
        env |= {
            "JAX_COMPILATION_CACHE_DIR": str(args.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    begin, cpu = time.perf_counter(), os.times()
    command = [sys.executable, *processes.CLI, *words]
    finished = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    seconds, after = time.perf_counter() - begin, os.times()
    if finished.returncode not in (0, 3):
        raise SystemExit(f"{name}, split {split}: {finished.stderr}")
    ours = loads((folder / "run" / "results.json").read_text())
    found = load_dataset(str(file), seed=split)
    config = ours["config"]
    return {
        "set": name,
        "split": split,
        "rows": len(found.train[0]),
        "test_rows": len(found.test[0]),
        "inputs": found.input_shape[0],
        "task": "regression" if found.num_classes is None else f"{found.num_classes} classes",
        "hidden": config["hidden"],
        "status": finished.returncode,
        "findings": [finding["code"] for finding in ours["findings"]],
        "kept": ours["kept"],
        "total": ours["total"],
        "inputs_kept": len(ours["inputs_kept"]),
        "seconds": seconds,
        "cpu_seconds": sum(after[2:4]) - sum(cpu[2:4]),
        "cached": bool(args.cache) and split > 0,
        "temperatures": ours.get("temperatures"),
        "bmrjax": {k: ours[k] for k in ("rmse", "accuracy", "nll") if ours[k] is not None},
        **baselines(found, split),
    }


def line_of(row: dict[str, Any]) -> str:
    """Return a row for the terminal."""
    parts = [
        f"{row['set']} {row['split']}: {row['kept']} weights, {row['cpu_seconds']:.0f} s of CPU"
    ]
    for method in ("bmrjax", "linear", "mlp", "boosting", "trivial"):
        found = row[method]
        score = found.get("rmse", found.get("accuracy"))
        parts.append(f"{method} {score:.3f} / {found['nll']:.3f}")
    return ", ".join(parts)


def _paired(rows: list[dict[str, Any]], method: str, metric: str) -> tuple[float, float]:
    """Return the mean of ours less the other's, and its standard error; an error is less where better."""
    sign = -1 if metric == "accuracy" else 1
    gaps = [sign * (row["bmrjax"][metric] - row[method][metric]) for row in rows]
    error = float(np.std(gaps, ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else 0.0
    return float(np.mean(gaps)), error


def verdicts(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Return what holds of a table."""
    first = "rmse" if "rmse" in rows[0]["bmrjax"] else "accuracy"
    linear = [_paired(rows, "linear", metric) for metric in (first, "nll")]
    other = min(("mlp", "boosting"), key=lambda m: float(np.mean([row[m]["nll"] for row in rows])))
    gap, error = _paired(rows, other, "nll")
    return {
        "not worse than linear": any(mean <= spread for mean, spread in linear),
        "not worse than linear in both": all(mean <= spread for mean, spread in linear),
        "better than linear": any(mean < 0 for mean, _ in linear),
        "as good as mlp and boosting": gap <= error,
    }


def _colder(row: dict[str, Any]) -> bool:
    """Say whether a run took its second fit, at a lower temperature."""
    return bool((row.get("temperatures") or {"taken": 0})["taken"])


def write_table(rows: Rows) -> None:
    """Write ``tables.md``."""
    lines, judged = [], []
    for name, part in group(rows.rows, "set").items():
        metric = "rmse" if "rmse" in part[0]["bmrjax"] else "accuracy"
        found = verdicts(part)
        cells = [
            "<br>".join(
                mean_and_error([row[method][m] for row in part], 3) for m in (metric, "nll")
            )
            for method in ("bmrjax", "linear", "mlp", "boosting", "trivial")
        ]
        size = f"{part[0]['rows']} × {part[0]['inputs']}"
        cold = [row["cpu_seconds"] for row in part if not row["cached"]]
        lines.append(
            [
                f"{name} ({size}, {'RMSE' if metric == 'rmse' else 'accuracy'})",
                *cells,
                mean_and_error([row["kept"] for row in part], 0),
                mean_and_error([row["inputs_kept"] for row in part], 1),
                f"{np.median(cold):.0f}" if cold else "",
                f"{sum(_colder(row) for row in part)}",
                f"{len(part)}",
            ]
        )
        constant = sum(row["status"] == 3 for row in part)
        judged.append(
            [name, *("yes" if value else "no" for value in found.values()), f"{constant}"]
        )
    header = "table | bmrjax, defaults | ridge or logistic | MLP | boosting | no inputs"
    header += " | weights kept | inputs kept | CPU s | colder fit taken | splits"
    verdict_header = ("table", *found, "splits that end in a constant (status 3)")
    scores = (
        "RMSE (standardised target) or accuracy, and below it NLL per data point; mean ± standard error "
        "over the splits. CPU s: of a run of the command line that compiles everything.\n\n"
    )
    judgements = (
        "\nOurs less the other's, paired over the splits, in units of its standard error (at most one); "
        "MLP and boosting by the NLL of the better of the two.\n\n"
    )
    text = scores + table(header, lines) + judgements + table(verdict_header, judged)
    rows.write_table(text, "tables.md")


def main() -> None:
    quick = "two splits of the small tables"
    parser = options.parser(__doc__, "trust", seeds=None, quick=quick, report=True, jobs=True)
    parser.add_argument("--cache", type=Path, default=None, help="of compiled programs")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sets", nargs="*", default=None)
    parser.add_argument(
        "--temperature",
        type=float,
        default=None,
        help="of a study of its own; give it its own --out",
    )
    args = options.parse(parser)
    rows = Rows(args.out, "tables.json", shared=True)
    wanted = args.sets or (list(QUICK) if args.quick else datasets.table_names())
    for split in range(2 if args.quick else args.splits) if not args.report else ():
        for name in wanted:
            if not rows.has(set=name, split=split):
                rows.add(run(name, split, args))
                print(line_of(rows.rows[-1]), flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

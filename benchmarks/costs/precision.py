"""Products in bfloat16 against float32: what a LeNet-5 on Fashion-MNIST ends with, and what a step costs.

    python -m benchmarks.costs.precision --data-root DIR

Each run is one `bmrjax sparsify` command; both precisions have the same seeds, so the same start, batches and
noise. Finished runs in --runs are not run again. Steps are timed in turn, on random data, on the clock and by
the time that the processor spent on them, which other work on the machine changes less.
"""

import argparse
import json
import statistics
from typing import Any

import jax

import bmrjax as bmr
from benchmarks.common import datasets, networks, options, processes, steps
from benchmarks.common.rows import (
    Rows,
    command_of_today,
    environment,
    group,
    mean_and_error,
    means,
    table,
)
from benchmarks.costs.step_cost import CASES

DTYPES = {"float32": None, "bfloat16": "bfloat16"}
FIGURES = {"accuracy": 4, "nll": 4, "ece": 4, "vfe_per_datum": 4, "sparsity": 3}


def command(dtype: str, seed: int, args: argparse.Namespace) -> list[str]:
    """Return the words of the run's command, without its folders."""
    words = "sparsify --data fashion_mnist --net lenet5 --method bmr --batch-size 128 --kl-warmup-epochs 0"
    words += (
        f" --num-epochs {args.epochs} --steps-per-epoch {args.steps} --num-samples {args.samples}"
    )
    words += f" --seed {seed}"
    words += f" --matmul-dtype {dtype}" if DTYPES[dtype] else ""
    return words.split()


def fitted(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is missing; return one row for each run."""
    cases = [(dtype, seed) for seed in range(args.seeds) for dtype in DTYPES]
    commands = {f"{dtype}-{seed}": command(dtype, seed, args) for dtype, seed in cases}
    processes.run_missing(commands, args)
    rows = []
    for name, words in commands.items():
        row = processes.row_of(args.runs / name, words)
        history = json.loads((args.runs / name / "results.json").read_text())["history"]
        compilations = sum(epoch["compile_seconds"] > 0 for epoch in history)
        rows.append({"dtype": name.split("-")[0], **row, "epochs_that_compiled": compilations})
    return rows


def timed(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for each network: milliseconds of a step of both precisions, in turn."""
    rows = []
    for name, (built, turn) in CASES.items():
        model = bmr.programs.classifier(networks.build(built), bmr.priors.Flat())
        data = datasets.random_images((1, 28, 28), 4096)
        sides = {
            dtype: steps.engine_side(model, data, 128, turn, rate=1e-2, matmul_dtype=given)
            for dtype, given in DTYPES.items()
        }
        for side in sides.values():
            side.run(turn)
        steps.take_turns(sides, args.repeats)
        times = {
            "clock": {dtype: side.milliseconds for dtype, side in sides.items()},
            "processor": {dtype: side.processor for dtype, side in sides.items()},
        }
        row = {"network": name, "batch_size": 128, "milliseconds_a_step": times}
        rows.append({**row, **environment()})
        jax.clear_caches()
    return rows


def fit_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the runs, with the differences seed by seed."""
    found = group(rows, "dtype")
    lines = [
        [
            dtype,
            *means(runs, **FIGURES),
            str(len(runs)),
            f"`{command_of_today(runs[0]['command']).replace(' --seed 0', ' --seed 0 --out DIR')}`",
        ]
        for dtype, runs in found.items()
    ]
    pairs = list(zip(found["bfloat16"], found["float32"], strict=True))
    differences = [mean_and_error([b[k] - f[k] for b, f in pairs], d) for k, d in FIGURES.items()]
    lines.append(["bfloat16 − float32, seed by seed", *differences, str(len(pairs)), ""])
    header = "products | accuracy | NLL | ECE | VFE per data point | sparsity | seeds | command"
    return table(header, lines)


def step_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of what a step costs."""
    lines = []
    for row in rows:
        times = row["milliseconds_a_step"]
        work = [f"{statistics.median(times['processor'][dtype]):.1f}" for dtype in DTYPES]
        found = [
            steps.spread(times[clock]["bfloat16"], times[clock]["float32"])
            for clock in ("processor", "clock")
        ]
        ratios = [f"{middle:.2f} ({low:.2f} to {high:.2f})" for middle, low, high in found]
        where = f"{row['device']}, {row['cores']} core{'s' * (row['cores'] > 1)}"
        lines.append([row["network"], *work, *ratios, where])
    header = "network, batch 128 | float32, ms of CPU a step | bfloat16, ms of CPU a step"
    return table(header + " | ratio (range) | ratio on the clock (range) | device", lines)


def write_table(rows: Rows) -> None:
    fits = [row for row in rows.rows if "dtype" in row]
    steps_ = [row for row in rows.rows if "dtype" not in row]
    tables = ([fit_table(fits)] if fits else []) + ([step_table(steps_)] if steps_ else [])
    rows.write_table("\n".join(tables))


def main() -> None:
    """Run what is missing, and write the tables."""
    quick = "one seed, two short epochs"
    parser = options.parser(__doc__, "precision", quick=quick, jobs=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200, help="of an epoch")
    parser.add_argument("--samples", type=int, default=30, help="of the final metrics")
    parser.add_argument("--repeats", type=int, default=9, help="of the timings")
    parser.add_argument(
        "--only", choices=["fits", "steps"], help="leave the other rows as they are"
    )
    args = options.parse(parser)
    if args.quick:
        args.seeds, args.epochs, args.steps, args.samples, args.repeats = 1, 2, 20, 2, 2
    rows = Rows(args.out)
    fits = [row for row in rows.rows if "dtype" in row] if args.only == "steps" else fitted(args)
    old = [row for row in rows.rows if "dtype" not in row]
    rows.rows = [*fits, *(old if args.only == "fits" else timed(args))]
    rows.save()
    write_table(rows)


if __name__ == "__main__":
    main()

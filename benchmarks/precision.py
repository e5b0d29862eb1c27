"""Products in bfloat16 against float32: what a LeNet-5 on Fashion-MNIST ends with, and what a step costs.

    python benchmarks/precision.py --data-root DIR --runs runs/precision

Each run is one `bmrjax sparsify` command; both precisions have the same seeds, so the same start, batches and
noise. Finished runs in --runs are not run again. Steps are timed in turn, on random data, on the clock and by
the time that the processor spent on them, which other work on the machine changes less.
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import cli_runs
import records
import step_cost

DTYPES = {"float32": None, "bfloat16": "bfloat16"}
FIGURES = {"accuracy": 4, "nll": 4, "ece": 4, "vfe_per_datum": 4, "sparsity": 3}


def command(dtype: str, seed: int, args: argparse.Namespace) -> list[str]:
    """Return the words of the run's command, without its folders."""
    words = "sparsify --data fashion_mnist --net lenet5 --method bmr --batch-size 128"
    words += f" --epochs {args.epochs} --steps-per-epoch {args.steps} --samples {args.samples}"
    words += f" --seed {seed}"
    words += f" --matmul-dtype {dtype}" if DTYPES[dtype] else ""
    return words.split()


def fitted(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is missing; return one row a run."""
    commands = {
        f"{dtype}-{seed}": command(dtype, seed, args)
        for seed in range(args.seeds)
        for dtype in DTYPES
    }
    cli_runs.run_missing(commands, args)
    rows = []
    for name, words in commands.items():
        path = next((args.runs / name).glob("results.json"))
        row = cli_runs.row_of(args.runs / name, words)
        history = json.loads(path.read_text())["history"]
        compilations = sum(told["compile_seconds"] > 0 for told in history)
        rows.append({"dtype": name.split("-")[0], **row, "epochs_that_compiled": compilations})
    return rows


def timed(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row a network: milliseconds a step of both precisions, in turn."""
    import jax
    import optax
    from numpyro.infer import TraceMeanField_ELBO

    import bmrjax as bmr
    from bmrjax.infer import AutoMeanField, Engine
    from bmrjax.programs import classifier

    def steps(engine: Any, box: list[Any], data: Any, n: int) -> None:
        state, info = engine.epoch(box[0], {}, data, jax.random.key(1), num_steps=n)
        jax.block_until_ready(info.losses)
        box[0] = state

    rows = []
    for name, (network, shape) in step_cost.networks().items():
        key = jax.random.key(0)
        data = jax.random.normal(key, (4096, *shape)), jax.random.randint(key, (4096,), 0, 10)
        model = classifier(network, bmr.priors.Flat())
        runs = {}
        for dtype, given in DTYPES.items():
            engine = Engine(
                model,
                AutoMeanField(model),
                optimizer=optax.adabelief(1e-2),
                loss=TraceMeanField_ELBO(),
                num_data=4096,
                batch_size=128,
                matmul_dtype=given,
            )
            state = engine.init(key, tuple(a[:128] for a in data))
            runs[dtype] = functools.partial(steps, engine, [state], data)
        row = {"network": name, "batch_size": 128}
        row |= interleaved(runs, step_cost.STEPS[name], args.repeats)
        rows.append({**row, **records.environment()})
        jax.clear_caches()
    return rows


def interleaved(runs: dict[str, Any], n: int, repeats: int) -> dict[str, Any]:
    """Return milliseconds a step, on the clock and of the processor, each repeat of all in turn."""
    clocks = {"clock": time.perf_counter, "processor": time.process_time}
    times = {name: {dtype: [] for dtype in runs} for name in clocks}
    for run in runs.values():
        run(n)
    for _ in range(repeats):
        for dtype, run in runs.items():
            begin = {name: clock() for name, clock in clocks.items()}
            run(n)
            for name, clock in clocks.items():
                times[name][dtype].append(1e3 * (clock() - begin[name]) / n)
    return {"milliseconds_a_step": times}


def ratios_of(times: dict[str, list[float]]) -> str:
    """Return the ratio of bfloat16 to float32, repeat by repeat: its median and range."""
    ratios = [b / f for b, f in zip(times["bfloat16"], times["float32"], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def fit_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the runs, with the differences seed by seed."""
    found = records.group(rows, lambda row: row["dtype"])
    lines = [
        [
            dtype,
            *(records.mean_and_error([r[k] for r in runs], d) for k, d in FIGURES.items()),
            str(len(runs)),
            f"`{runs[0]['command'].replace(' --seed 0', ' --seed 0 --out DIR')}`",
        ]
        for dtype, runs in found.items()
    ]
    pairs = list(zip(found["bfloat16"], found["float32"], strict=True))
    differences = [
        records.mean_and_error([b[k] - f[k] for b, f in pairs], d) for k, d in FIGURES.items()
    ]
    lines.append(["bfloat16 − float32, seed by seed", *differences, str(len(pairs)), ""])
    header = [
        "products",
        "accuracy",
        "NLL",
        "ECE",
        "VFE per data point",
        "sparsity",
        "seeds",
        "command",
    ]
    return records.table(header, lines)


def step_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of what a step costs."""
    lines = [
        [
            row["network"],
            *(f"{statistics.median(times['processor'][dtype]):.1f}" for dtype in DTYPES),
            *(ratios_of(times[clock]) for clock in ("processor", "clock")),
            f"{row['device']}, {row['cores']} core{'s' * (row['cores'] > 1)}",
        ]
        for row in rows
        for times in [row["milliseconds_a_step"]]
    ]
    header = ["network, batch 128", "float32, ms of CPU a step", "bfloat16, ms of CPU a step"]
    header += ["ratio (range)", "ratio on the clock (range)", "device"]
    return records.table(header, lines)


def main() -> None:
    """Run what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/precision"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200, help="an epoch")
    parser.add_argument("--samples", type=int, default=30, help="of the final metrics")
    parser.add_argument("--repeats", type=int, default=9, help="of the timings")
    parser.add_argument(
        "--only", choices=["fits", "steps"], help="leave the other rows as they are"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, two short epochs")
    cli_runs.add_arguments(parser, "runs/precision")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.epochs, args.steps, args.samples, args.repeats = 1, 2, 20, 2, 2
        args.out = args.runs = Path("runs/precision_quick")
    rows = records.Rows(args.out)
    before = {"fits": [], "steps": []}
    for row in rows.rows:
        before["fits" if "dtype" in row else "steps"].append(row)
    fits = before["fits"] if args.only == "steps" else fitted(args)
    steps = before["steps"] if args.only == "fits" else timed(args)
    rows.rows = []
    for row in (*fits, *steps):
        rows.add(row)
    tables = ([fit_table(fits)] if fits else []) + ([step_table(steps)] if steps else [])
    (args.out / "table.md").write_text("\n".join(tables))


if __name__ == "__main__":
    main()

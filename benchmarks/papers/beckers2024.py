"""Iterative Gaussian BMR (Beckers et al. 2024): data x estimator, before, after one reduction, in the end.

    python -m benchmarks.papers.beckers2024 --data-root DIR

Each run fits all seeds of one data set and one estimator side by side in one program, and is a row for each
seed in results.json at once; a stopped command goes on with what is missing. ``--quick`` goes through the
smallest in minutes and proves nothing; ``--report`` writes the table and the figures of the rows there are.
"""

import functools
import gc
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import datasets, options
from benchmarks.common.datasets import SIGNALS
from benchmarks.common.rows import Rows, environment
from benchmarks.papers import beckers2024_report as report
from bmrjax import criteria, priors, programs, schedules, zoo
from bmrjax.data import Dataset
from bmrjax.infer import AutoMeanField, Settled

ESTIMATORS = ("moments", "global", "local")
# Batch size and default number of seeds; sizes as in the paper's code.
DATA = {
    **dict.fromkeys(("boston", "energy", "yacht"), (16, 10)),
    **dict.fromkeys(("concrete", "wine"), (32, 10)),
    **dict.fromkeys(("kin8nm", "naval", "powerplant"), (64, 3)),
    **dict.fromkeys(SIGNALS, (16, 3)),
}
NAMES = (*datasets.UCI, *SIGNALS)
# Targets of 454 ± 17 are far for a network of N(0, 1) weights: these creep up for long.
SLOW = ("powerplant",)
CURVES = "boston"  # whose predicted and actual free energies are drawn, as in the paper


@dataclass(frozen=True)
class Settings:
    """What all runs of a command share; an epoch is one learning rate of a training."""

    steps: int = 100_000  # of an epoch at most: it ends when the VFE has settled
    until: Settled = Settled(tolerance=2e-4)
    until_recurrent: Settled = Settled(window=3000, tolerance=1e-4)
    until_slow: Settled = Settled(window=4000, tolerance=5e-5)
    epochs: int = 100
    regrowths: int = 1
    rows: int | None = None  # training data at most
    seeds: int | None = None  # None: as many as the data set has by default
    points: int = 101  # of the curves


def build(found: Dataset, name: str, seed: int) -> Any:
    """Return the program of the paper: 50 units or a GRU of 16, N(0, 1) weights, Gamma(1, 1).

    The paper does not say what its units compute; these are swish.
    """
    key, targets = jax.random.key(seed), 1 if found.train[1].ndim == 1 else found.train[1].shape[1]
    if name in SIGNALS:
        network: Any = zoo.GRU(1, 16, targets, key=key)
    else:
        network = zoo.MLP(found.input_shape[0], (50,), targets, key=key)
    return programs.regression(network, priors.NormalPrior(1.0), precision=(1.0, 1.0))


def run(
    name: str, estimator: Any, rows: str, data_root: Path | None, settings: Settings
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Fit all seeds; return a row for each, and the curves of the first one's start.

    `rows` is ``"all"``, as in the paper; ``"train"``, with test metrics of the rest; or ``"chosen"``, where
    a tenth of the training rows chooses the point of the path.
    """
    found = datasets.regression(name, data_root)
    batch, seeds = DATA[name]
    seeds = seeds if settings.seeds is None else settings.seeds
    train, test = (
        tuple(part[: settings.rows] for part in split) for split in (found.train, found.test)
    )
    if rows == "all":
        train = tuple(np.concatenate(pair) for pair in zip(train, test, strict=True))
    validation = None
    if rows == "chosen":
        end = len(train[0]) * 9 // 10
        train, validation = (
            tuple(part[s] for part in train) for s in (slice(end), slice(end, None))
        )
    recurrent = name in SIGNALS
    until, rates = settings.until, (1.0, 0.1)
    if recurrent or name in SLOW:
        until = settings.until_recurrent if recurrent else settings.until_slow
        rates = (1.0, 0.1, 0.01)
    models = [build(found, name, seed) for seed in range(seeds)]
    begin = time.perf_counter()
    options: dict[str, Any] = {
        "num_epochs": settings.epochs,
        # As published, a posterior starts as wide as the prior.
        "guide": functools.partial(AutoMeanField, init_scale=1.0),
        "criterion": criteria.Shrinkage(),
        "schedule": schedules.Iterative(until=until, rates=rates, regrowths=settings.regrowths),
        "optimizer": optax.adabelief(1e-2),
        "options": bmr.FitOptions(estimator=estimator, kl_warmup=0),
        "batch_size": batch,
        "steps_per_epoch": settings.steps,
        "progress": False,
    }
    if rows != "all":
        options["held_out"] = bmr.HeldOut(test, samples=100, every=settings.epochs)
    keys = [jax.random.key(seed) for seed in range(seeds)]
    failures: dict[int, Any] = {}
    try:
        results = bmr.ensemble(models, train, keys=keys, **options)
    except bmr.EnsembleError as error:
        results, failures = error.results, error.failures
    seconds = time.perf_counter() - begin
    what = {"data": name, "estimator": estimator, "rows": rows}
    size = {"num_data": len(train[0]), "batch": batch, "vmapped": seeds, "seconds": seconds}
    summary = []
    for seed, result in enumerate(results):
        row = {**what, "seed": seed, **size, "compile_seconds": result.timing["compile_seconds"]}
        if seed in failures:
            summary.append(row | {"failed": str(failures[seed])})
        else:
            summary.append(row | stages(result) | chosen(result, validation))
    if name != CURVES or rows != "all" or 0 in failures:
        return summary, {}
    start = results[0].at(0)
    report_ = bmr.free_energy_report(
        start.model,
        start.guide,
        start.params,
        train,
        key=jax.random.key(0),
        points=settings.points,
        options=bmr.FitOptions(estimator=estimator, kl_warmup=0),
    )
    fields = ("removed", "predicted", "actual", "expected_nll")
    curves = {
        order: {field: getattr(curve, field).tolist() for field in fields}
        for order, curve in report_.curves.items()
    }
    return summary, {"curves": curves, "kept": report_.num_kept, "proposed": report_.proposed}


def stages(result: bmr.Result) -> dict[str, Any]:
    """Return the figures before the first reduction, after it, in the end, and after regrowth."""
    path = [point for point in result.path if not point.taken_back]
    # Where the number of elements grows, all had come back.
    back = next((i for i in range(1, len(path)) if path[i].kept > path[i - 1].kept), len(path))
    first = path[:back]
    ends = {
        "start": path[0],
        "once": next((point for point in path if point.kept < path[0].kept), path[0]),
        "iterative": min(first, key=lambda point: point.vfe),
        "regrown": min(path, key=lambda point: point.vfe),
    }
    summary: dict[str, Any] = {
        stage: {"vfe": point.vfe, "sparsity": 1 - point.kept / point.total, **point.metrics}
        for stage, point in ends.items()
    }
    steps = [row for row in result.history if not row["taken_back"]]
    summary["path"] = [
        {"epoch": p.epoch, "vfe": p.vfe, "kept": p.kept, "taken_back": p.taken_back, **p.metrics}
        for p in result.path
    ]
    return {**summary, "epochs": len(steps), "total": path[0].total}


def chosen(result: bmr.Result, validation: Any) -> dict[str, Any]:
    """Return the figures of the point of the path that predicts `validation` best, if there is any."""
    if validation is None:
        return {}
    best = result.most_predictive(jax.random.key(1), validation)
    # Its metrics on the test rows are on the path already.
    point = next(p for p in result.path if p.vfe == best.vfe)
    return {"chosen": {"vfe": point.vfe, "sparsity": best.sparsity, **point.metrics}}


def main() -> None:
    """Run what is missing, and write the table and the figures."""
    quick = "two small data sets, short runs"
    parser = options.parser(__doc__, "beckers2024", seeds=None, quick=quick, report=True)
    parser.add_argument("--data", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--estimators", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS))
    parser.add_argument(
        "--rows", nargs="+", choices=("all", "train", "chosen"), default=["all", "train"]
    )
    parser.add_argument("--seeds", type=int, default=None, help="how many: 10, or 3 of large sets")
    args = options.parse(parser)
    settings = Settings(seeds=args.seeds)
    if args.quick:
        args.data, short = ["boston", "sine"], Settled(window=125)
        settings = Settings(
            steps=1000, until=short, until_recurrent=short, epochs=8, rows=200, seeds=2, points=11
        )
    rows, stored = Rows(args.out), args.out / "curves.json"
    curves = json.loads(stored.read_text()) if stored.exists() else {}
    cells = itertools.product(args.rows, args.data, args.estimators)
    for which, name, estimator in [] if args.report else cells:
        if rows.has(data=name, estimator=estimator, rows=which):
            continue
        if args.quick and which != "all" and name in SIGNALS:
            continue
        found, curve = run(name, estimator, which, args.data_root, settings)
        if curve:
            curves[estimator] = curve
            stored.write_text(json.dumps(curves))
        for row in found:
            rows.add({**row, **environment()})
        print(which, name, estimator, report.summary(found[0]), flush=True)
        report.write_table(rows)
        jax.clear_caches()
        gc.collect()
    report.write_table(rows)
    report.write_figures(rows, curves)


if __name__ == "__main__":
    main()

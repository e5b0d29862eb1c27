"""Stochastic Bayesian model reduction (Marković, Friston and Kiebel 2024): data x network x method.

    python -m benchmarks.papers.markovic2024 --data-root DIR --data fashion_mnist --nets lenet5 mlp --seeds 3

Every finished run is a row of results.json at once; a stopped command goes on with what is missing.
``--quick`` goes through everything in minutes and proves nothing; ``--speed`` times the steps of the
methods against each other; ``--report`` draws the table and the figures of the rows there are;
``--vmap`` runs the seeds of a row side by side in one program, which pays on an accelerator.
"""

import argparse
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer.autoguide import AutoDelta

import bmrjax as bmr
from benchmarks.common import datasets, networks, options
from benchmarks.common.rows import Rows, environment
from benchmarks.costs import bmr4pml, horseshoe
from benchmarks.papers import markovic2024_report as report
from benchmarks.papers import markovic2024_weights as weights
from bmrjax import criteria, priors, programs, schedules

DATA = ("fashion_mnist", "mnist", "cifar10")
NETS = ("lenet5", "mlp", "vit", "mixer")
BATCH, CLASSES = 128, 10


@dataclass(frozen=True)
class Method:
    """One row of the comparison; a point estimate is fitted with dropout."""

    label: str
    prior: priors.Prior
    rate: float  # AdaBelief's
    criterion: Any = None  # decides which weights are kept; None removes nothing
    schedule: Callable[[int], schedules.Schedule] | None = None  # of the epochs; None: the default
    point: bool = False


FLAT = priors.Flat()


def reducing(label: str, criterion: Any, schedule: schedules.Schedule | None = None) -> Method:
    """Return a method of stochastic BMR; by default its schedule is the default one."""
    return Method(label, FLAT, 1e-2, criterion, schedule and (lambda _: schedule))


SPIKE_AND_SLAB, SHRINKAGE = criteria.SpikeAndSlab(), criteria.Shrinkage()
# In the published code, what is removed goes on counting with a posterior that drifts to the prior.
AT_PRIOR = criteria.SpikeAndSlab(removed="at prior")
# Larger rounds, or earlier and quicker ones, leave more of the run to the sparse network.
BOLD, EARLY = schedules.Verified(fraction=0.9), schedules.Verified(wait=2, refit=2)
METHODS = {
    "map": Method("Flat-MAP", FLAT, 1e-3, point=True),
    "flat": Method("Flat-FF", FLAT, 5e-3),
    "tiered": Method("Tiered-FF", priors.RegularizedHorseshoePrior(0.01), 5e-3),
    "bmr": reducing("BMR-S&S", AT_PRIOR, schedules.Every()),
    "excluded": reducing("BMR-S&S, removed excluded", SPIKE_AND_SLAB, schedules.Every()),
    "verified": reducing("BMR-S&S, verified", SPIKE_AND_SLAB),
    "at-prior": reducing("BMR-S&S at prior, verified", AT_PRIOR),
    "shrinkage": reducing("BMR-shrinkage, verified", SHRINKAGE),
    "bold": reducing("BMR-S&S, verified, 90 % a round", SPIKE_AND_SLAB, BOLD),
    "early": reducing("BMR-S&S, verified from epoch 3", SPIKE_AND_SLAB, EARLY),
}
PUBLISHED = ("map", "flat", "tiered", "bmr")


def fit(
    method: Method, built: list[Any], train: Any, test: Any, seeds: list[int], args: Any
) -> list[bmr.Result | bmr.NonFiniteError]:
    """Fit one network for each seed by one method; several side by side, in one program."""
    models = [programs.classifier(network, method.prior) for network in built]
    keys, point = [jax.random.key(seed) for seed in seeds], method.point

    def guide_of(model: Any) -> Any:
        if point:
            return AutoDelta(model, init_loc_fn=bmr.init_to_network)
        return bmr.infer.AutoMeanField(model)

    options: dict[str, Any] = {
        "num_epochs": args.epochs,
        "criterion": method.criterion,
        "schedule": method.schedule and method.schedule(args.epochs),
        "optimizer": optax.adabelief(method.rate),
        "batch_size": BATCH,
        "steps_per_epoch": args.steps,
        "held_out": bmr.HeldOut(
            test,
            samples=1 if point else args.eval_samples,
            every=args.eval_every,
            final_samples=1 if point else args.samples,
        ),
        "progress": False,
        "options": bmr.FitOptions(kl_warmup=0),
    }
    try:
        if len(seeds) > 1:
            return [*bmr.ensemble(models, train, keys=keys, guide=guide_of, **options)]
        return [bmr.sparsify(models[0], train, key=keys[0], guide=guide_of(models[0]), **options)]
    except bmr.EnsembleError as error:
        return [error.failures.get(i, result) for i, result in enumerate(error.results)]
    except bmr.NonFiniteError as error:
        return [error]


def run(
    whats: list[dict[str, Any]], method: Method, train: Any, test: Any, args: Any
) -> list[tuple[dict[str, Any], np.ndarray | None]]:
    """Run one row, or in one program the rows of `whats`, which differ in the seed.

    Returns rows and the units of the first layer; a run that failed has its message and no units.
    """
    begin = time.perf_counter()
    shape, seeds = train[0].shape[1:], [what["seed"] for what in whats]
    dropout, name = 0.2 if method.point else 0.0, whats[0]["network"]
    built = [networks.classifier_of(name, shape, CLASSES, seed, dropout=dropout) for seed in seeds]
    ended = fit(method, built, train, test, seeds, args)
    seconds = (time.perf_counter() - begin) / len(whats)
    found = []
    for what, network, result in zip(whats, built, ended, strict=True):
        row = {**what, "batch": BATCH, "samples": 1 if method.point else args.samples}
        row |= {"num_data": len(train[0]), "vmapped": len(whats), "seconds": seconds}
        units = None
        if isinstance(result, bmr.NonFiniteError):
            row |= {"failed": str(result), "history": epochs_of(result.result)}
        else:
            row |= figures_of(result, args.steps)
            if method.point:
                row["vfe_per_datum"] = None  # a point has a density, and no free energy to compare
            key = jax.random.key(1000 + what["seed"])
            means = weights.posterior_means(network, method.prior, result, key)
            row["cdf"] = weights.quantiles(means)
            units = weights.first_layer(means, shape)
        found.append((row | environment(), units))
    return found


def figures_of(result: bmr.Result, steps: int) -> dict[str, Any]:
    """Return the figures of a finished run."""
    seconds = statistics.median(row["seconds"] for row in result.history)
    times = [row.get("reduce_seconds", 0.0) for row in result.history]
    # An epoch without a reduction takes microseconds, and the first round also compiles.
    reducing = [t for t in times if t > 1e-4][1:]
    return {
        **{name: finite(result.metrics[name]) for name in ("accuracy", "nll", "ece")},
        "sparsity": result.sparsity,
        "sparsity_per_layer": {
            layer.removeprefix("net."): part for layer, part in result.sparsity_per_layer.items()
        },
        "kept": result.num_kept,
        "total": result.num_total,
        "vfe_per_datum": finite(result.vfe_per_datum),
        "step_ms": 1e3 * seconds / steps,
        "reduce_share": statistics.median(reducing) / seconds if reducing else None,
        "compile_seconds": result.timing["compile_seconds"],
        "skipped_steps": result.num_skipped,
        "loop": result.loop_mode,
        "history": epochs_of(result),
    }


def epochs_of(result: bmr.Result) -> list[dict[str, Any]]:
    """Return held-out metrics, where they were measured, and sparsity after every epoch."""
    # The last epoch is measured as the last point of the path.
    points = {point.epoch: point.metrics for point in result.path}
    found = []
    for row in result.history:
        metrics = row if "nll" in row else points.get(row["epoch"], {})
        sparsity = 1 - row["kept"] / result.num_total if result.num_total else 0.0
        scores = {name: finite(metrics.get(name)) for name in ("accuracy", "nll", "ece")}
        summary = {"epoch": row["epoch"], **scores, "sparsity": sparsity}
        found.append(summary | {"taken_back": row["taken_back"]})
    return found


def finite(value: float | None) -> float | None:
    """Return `value`, or None for what JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None


def missing(args: argparse.Namespace, rows: Rows) -> list[tuple[list[dict[str, Any]], Method]]:
    """Return what is to be run, all of one seed before the next, so that a part is balanced.

    With ``--vmap``, the seeds of a row go together.
    """
    waiting, lengths = [], {"epochs": args.epochs, "steps_per_epoch": args.steps}
    seeds = [[*range(args.seeds)]] if args.vmap else [[seed] for seed in range(args.seeds)]
    for group, *cell, word in itertools.product(seeds, args.data, args.nets, args.methods):
        what = dict(zip(("data", "network", "method"), (*cell, METHODS[word].label), strict=True))
        whats = [{**what, "seed": seed, **lengths} for seed in group]
        whats = [what for what in whats if not rows.has(**what)]
        if whats:
            waiting.append((whats, METHODS[word]))
    return waiting


def run_missing(args: argparse.Namespace, rows: Rows) -> None:
    """Run what is missing; write the table after each row and the figures after each seed."""
    waiting = missing(args, rows)
    for i, (whats, method) in enumerate(waiting):
        train, test = datasets.images(whats[0]["data"], args.data_root, rows=args.rows)
        done = run(whats, method, train, test, args)
        for what, (row, units) in zip(whats, done, strict=True):
            if units is not None and what["seed"] == 0:
                weights.store(args.out, weights.name_of(what), units)
            rows.add(row)
            print(*what.values(), "failed" if "failed" in row else summary(row), flush=True)
        report.write_table(rows)
        if i + 1 == len(waiting) or waiting[i + 1][0][0]["seed"] != whats[0]["seed"]:
            report.write_figures(rows)
            jax.clear_caches()
        gc.collect()


def time_steps(args: argparse.Namespace) -> None:
    """Time the steps of the methods against each other, and write their table."""
    timed = Rows(args.out / "speed")
    for data in args.data:
        train, _ = datasets.images(data, args.data_root, rows=args.rows)
        first = tuple(jnp.asarray(part[: horseshoe.ROWS]) for part in train)
        for net in ["mlp"] if args.quick else args.nets:
            network = networks.classifier_of(net, train[0].shape[1:], CLASSES, 0, dropout=0.0)
            peers = {}
            if args.bmr4pml is not None and net in ("lenet5", "mlp"):
                peers = bmr4pml.steppers(args.bmr4pml, net, first, BATCH)
            turn = min(args.steps, horseshoe.STEPS[net])
            row = horseshoe.measure(
                network, first, BATCH, turn, args.repeats, peers, full=not args.quick
            )
            timed.rows = [r for r in timed.rows if (r["data"], r["network"]) != (data, net)]
            timed.add({"data": data, "network": net, "batch": BATCH, **row, **environment()})
            horseshoe.write_table(timed)


def summary(row: dict[str, Any]) -> str:
    """Return a row's figures for a line of the log."""
    names = ("accuracy", "nll", "ece", "sparsity", "step_ms", "seconds")
    return ", ".join(f"{n} {row[n]:.4g}" for n in names if row[n] is not None)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__, "markovic2024", quick="everything, tiny", report=True)
    parser.add_argument("--data", nargs="+", choices=DATA, default=["fashion_mnist"])
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["lenet5", "mlp"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*PUBLISHED, "verified"])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=500, help="steps of an epoch")
    parser.add_argument("--samples", type=int, default=100, help="of the posterior, at the end")
    parser.add_argument("--eval-samples", type=int, default=4, help="of it, between epochs")
    parser.add_argument("--eval-every", type=int, default=1, help="epochs, for the curves")
    parser.add_argument("--rows", type=int, help="training and test data at most; all by default")
    parser.add_argument("--vmap", action="store_true", help="the seeds of a row in one program")
    parser.add_argument("--speed", action="store_true", help="only time the steps")
    parser.add_argument("--bmr4pml", help="--speed: clone of the paper's code, timed beside")
    parser.add_argument("--repeats", type=int, default=9, help="of --speed")
    args = options.parse(parser)
    if args.quick:
        args.seeds, args.epochs, args.steps, args.repeats, args.speed = 1, 3, 5, 3, True
        args.samples, args.eval_samples, args.rows = 5, 2, 1024
        args.data, args.nets, args.methods = ["fashion_mnist"], ["lenet5", "mlp"], [*PUBLISHED]
    return args


def main() -> None:
    """Run what is missing, and write the table and the figures."""
    args = arguments()
    rows = Rows(args.out)
    if args.report:
        report.write_table(rows)
        report.write_figures(rows)
    elif args.quick or not args.speed:
        run_missing(args, rows)
    if args.speed:
        time_steps(args)


if __name__ == "__main__":
    main()

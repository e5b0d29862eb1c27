"""Stochastic Bayesian model reduction (Marković, Friston and Kiebel 2024): data x network x method.

    python benchmarks/markovic2024.py --data-root DIR --data fashion_mnist --nets lenet5 mlp --seeds 3

Every finished run is a row of results.json at once; a stopped command goes on with what is missing.
``--quick`` goes through everything in minutes and proves nothing; ``--speed`` times the steps of the
methods against each other; ``--report`` draws the table and the figures of the rows there are;
``--vmap`` runs the seeds of a row side by side in one program, which pays on an accelerator.
"""

import argparse
import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import markovic2024_report as report
import markovic2024_speed as speed
import markovic2024_weights as weights
import numpy as np
import optax
import records
from numpyro.infer.autoguide import AutoDelta

import bmrjax as bmr
from bmrjax import priors, programs, schedules, zoo

DATA = ("fashion_mnist", "mnist", "cifar10")
NETS = ("lenet5", "mlp", "vit", "mixer")
BATCH = 128


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
        label: What tables and figures call it.
        prior: Prior of the weights.
        rate: Learning rate of AdaBelief.
        criterion: Decides which weights are kept; None removes nothing.
        schedule: From the number of epochs to the schedule; None is the default one.
        point: Whether the posterior is a point, fitted with dropout.
    """

    label: str
    prior: priors.Prior
    rate: float
    criterion: Any = None
    schedule: Callable[[int], schedules.Schedule] | None = None
    point: bool = False


METHODS = {
    "map": Method("Flat-MAP", priors.Flat(), 1e-3, point=True),
    "flat": Method("Flat-FF", priors.Flat(), 5e-3),
    "tiered": Method("Tiered-FF", priors.RegularizedHorseshoePrior(0.01), 5e-3),
    # In the published code, what is removed goes on counting with a posterior that drifts to the prior.
    "bmr": Method(
        "BMR-S&S",
        priors.Flat(),
        1e-2,
        bmr.criteria.SpikeAndSlab(removed="at prior"),
        lambda _: schedules.Every(),
    ),
    "excluded": Method(
        "BMR-S&S, removed excluded",
        priors.Flat(),
        1e-2,
        bmr.criteria.SpikeAndSlab(),
        lambda _: schedules.Every(),
    ),
    "verified": Method("BMR-S&S, verified", priors.Flat(), 1e-2, bmr.criteria.SpikeAndSlab(), None),
    "at-prior": Method(
        "BMR-S&S at prior, verified",
        priors.Flat(),
        1e-2,
        bmr.criteria.SpikeAndSlab(removed="at prior"),
        None,
    ),
    "shrinkage": Method(
        "BMR-shrinkage, verified", priors.Flat(), 1e-2, bmr.criteria.Shrinkage(), None
    ),
    # Larger rounds, or earlier and quicker ones, leave more of the run to the sparse network.
    "bold": Method(
        "BMR-S&S, verified, 90 % a round",
        priors.Flat(),
        1e-2,
        bmr.criteria.SpikeAndSlab(),
        lambda _: schedules.Verified(fraction=0.9),
    ),
    "early": Method(
        "BMR-S&S, verified from epoch 3",
        priors.Flat(),
        1e-2,
        bmr.criteria.SpikeAndSlab(),
        lambda _: schedules.Verified(wait=2, refit=2),
    ),
    "early-shrinkage": Method(
        "BMR-shrinkage, verified from epoch 3",
        priors.Flat(),
        1e-2,
        bmr.criteria.Shrinkage(),
        lambda _: schedules.Verified(wait=2, refit=2),
    ),
    # The slab is as wide as the flat prior; what is excluded goes before the last epoch.
    "direct": Method(
        "S&S direct",
        priors.SpikeAndSlabPrior(scale=0.1),
        5e-3,
        bmr.criteria.Inclusion(),
        lambda epochs: schedules.Every(wait=epochs - 1),
    ),
}
PUBLISHED = ("map", "flat", "tiered", "bmr")


@dataclass(frozen=True)
class Settings:
    """What all runs of a command share.

    Attributes:
        epochs: Epochs of a run.
        steps: Steps of an epoch.
        samples: Posterior samples of the metrics at the end.
        eval_samples: Posterior samples of the metrics between epochs.
        eval_every: Epochs from one such measurement to the next.
        rows: Training and test data at most; None for all of them.
    """

    epochs: int
    steps: int
    samples: int = 100
    eval_samples: int = 4
    eval_every: int = 1
    rows: int | None = None


def build(name: str, shape: tuple[int, ...], classes: int, *, dropout: float, key: Any) -> Any:
    """Return a network of the paper's size."""
    if name == "mlp":
        return zoo.MLP(math.prod(shape), (400,) * 5, classes, dropout=dropout, key=key)
    if name == "lenet5":
        wide = {"conv_features": (18, 48, 360), "hidden": 256} if shape[0] == 3 else {}
        return zoo.LeNet5(shape[0], classes, dropout=dropout, key=key, **wide)
    if name == "vit":
        return zoo.ViT(shape[0], classes, image_size=shape[1:], dropout=dropout, key=key)
    # As published, without dropout for a point estimate too.
    return zoo.MLPMixer(shape[0], classes, image_size=shape[1:], key=key)


@functools.lru_cache(maxsize=1)
def load(name: str, data_root: str | None, rows: int | None) -> tuple[Any, Any, int]:
    """Return (train, test, number of classes)."""
    found = bmr.data.load_dataset(name, data_root=data_root)
    train, test = (
        tuple(np.asarray(part)[:rows] for part in split) for split in (found.train, found.test)
    )
    assert found.num_classes is not None
    return train, test, found.num_classes


def fit(
    method: Method,
    networks: list[Any],
    train: Any,
    test: Any,
    seeds: list[int],
    settings: Settings,
) -> list[bmr.Result | bmr.NonFiniteError]:
    """Fit one network a seed by one method; several side by side, in one program."""
    models = [programs.classifier(network, method.prior) for network in networks]
    keys = [jax.random.key(seed) for seed in seeds]
    schedule = None if method.schedule is None else method.schedule(settings.epochs)

    def guide_of(model: Any) -> Any:
        if method.point:
            return AutoDelta(model, init_loc_fn=bmr.init_to_network)
        return bmr.infer.AutoMeanField(model)

    options: dict[str, Any] = {
        "num_epochs": settings.epochs,
        "criterion": method.criterion,
        "schedule": schedule,
        "optimizer": optax.adabelief(method.rate),
        "batch_size": BATCH,
        "steps_per_epoch": settings.steps,
        "held_out": bmr.HeldOut(
            test,
            samples=1 if method.point else settings.eval_samples,
            every=settings.eval_every,
            final_samples=1 if method.point else settings.samples,
        ),
        "progress": False,
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
    whats: list[dict[str, Any]],
    method: Method,
    train: Any,
    test: Any,
    classes: int,
    settings: Settings,
) -> list[tuple[dict[str, Any], np.ndarray | None]]:
    """Run one row, or the rows of several seeds in one program.

    Args:
        whats: What tells each row from others: data, network, method, seed, epochs,
            steps_per_epoch; they differ in the seed.
        method: The method.
        train: Training data.
        test: Held-out data; they decide nothing.
        classes: Number of classes.
        settings: Of the command.

    Returns:
        Rows, and the units of the first layer; a run that failed has its message and no units.
    """
    begin = time.perf_counter()
    shape, seeds = train[0].shape[1:], [what["seed"] for what in whats]
    dropout, name = 0.2 if method.point else 0.0, whats[0]["network"]
    networks = [
        build(name, shape, classes, dropout=dropout, key=jax.random.key(seed)) for seed in seeds
    ]
    ended = fit(method, networks, train, test, seeds, settings)
    seconds = (time.perf_counter() - begin) / len(whats)
    found = []
    for what, network, result in zip(whats, networks, ended, strict=True):
        row = {**what, "batch": BATCH, "samples": 1 if method.point else settings.samples}
        row |= {"num_data": len(train[0]), "vmapped": len(whats), "seconds": seconds}
        units = None
        if isinstance(result, bmr.NonFiniteError):
            row |= {"failed": str(result), "history": epochs_of(result.result)}
        else:
            row |= figures_of(result, settings.steps)
            if method.point:
                row["vfe_per_datum"] = None  # a point has a density, and no free energy to compare
            key = jax.random.key(1000 + what["seed"])
            means = weights.posterior_means(network, method.prior, result, key)
            row["cdf"] = weights.quantiles(means)
            units = weights.first_layer(means, shape)
        found.append((row | records.environment(), units))
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


def missing(
    args: argparse.Namespace, rows: records.Rows
) -> list[tuple[list[dict[str, Any]], Method]]:
    """Return what is to be run, all of one seed before the next, so that a part is balanced.

    With ``--vmap``, the seeds of a row go together.
    """
    waiting = []
    seeds = [[*range(args.seeds)]] if args.vmap else [[seed] for seed in range(args.seeds)]
    for group in seeds:
        for data in args.data:
            for net in args.nets:
                for word in args.methods:
                    what = {"data": data, "network": net, "method": METHODS[word].label}
                    lengths = {"epochs": args.epochs, "steps_per_epoch": args.steps}
                    whats = [{**what, "seed": seed, **lengths} for seed in group]
                    whats = [what for what in whats if not rows.has(**what)]
                    if whats:
                        waiting.append((whats, METHODS[word]))
    return waiting


def main() -> None:
    """Run what is missing, and write the table and the figures."""
    args = arguments()
    rows = records.Rows(args.out)
    rows_at_most = 1024 if args.quick else None
    settings = Settings(
        args.epochs, args.steps, args.samples, args.eval_samples, args.eval_every, args.rows
    )
    if args.quick:
        settings = Settings(args.epochs, args.steps, samples=5, eval_samples=2, rows=rows_at_most)
    only_speed = args.speed and not args.quick
    waiting = [] if args.report or only_speed else missing(args, rows)
    for i, (whats, method) in enumerate(waiting):
        train, test, classes = load(whats[0]["data"], args.data_root, settings.rows)
        done = run(whats, method, train, test, classes, settings)
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
    if args.report:
        report.write_table(rows)
        report.write_figures(rows)
    if args.speed:
        timed = records.Rows(args.out / "speed")
        for data in args.data:
            train, _, classes = load(data, args.data_root, rows_at_most)
            for net in ["mlp"] if args.quick else args.nets:
                network = build(
                    net, train[0].shape[1:], classes, dropout=0.0, key=jax.random.key(0)
                )
                what = {"data": data, "network": net, "batch": BATCH}
                steps = min(args.steps, speed.STEPS[net])
                first = tuple(jnp.asarray(part[: speed.ROWS]) for part in train)
                peers = {}
                if args.bmr4pml is not None and net in ("lenet5", "mlp"):
                    peers = speed.peer_steppers(args.bmr4pml, net, first, BATCH)
                row = speed.measure(
                    network, first, BATCH, steps, args.repeats, peers, full=not args.quick
                )
                timed.rows = [r for r in timed.rows if (r["data"], r["network"]) != (data, net)]
                timed.add({**what, **row, **records.environment()})
                speed.write_table(timed)


def summary(row: dict[str, Any]) -> str:
    """Return a row's figures for a line of the log."""
    names = ("accuracy", "nll", "ece", "sparsity", "step_ms", "seconds")
    return ", ".join(f"{n} {row[n]:.4g}" for n in names if row[n] is not None)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/markovic2024")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="+", choices=DATA, default=["fashion_mnist"])
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["lenet5", "mlp"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*PUBLISHED, "verified"])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=500, help="steps an epoch")
    parser.add_argument("--samples", type=int, default=100, help="of the posterior, at the end")
    parser.add_argument("--eval-samples", type=int, default=4, help="of it, between epochs")
    parser.add_argument("--eval-every", type=int, default=1, help="epochs, for the curves")
    parser.add_argument("--rows", type=int, help="training and test data at most; all by default")
    parser.add_argument("--vmap", action="store_true", help="the seeds of a row in one program")
    parser.add_argument("--speed", action="store_true", help="only time the steps")
    parser.add_argument("--bmr4pml", help="--speed: clone of the paper's code, timed beside")
    parser.add_argument("--repeats", type=int, default=9, help="of --speed")
    parser.add_argument("--report", action="store_true", help="only write the table and figures")
    parser.add_argument("--quick", action="store_true", help="everything, tiny; into runs/")
    args = parser.parse_args()
    if args.out is None:
        quick = Path("runs/markovic2024_quick")
        args.out = quick if args.quick else Path("benchmarks/results/markovic2024")
    if args.quick:
        args.seeds, args.epochs, args.steps, args.repeats, args.speed = 1, 3, 5, 3, True
        args.data, args.nets, args.methods = ["fashion_mnist"], ["lenet5", "mlp"], [*PUBLISHED]
    return args


if __name__ == "__main__":
    main()

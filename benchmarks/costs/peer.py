"""LeNet-5 with stochastic BMR on Fashion-MNIST: bmrjax beside the paper's own code, bmr4pml.

    python -m benchmarks.costs.peer --bmr4pml DIR --data-root DIR

Needs a clone of github.com/dimarkov/bmr4pml (measured at commit 72133b4); see `bmr4pml`. Both sides get the
same arrays, network, batch size, optimiser and machine, and a fresh process each. The clock starts after the
imports and the loading of the data, and includes every compilation.

An epoch is `--steps` steps. The peer warms up for one epoch, prunes, then trains and prunes an
epoch at a time; it is given ``epochs - 1`` epochs after its warm-up, ours ``epochs`` in all with the
published schedule. So both take ``epochs * steps`` steps and prune ``epochs - 1`` times. The peer
evaluates `--samples` posterior samples after every epoch but the warm-up; those seconds are measured, so
that its time with one evaluation at the end can be reported too.
"""

import argparse
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import datasets, options, processes
from benchmarks.common.rows import Rows, environment, group, means, table
from benchmarks.costs.bmr4pml import commit, import_peer, padded, quantile_calibration_error
from bmrjax.infer.evaluate import Evaluator

BINS = 20
SYSTEMS = ("bmr4pml", "bmrjax")
LEARNING_RATE = 1e-2


def metrics(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return accuracy, NLL (nats per data point) and both ECEs of averaged class probabilities."""
    probs = np.asarray(probs, np.float64)
    confidence, hit = probs.max(-1), probs.argmax(-1) == labels
    index = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    gaps = np.bincount(index, weights=hit - confidence, minlength=BINS)
    return {
        "accuracy": float(hit.mean()),
        "nll": float(-np.log(probs[np.arange(len(labels)), labels]).mean()),
        "ece": float(np.abs(gaps).sum() / len(labels)),
        "ece_quantile": float(quantile_calibration_error(hit, np.log(confidence), BINS)[0]),
    }


class Watch:
    """Time the functions that `fit_and_test` calls, and keep what it evaluated last."""

    def __init__(self, inference: Any):
        self.seconds: dict[str, list[float]] = {"train": [], "sample": [], "test": [], "init": []}
        self.probs = self.gammas = None
        watch = self

        def timed(kind: str, function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                begin = time.perf_counter()
                out = jax.block_until_ready(function(*args, **kwargs))
                watch.seconds[kind].append(time.perf_counter() - begin)
                return out

            return call

        class Predictive(inference.Predictive):
            __call__ = timed("sample", inference.Predictive.__call__)

        class SVI(inference.SVI):
            init = timed("init", inference.SVI.init)

        run, tests, fraction = inference.run, inference.tests, inference.pruned_fraction

        def keep_probs(model: Any, sample: Any, x: Any, y: Any, **kwargs: Any) -> Any:
            watch.probs = sample["probs"].mean(0)
            return tests(model, sample, x, y, **kwargs)

        def keep_gammas(gammas: Any, params: Any, **kwargs: Any) -> Any:
            watch.gammas = gammas
            watch.shapes = {
                name: params[f"{name}.loc"].shape
                for name in (key[: -len(".loc")] for key in params if key.endswith(".weight.loc"))
            }
            return fraction(gammas, params, **kwargs)

        inference.Predictive, inference.SVI = Predictive, SVI
        inference.run, inference.tests = timed("train", run), timed("test", keep_probs)
        inference.pruned_fraction = keep_gammas

    def sparsity(self) -> float:
        """Return the pruned fraction of all weights and biases; the last layer is never pruned."""
        assert self.gammas is not None
        gone = sum(
            int((np.broadcast_to(self.gammas[name], shape) < 1e-7).sum())
            for name, shape in self.shapes.items()
            if name in self.gammas
        )
        return gone / sum(int(np.prod(shape)) for shape in self.shapes.values())


def run_peer(args: argparse.Namespace, train: tuple, test: tuple) -> dict[str, Any]:
    """Run bmr4pml as its own image classification script does."""
    peer = import_peer(args.bmr4pml)
    warnings.filterwarnings("ignore")
    watch = Watch(peer.inference)
    begin = time.perf_counter()
    train_set, test_set = ({"image": padded(x), "label": jnp.asarray(y)} for x, y in (train, test))
    keys = jax.random.split(jax.random.PRNGKey(args.seed), 3)
    network = peer.nn.LeNet((1, 32, 32), activation=jax.nn.tanh, dropout_rate=0.2, key=keys[0])
    network = peer.eqx.tree_inference(network, value=True)  # no dropout, as its script has it

    def fit(key: Any, **more: Any) -> Any:
        regression = peer.models.BMRRegression(
            network,
            regtype="multinomial",
            pruning="spike-and-slab",
            posterior="normal",
            optim_kwargs={"learning_rate": LEARNING_RATE},
        )
        options = {
            "num_epochs": args.epochs - 1,
            "num_iters": args.steps,
            "num_samples": args.samples,
            "key": key,
            "model_kwargs": {"batch_size": args.batch_size, "with_hyperprior": False},
            **more,
        }
        return peer.inference.fit_and_test(regression, train_set, test_set, options)

    state, params = fit(keys[1], warmup_iters=args.steps)
    results = fit(keys[2], state=state, params=params)
    jax.block_until_ready(results)
    seconds = time.perf_counter() - begin
    spent = watch.seconds
    evaluating = sum(spent["sample"]) + sum(spent["test"])
    # An evaluation samples the guide, then the model; the run ends with one more model sampling.
    last = sum(spent["sample"][-3:-1]) + spent["test"][-1]
    assert watch.probs is not None
    return {
        "seconds": seconds,
        "seconds_evaluated_at_end": seconds - evaluating + last,
        "seconds_without_evaluation": seconds - evaluating,
        "init_seconds": sum(spent["init"]),
        "train_seconds_an_epoch": spent["train"],
        "compilations": "every epoch",
        **metrics(watch.probs, test[1]),
        "sparsity": watch.sparsity(),
        "weights_and_biases": sum(int(np.prod(shape)) for shape in watch.shapes.values()),
        "reported": {k: float(results[k][-1]) for k in ("acc", "nll", "ece", "zip")},
        "peer_commit": commit(args.bmr4pml),
    }


# --- bmrjax -------------------------------------------------------------------------------


def run_ours(args: argparse.Namespace, train: tuple, test: tuple) -> dict[str, Any]:
    """Run `bmrjax.sparsify` with its default evaluation."""
    evaluating: list[float] = []
    evaluate = Evaluator.metrics

    def timed(*args: Any, **kwargs: Any) -> dict[str, float]:
        begin = time.perf_counter()
        found = evaluate(*args, **kwargs)
        evaluating.append(time.perf_counter() - begin)
        return found

    Evaluator.metrics = timed
    begin = time.perf_counter()
    network_key, run_key, metric_key = jax.random.split(jax.random.key(args.seed), 3)
    program = bmr.programs.classifier(bmr.zoo.LeNet5(key=network_key), bmr.priors.Flat())
    result = bmr.sparsify(
        program,
        train,
        key=run_key,
        num_epochs=args.epochs,
        steps_per_epoch=args.steps,
        batch_size=args.batch_size,
        optimizer=optax.adabelief(LEARNING_RATE),
        schedule=eval(args.schedule, vars(bmr.schedules)),
        held_out=bmr.HeldOut(test, final_samples=args.samples),
        options=bmr.FitOptions(kl_warmup=0),
        progress=False,
    )
    seconds = time.perf_counter() - begin
    prediction = result.predict(metric_key, *test, num_samples=args.samples)
    return {
        "seconds": seconds,
        # The first evaluation compiles, the last one is the one at the end: both stay.
        "seconds_evaluated_at_end": seconds - sum(evaluating[1:-1]),
        "seconds_without_evaluation": seconds - sum(evaluating),
        "init_seconds": result.timing["init_seconds"],
        "compile_seconds": result.timing["compile_seconds"],
        "train_seconds_an_epoch": [row["seconds"] for row in result.history],
        "compilations": result.num_compilations,
        **metrics(np.asarray(prediction.mean), test[1]),
        "sparsity": result.sparsity,
        "weights_and_biases": result.num_total,
        "reported": dict(result.metrics),
    }


# --- both ---------------------------------------------------------------------------------


def write_table(rows: Rows) -> None:
    """Write ``table.md``: both sides, mean ± standard error over seeds, and the ratios of time."""
    times = ("seconds", "seconds_evaluated_at_end", "seconds_without_evaluation")
    digits = dict.fromkeys(times, 0)
    digits |= dict.fromkeys(("accuracy", "nll", "ece", "ece_quantile", "sparsity"), 3)
    lines = []
    for what, both in group(rows.rows, "epochs steps batch_size samples").items():
        found = group(both, "system schedule")
        size = f"{what[0]} × {what[1]}, batch {what[2]}"
        for (system, schedule), of_system in found.items():
            lines.append([f"{system}, {schedule}", size, *means(of_system, **digits)])
        peer = next((rows for (system, _), rows in found.items() if system == "bmr4pml"), [])
        for (system, schedule), of_system in found.items():
            if peer and system == "bmrjax":
                averages = [
                    [sum(row[time] for row in rows) / len(rows) for rows in (of_system, peer)]
                    for time in times
                ]
                ratios = [f"{ours / theirs:.2f}" for ours, theirs in averages]
                lines.append([f"bmrjax / bmr4pml, {schedule}", size, *ratios, *[""] * 5])
    header = (
        "code | epochs × steps | seconds, as shipped | evaluated only at the end | not evaluated"
    )
    header += " | accuracy | NLL | ECE | ECE, quantile bins | sparsity"
    rows.write_table(table(header, lines))


def main() -> None:
    """Run what is missing, one process a side, and write the table."""
    parser = options.parser(__doc__, "peer", seeds=None, quick="two epochs of five steps")
    parser.add_argument("--bmr4pml", default="installed", help="folder of a clone, or 'installed'")
    parser.add_argument("--epochs", type=int, default=10, help="at least 2: one is the warm-up")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=100, help="posterior samples evaluated")
    parser.add_argument("--schedule", default="Every()", help="of ours, from bmrjax.schedules")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--peer-only", action="store_true")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.quick:
        args.epochs, args.steps, args.samples = 2, 5, 2
    if args.epochs < 2:
        parser.error("--epochs must be at least 2: the peer's first epoch is its warm-up.")
    if args.worker:
        run = {"bmr4pml": run_peer, "bmrjax": run_ours}[args.worker]
        processes.print_row(run(args, *datasets.images("fashion_mnist", args.data_root)))
        return
    rows = Rows(args.out)
    what = {k: getattr(args, k) for k in ("epochs", "steps", "batch_size", "samples", "seed")}
    skip = {"bmr4pml": args.ours_only, "bmrjax": args.peer_only}
    schedules = {"bmr4pml": "as its script", "bmrjax": args.schedule}
    for system in SYSTEMS:
        schedule = schedules[system]
        if skip[system] or rows.has(system=system, schedule=schedule, **what):
            continue
        settings = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        begin = time.perf_counter()
        words = [*sys.argv[1:], "--worker", system]
        found = processes.measured("benchmarks.costs.peer", *words, env=settings)
        row = {"system": system, "data": "fashion_mnist", "network": "lenet5", **what}
        row |= {"schedule": schedule, **found, "process_seconds": time.perf_counter() - begin}
        rows.add({**row, **environment()})
    write_table(rows)


if __name__ == "__main__":
    main()

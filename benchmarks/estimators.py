"""Three estimators of the expected log likelihood: what their gradients vary by, and what a step costs.

    python benchmarks/estimators.py --data-root DIR

Each network is fitted for a while; then the gradient of one batch is drawn many times, at the same
parameters. ``--quick`` takes the small networks and few draws.
"""

import argparse
import functools
import statistics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import records
import step_cost

import bmrjax as bmr
from bmrjax import priors, programs, zoo
from bmrjax.infer import AutoMeanField, Engine, elbo

ESTIMATORS = ("global", "local", "moments")
# Network, data, batch, steps of the fit, steps a timing.
CASES = {
    "MLP 13-50-1": ("uci/boston.csv", 128, 1000, 200),
    "GRU 16": ("sine", 128, 1000, 20),
    "MLP 784-100-100-10": ("fashion_mnist", 128, 1000, 50),
    "LeNet-5": ("fashion_mnist", 128, 500, 10),
}


def problem(name: str, data: str, data_root: str | None) -> tuple[Any, Any]:
    """Return the program and the training data of a case."""
    path = str(Path(data_root or ".") / data) if data.endswith(".csv") else data
    found = bmr.data.load_dataset(path, data_root=data_root)
    train = tuple(jnp.asarray(part) for part in found.train)
    key, prior = jax.random.key(0), priors.Flat()
    if name.startswith("LeNet"):
        return programs.classifier(zoo.LeNet5(key=key), prior), train
    if name.startswith("GRU"):
        return programs.regression(zoo.GRU(1, 16, 1, key=key), prior), train
    sizes = [int(size) for size in name.split()[1].split("-")]
    network = zoo.MLP(sizes[0], sizes[1:-1], sizes[-1], key=key)
    kind = programs.regression if found.num_classes is None else programs.classifier
    return kind(network, prior), train


def start(model: Any, train: Any, batch: int, estimator: Any) -> tuple[Engine, Any]:
    """Return an engine and its first state."""
    engine = Engine(
        model,
        AutoMeanField(model),
        optimizer=optax.adabelief(1e-2),
        loss=elbo(estimator),
        num_data=len(train[0]),
        batch_size=batch,
    )
    return engine, engine.init(jax.random.key(0), tuple(part[:batch] for part in train))


def noise(engine: Engine, params: Any, batch: Any, draws: int) -> float:
    """Return the variance of the gradient, summed over the parameters, over its squared norm."""
    zero = jnp.zeros((), jnp.int32)

    @jax.jit
    def gradient(key: Any) -> Any:
        return jax.grad(lambda p: engine._loss(p, None, zero, {}, 1.0, batch, key)[0])(params)

    first = gradient(jax.random.key(0))
    mean = jax.tree.map(lambda g: np.zeros(g.shape), first)
    square = 0.0
    for i in range(draws):
        found = gradient(jax.random.key(i))
        mean = jax.tree.map(lambda m, g: m + np.asarray(g, float) / draws, mean, found)
        square += sum(float(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(found)) / draws
    norm = sum(float(np.sum(np.square(m))) for m in jax.tree.leaves(mean))
    # The squared norm of a mean of draws is too large by a share of their variance.
    variance = (square - norm) * draws / (draws - 1)
    return variance / max(norm - variance / draws, 1e-12)


def measure(name: str, data_root: str | None, draws: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a case."""
    data, batch, fit, steps = CASES[name]
    model, train = problem(name, data, data_root)
    engine, state = start(model, train, batch, "global")
    state, _ = engine.epoch(state, {}, train, jax.random.key(1), num_steps=fit)
    params = state.params
    example = tuple(part[:batch] for part in train)
    found, runs = {}, {}
    for estimator in ESTIMATORS:
        engine, first = start(model, train, batch, estimator)
        found[estimator] = noise(engine, params, example, draws)
        runs[estimator] = functools.partial(_steps, engine, [first], train)
    times = step_cost.interleaved(runs, steps, repeats)
    ratios = {
        e: statistics.median(t / g for t, g in zip(times[e], times["global"], strict=True))
        for e in ESTIMATORS
    }
    return {
        "network": name,
        "data": data.removeprefix("uci/").removesuffix(".csv"),
        "batch": batch,
        "fitted_steps": fit,
        "draws": draws,
        "gradient_noise": found,
        "milliseconds_a_step": {e: statistics.median(times[e]) for e in ESTIMATORS},
        "ratio": ratios,
    }


def _steps(engine: Engine, box: list[Any], train: Any, n: int) -> None:
    state, info = engine.epoch(box[0], {}, train, jax.random.key(1), num_steps=n)
    jax.block_until_ready(info.losses)
    box[0] = state


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/estimators"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--networks", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the small networks, few draws")
    args = parser.parse_args()
    if args.quick:
        args.networks, args.draws, args.repeats = ["MLP 13-50-1", "GRU 16"], 20, 2
        args.out = Path("runs/estimators_quick")
    rows = records.Rows(args.out)
    for name in args.networks:
        if not rows.has(network=name):
            found = measure(name, args.data_root, args.draws, args.repeats)
            rows.add({**found, **records.environment()})
            jax.clear_caches()
    lines = []
    for row in rows.rows:
        noises, times, ratios = (
            row[name] for name in ("gradient_noise", "milliseconds_a_step", "ratio")
        )
        cells = [f"{noises[e]:.3g}" for e in ESTIMATORS]
        cells += [f"{times[e]:.2f} ({ratios[e]:.2f})" for e in ESTIMATORS]
        lines.append([row["network"], row["data"], *cells])
    header = ["network", "data", *(f"gradient noise, {e}" for e in ESTIMATORS)]
    header += [f"step, {e}, ms (ratio)" for e in ESTIMATORS]
    (args.out / "table.md").write_text(records.table(header, lines))


if __name__ == "__main__":
    main()

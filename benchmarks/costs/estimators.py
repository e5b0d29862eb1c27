"""Three estimators of the expected log likelihood: what their gradients vary by, and what a step costs.

    python -m benchmarks.costs.estimators --data-root DIR

Each network is fitted for a while; then the gradient of one batch is drawn many times, at the same
parameters. ``--quick`` takes the small networks and few draws.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bmrjax as bmr
from benchmarks.common import options, steps
from benchmarks.common.rows import Rows, environment, table
from bmrjax import priors, programs, zoo

# Network, data, batch, steps of the fit, steps of a turn.
CASES = {
    "MLP 13-50-1": ("uci/boston.csv", 128, 1000, 200),
    "GRU 16": ("sine", 128, 1000, 20),
    "MLP 784-100-100-10": ("fashion_mnist", 128, 1000, 50),
    "LeNet-5": ("fashion_mnist", 128, 500, 10),
}


def problem(name: str, data: str, data_root: Path | None) -> tuple[Any, Any]:
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


def noise(engine: Any, params: Any, batch: Any, draws: int) -> float:
    """Return the variance of the gradient, summed over the parameters, over its squared norm."""
    zero = jnp.zeros((), jnp.int32)

    @jax.jit
    def gradient(key: Any) -> Any:
        return jax.grad(lambda p: engine._loss(p, None, zero, {}, 1.0, batch, key)[0])(params)

    mean = jax.tree.map(lambda g: np.zeros(g.shape), gradient(jax.random.key(0)))
    square = 0.0
    for i in range(draws):
        found = gradient(jax.random.key(i))
        mean = jax.tree.map(lambda m, g: m + np.asarray(g, float) / draws, mean, found)
        square += sum(float(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(found)) / draws
    norm = sum(float(np.sum(np.square(m))) for m in jax.tree.leaves(mean))
    # The squared norm of a mean of draws is too large by a share of their variance.
    variance = (square - norm) * draws / (draws - 1)
    return variance / max(norm - variance / draws, 1e-12)


def measure(name: str, data_root: Path | None, draws: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a case."""
    data, batch, fit, turn = CASES[name]
    model, train = problem(name, data, data_root)
    sides = {
        estimator: steps.engine_side(model, train, batch, turn, estimator=estimator, rate=1e-2)
        for estimator in steps.ESTIMATORS
    }
    fitted = steps.engine_side(model, train, batch, fit, rate=1e-2)
    fitted.run(fit)
    params, example = fitted.parts[1][0].params, fitted.parts[3]
    found = {e: noise(side.parts[0], params, example, draws) for e, side in sides.items()}
    for side in sides.values():
        steps.warm(side)
    steps.take_turns(sides, repeats)
    return {
        "network": name,
        "data": data.removeprefix("uci/").removesuffix(".csv"),
        "batch": batch,
        "fitted_steps": fit,
        "draws": draws,
        "gradient_noise": found,
        "milliseconds_a_step": {e: side.median for e, side in sides.items()},
        "ratio": {e: steps.ratio(side, sides["global"])[0] for e, side in sides.items()},
    }


def write_table(rows: Rows) -> None:
    lines = []
    for row in rows.rows:
        times, ratios = row["milliseconds_a_step"], row["ratio"]
        cells = [f"{row['gradient_noise'][e]:.3g}" for e in steps.ESTIMATORS]
        cells += [f"{times[e]:.2f} ({ratios[e]:.2f})" for e in steps.ESTIMATORS]
        lines.append([row["network"], row["data"], *cells])
    header = ["network", "data", *(f"gradient noise, {e}" for e in steps.ESTIMATORS)]
    header += [f"step, {e}, ms (ratio)" for e in steps.ESTIMATORS]
    rows.write_table(table(header, lines))


def main() -> None:
    """Measure what is missing, and write the table."""
    quick = "the small networks, few draws"
    parser = options.parser(__doc__, "estimators", seeds=None, quick=quick, report=True)
    parser.add_argument("--networks", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    args = options.parse(parser)
    if args.quick:
        args.networks, args.draws, args.repeats = ["MLP 13-50-1", "GRU 16"], 20, 2
    rows = Rows(args.out)
    for name in args.networks if not args.report else []:
        if not rows.has(network=name):
            found = measure(name, args.data_root, args.draws, args.repeats)
            rows.add({**found, **environment()})
            jax.clear_caches()
    write_table(rows)


if __name__ == "__main__":
    main()

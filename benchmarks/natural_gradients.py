"""Natural gradients against AdaBelief, from scratch and from a trained network.

    python -m benchmarks.natural_gradients --data-root DIR --nets mlp lenet5 --seeds 3 --out DIR

Each run fits and reduces one network by one method. The sparsest point of its path that predicts within a
standard error of the best one, on training rows that were kept out, is scored on the test rows, which are
used for reporting only.
Two more scores on the test rows: the trained network (``point``), and the state in which a run from
it begins (``start``). Such a run is also scored at the sparsest point that the rows kept out find as good
as that state, by the same rule (``as_good``). A row is written as soon as it is there, and a stopped command
goes on with what is missing. ``--cost`` times the steps of one network instead, interleaved in one process.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import networks
from bmrjax import criteria, priors, programs, schedules, zoo
from bmrjax.infer import NaturalGradient

# At most a quarter of the training rows is kept out.
BATCH, KEPT_OUT, SAMPLES = 128, 5000, 32
OPTIMIZERS: dict[str, Any] = {
    "adabelief": lambda: optax.adabelief(1e-2),
    "natural": NaturalGradient,
}
METHODS = ("natural from trained", "adabelief from trained", "natural", "adabelief")


def build(name: str, shape: tuple[int, ...], key: Any) -> Any:
    """Return a network for images of a shape in ten classes."""
    if name == "lenet5":
        return zoo.LeNet5(shape[0], 10, **(networks.WIDE if shape[0] == 3 else {}), key=key)
    sizes = {"mlp": (200, 200), "deep": (400,) * 5}[name]
    return zoo.MLP(math.prod(shape), sizes, 10, key=key)


def trained(network: Any, data: Any, epochs: int, key: Any) -> Any:
    """Return the network trained by Adam with a decaying rate and a little weight decay."""
    x, y = map(jnp.asarray, data)
    params, static = eqx.partition(network, eqx.is_array)
    batches = len(x) // BATCH
    rate = optax.cosine_decay_schedule(1e-3, epochs * batches)
    optimizer = optax.adamw(rate, weight_decay=1e-2)

    def loss(params: Any, x: Any, y: Any) -> Any:
        logits = jax.vmap(eqx.combine(params, static))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry: Any, rows: Any, data: Any) -> Any:
        params, state = carry
        grads = jax.grad(loss)(params, *(part[rows] for part in data))
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    def epoch(carry: Any, order: Any, data: Any) -> Any:
        return jax.lax.scan(lambda c, rows: step(c, rows, data), carry, order)[0]

    # Convolutions are slow in a loop on CPU, so there steps are dispatched one by one, as `Fit` does it.
    once, whole = jax.jit(step), jax.jit(epoch)
    carry = params, optimizer.init(params)
    for order in jax.random.split(key, epochs):
        rows = jax.random.permutation(order, len(x))[: batches * BATCH].reshape(batches, BATCH)
        if jax.default_backend() == "cpu":
            for each in rows:
                carry, _ = once(carry, each, (x, y))
        else:
            carry = whole(carry, rows, (x, y))
    return eqx.combine(carry[0], static)


def score_of_point(network: Any, test: Any) -> dict[str, float]:
    """Return accuracy, NLL and ECE of a network without a posterior."""
    outputs = jax.lax.map(network, jnp.asarray(test[0]), batch_size=100)
    return networks.calibrated_scores(jax.nn.log_softmax(outputs), test[1])


def scores(result: bmr.Result, data: Any, key: Any) -> dict[str, float]:
    """Return accuracy, NLL and ECE of a result."""
    found = result.evaluate(key, data, num_samples=SAMPLES)
    return {name: float(found[name]) for name in ("accuracy", "nll", "ece")}


def data_of(name: str, root: str | None, seed: int, rows: int | None) -> tuple[Any, Any, Any]:
    """Return training rows, rows of them that are kept out to choose points, and test rows."""
    found = bmr.data.load_dataset(name, data_root=root)
    x, y = (np.asarray(part) for part in found.train)
    order = np.random.default_rng(seed).permutation(len(x))
    count = min(KEPT_OUT, len(x) // 4)
    out, of_fit = order[:count], order[count:][:rows]
    test = tuple(np.asarray(part) for part in found.test)
    return (x[of_fit], y[of_fit]), (x[out], y[out]), test


def run(method: str, network: Any, start: Any, data: Any, args: Any, seed: int) -> dict[str, Any]:
    """Return the scores of one run."""
    train, out, test = data
    keys = jax.random.split(jax.random.key(100 + seed), 3)
    model = programs.classifier(network, priors.Flat())
    optimizer = OPTIMIZERS[method.split()[0]]()
    if isinstance(optimizer, NaturalGradient):
        optimizer = replace(optimizer, curvature_rate=args.curvature_rate)
    start = start if "trained" in method else None
    options = bmr.FitOptions(start=start, temperature=args.temperature, kl_warmup=0)
    settings: dict[str, Any] = {"optimizer": optimizer, "batch_size": BATCH, "options": options}
    settings |= {"criterion": criteria.Shrinkage()}
    row: dict[str, Any] = {}
    begun = None
    if "trained" in method:
        fit = bmr.Fit(model, train, **settings)
        begun = fit.result(fit.init(keys[0]))
        row["start"] = scores(begun, test, keys[1])
    begin, clock = time.process_time(), time.perf_counter()
    result = bmr.sparsify(
        model,
        train,
        key=keys[0],
        num_epochs=args.epochs,
        schedule=schedules.Verified(wait=args.wait, refit=args.refit),
        progress=False,
        **settings,
    )
    row["cpu_seconds"] = time.process_time() - begin
    row["seconds"] = time.perf_counter() - clock
    chosen = result.most_predictive(keys[1], out, num_samples=SAMPLES, within=1.0)
    row |= scores(chosen, test, keys[2])
    row |= {"removed": chosen.sparsity, "kept": chosen.num_kept, "vfe": result.vfe_per_datum}
    if begun is not None:
        smaller = result.most_predictive(
            keys[1], out, num_samples=SAMPLES, within=1.0, as_good_as=begun
        )
        row["as_good"] = scores(smaller, test, keys[2])
        row["as_good"] |= {"removed": smaller.sparsity, "kept": smaller.num_kept}
    row["path"] = [[p.epoch, p.vfe / len(train[0]), p.kept] for p in result.path]
    return row


def cost(name: str, data: Any, repeats: int) -> list[dict[str, Any]]:
    """Return milliseconds per step of CPU time, interleaved, and ratios to the deterministic step."""
    train, _, _ = data
    network = build(name, data[0][0].shape[1:], jax.random.key(0))
    model = programs.classifier(network, priors.Flat())
    x, y = map(jnp.asarray, train)
    params, static = eqx.partition(network, eqx.is_array)
    adam = optax.adam(1e-3)

    def loss(params: Any, rows: Any) -> Any:
        logits = jax.vmap(eqx.combine(params, static))(x[rows])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

    def plain(carry: Any, rows: Any) -> Any:
        params, state = carry
        updates, state = adam.update(jax.grad(loss)(params, rows), state, params)
        return optax.apply_updates(params, updates), state

    count = 50 if name == "lenet5" else 200
    order = jax.random.permutation(jax.random.key(1), len(x))[: count * BATCH].reshape(count, BATCH)
    # Convolutions are slow in a loop on CPU, so their steps are dispatched one by one, as `Fit` does it.
    if name == "lenet5":
        compiled = jax.jit(plain)

        def deterministic() -> None:
            carry = params, adam.init(params)
            for rows in order:
                carry = compiled(carry, rows)
            jax.block_until_ready(carry)
    else:
        whole = jax.jit(lambda c, o: jax.lax.scan(lambda c, r: (plain(c, r), None), c, o)[0])

        def deterministic() -> None:
            jax.block_until_ready(whole((params, adam.init(params)), order))

    def stepper(optimizer: Any) -> Any:
        fit = bmr.Fit(model, train, criterion=None, optimizer=optimizer, batch_size=BATCH)
        held = [fit.init(jax.random.key(0))]

        def steps() -> None:
            held[0], info = fit.epoch(held[0], jax.random.key(1), num_steps=count)
            jax.block_until_ready(info.losses)

        return steps

    runs = {"deterministic": deterministic}
    runs |= {word: stepper(make()) for word, make in OPTIMIZERS.items()}
    times: dict[str, list[float]] = {word: [] for word in runs}
    for repeat in range(repeats + 1):
        for word, take in runs.items():
            begin = time.process_time()
            take()
            if repeat:  # the first compiles
                times[word].append(1e3 * (time.process_time() - begin) / count)
    found = []
    for word, each in times.items():
        ratios = [a / b for a, b in zip(each, times["deterministic"], strict=True)]
        found.append(
            {
                "network": name,
                "step": word,
                "cpu_ms": statistics.median(each),
                "ratio": statistics.median(ratios),
                "ratios": sorted(round(r, 3) for r in ratios),
            }
        )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return means and standard errors over the seeds, as a Markdown table.

    A second line of a fit from a trained network is its sparsest point that is as good as this, on the rows
    kept out.
    """
    rows = rows + [
        {**row, **row["as_good"], "method": f"{row['method']}, as good as it"}
        for row in rows
        if "as_good" in row
    ]
    names = ("accuracy", "nll", "ece", "removed", "vfe")
    by = ("data", "network", "epochs", "wait", "refit", "method", "temperature")
    columns = (*by, "seeds", *names)
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for found in dict.fromkeys(tuple(row.get(name) for name in by) for row in rows):
        group = [row for row in rows if tuple(row.get(name) for name in by) == found]
        cells = [*map(str, found), str(len(group))]
        for name in names:
            values = [row[name] for row in group if row.get(name) is not None]
            error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
            shown = f"{np.mean(values):.4f}" if values else "–"
            cells.append(shown + (f" ± {error:.4f}" if error is not None else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def add(path: Path, rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Append a row, and write the file whole."""
    packages = {name: version(name) for name in ("bmrjax", "jax", "numpyro", "optax")}
    where = {"device": jax.devices()[0].device_kind, "python": platform.python_version()}
    rows.append(row | {"versions": packages} | where)
    staged = path.with_suffix(".tmp")
    staged.write_text(json.dumps(rows, indent=1))
    os.replace(staged, path)


def main() -> None:
    """Run what is missing, and print the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--data-root")
    parser.add_argument("--nets", nargs="+", default=["mlp"], choices=["mlp", "deep", "lenet5"])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the likelihood")
    parser.add_argument("--curvature-rate", type=float, default=0.001, help="of natural gradients")
    parser.add_argument("--wait", type=int, default=None, help="epochs before the first round")
    parser.add_argument("--refit", type=int, default=None, help="epochs before a round is judged")
    parser.add_argument("--train-epochs", type=int, default=10, help="of the trained network")
    parser.add_argument("--rows", type=int, default=None, help="training rows at most")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after")
    parser.add_argument("--cost", action="store_true", help="time steps instead")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / ("cost.json" if args.cost else "natural_gradients.json")
    rows = json.loads(path.read_text()) if path.exists() else []
    if args.cost:
        for net in args.nets:
            for row in cost(net, data_of(args.data, args.data_root, 0, args.rows), 7):
                add(path, rows, row)
                print(row, flush=True)
        return
    begin = time.monotonic()
    for row in rows:  # of before these were options
        row.setdefault("temperature", 1.0)
        row.setdefault("curvature_rate", 0.001)
    lengths = ("epochs", "wait", "refit", "train_epochs", "rows", "data", "temperature")
    lengths += ("curvature_rate",)
    for seed in range(args.seeds):
        for net in args.nets:
            what = {name: getattr(args, name) for name in lengths} | {"network": net, "seed": seed}
            waiting = [
                method
                for method in ("point", *args.methods)
                if not any({**row, **what, "method": method} == row for row in rows)
            ]
            if not waiting:
                continue
            data = data_of(args.data, args.data_root, seed, args.rows)
            network = build(net, data[0][0].shape[1:], jax.random.key(seed))
            start = trained(network, data[0], args.train_epochs, jax.random.key(10 + seed))
            for method in waiting:
                if time.monotonic() - begin > 60 * args.minutes:
                    break
                if method == "point":
                    row = {**score_of_point(start, data[2]), "removed": 0.0}
                else:
                    row = run(method, network, start, data, args, seed)
                add(path, rows, {**what, "method": method, **row})
                print(json.dumps({k: v for k, v in rows[-1].items() if k != "path"}), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()

"""Which criterion, optimiser, judge, temperature and warm-up ought to be the default: a table over data sets.

    python -m benchmarks.trust.defaults --data-root DIR
    python -m benchmarks.trust.defaults --data-root DIR --sets fashion_mnist --nets mlp --epochs 15

Every setting fits the same rows, epochs and seeds, and is reduced in verified rounds. Beside them stand the
unreduced fit of each optimiser, by the same rows and epochs, and the point estimate: the same network trained
by Adam with a falling rate and decoupled weight decay. The judge by rows kept out gives up a tenth of the
training rows for it; beside it stands the same result fitted again to all rows, without a reduction, for a
quarter of the epochs. Test rows are used for reporting only.

With ``--anneal``, `bmr.anneal` stands beside them: as many epochs, from temperature .25 to 1.

One rule decides: the default predicts within a standard error of the best of its own unreduced fit and the
point estimate, in NLL over the seeds, and removes at least as much as any other setting that does.
"""

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import networks, options
from benchmarks.common.datasets import table, table_names
from benchmarks.common.rows import Rows, group, means
from benchmarks.common.rows import table as markdown
from bmrjax import criteria, infer, priors, programs, schedules, zoo

TABLES = ("digits", "diabetes", "boston", "energy", "concrete")
IMAGES = ("mnist", "fashion_mnist", "cifar10")
CRITERIA = {"spike-and-slab": criteria.SpikeAndSlab, "shrinkage": criteria.Shrinkage}
OPTIMIZERS: dict[str, Any] = {"adabelief": lambda: None, "natural": infer.NaturalGradient}
JUDGES = ("vfe", "held-out")
ANNEALED = "vfe, annealed"
AGAIN = "held-out, then all rows"
SETTING = ("criterion", "optimizer", "judge", "temperature", "warmup")
Setting = tuple[str, str, str, float, Any]
# The warm-up that `sparsify` has where nothing is said.
DEFAULT = "default"
HIDDEN = {"table": (50, 20), "mlp": (200, 200), "deep": (400,) * 5}
BATCH, KEPT_OUT = 128, 0.1


def settings(args: Any) -> list[Setting]:
    """Return the settings of every run of a data set."""
    shared = args.temperatures, args.warmups
    found: list[Setting] = [("point", "adam", "–", 1.0, 0)]
    found += [("unreduced", *rest) for rest in itertools.product(args.optimizers, "–", *shared)]
    for setting in itertools.product(args.criteria, args.optimizers, args.judges, *shared):
        if setting[2] == "vfe" or setting[3] == 1:
            found.append(setting)
    if args.anneal:
        found += [(name, "adabelief", ANNEALED, 1.0, DEFAULT) for name in args.criteria]
    return [setting for setting in found if setting[1] == "adabelief" or not setting[4]]


def data_of(name: str, root: Any, seed: int) -> tuple[Any, Any, int | None]:
    """Return training rows, test rows and the number of classes of a data set."""
    if name in IMAGES:
        found = bmr.data.load_dataset(name, data_root=root)
    else:
        found = bmr.data.from_frame(table(name, root), name=name, seed=seed)
    train, test = (tuple(np.asarray(a) for a in part) for part in (found.train, found.test))
    return train, test, found.num_classes


def split(train: Any, seed: int) -> tuple[Any, Any]:
    """Return the rows to fit and the rows to judge by."""
    order = np.random.default_rng(seed).permutation(len(train[1]))
    cut = round(KEPT_OUT * len(order))
    fit, out = (tuple(part[rows] for part in train) for rows in (order[cut:], order[:cut]))
    return fit, out


def build(net: str, name: str, shape: tuple[int, ...], classes: int | None, seed: int) -> Any:
    """Return a network, initialised by a seed."""
    key = jax.random.key(seed)
    if net == "lenet5":
        return zoo.LeNet5(shape[0], classes or 1, key=key)
    hidden = HIDDEN[net if name in IMAGES else "table"]
    return zoo.MLP(math.prod(shape), hidden, classes or 1, key=key)


def point_estimate(
    network: Any, train: Any, classes: int | None, epochs: int, steps: int, key: Any
) -> Any:
    """Return the network trained by Adam for as many steps as the others have."""
    x, y = map(jnp.asarray, train)
    batch = min(BATCH, len(x))
    params, static = eqx.partition(network, eqx.is_array)
    optimizer = optax.adamw(optax.cosine_decay_schedule(1e-3, epochs * steps), weight_decay=1e-2)

    def loss(params: Any, x: Any, y: Any) -> Any:
        outputs = jax.vmap(eqx.combine(params, static))(x)
        if classes is None:
            return jnp.mean((outputs.reshape(y.shape) - y) ** 2)
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

    @jax.jit
    def epoch(carry: Any, orders: Any, data: Any) -> Any:
        def step(carry: Any, rows: Any) -> Any:
            params, state = carry
            grads = jax.grad(loss)(params, *(part[rows] for part in data))
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, carry, orders)[0]

    carry = params, optimizer.init(params)
    for each in jax.random.split(key, epochs):
        passes = [
            jax.random.permutation(k, len(x))[: len(x) // batch * batch].reshape(-1, batch)
            for k in jax.random.split(each, math.ceil(steps / (len(x) // batch)))
        ]
        carry = epoch(carry, jnp.concatenate(passes)[:steps], (x, y))
    return eqx.combine(carry[0], static)


def score_of_point(network: Any, out: Any, test: Any, classes: int | None) -> dict[str, float]:
    """Return the test metrics of a network; a regression has the variance of rows that it did not see."""
    apply = jax.jit(jax.vmap(network))
    outputs = np.asarray(apply(jnp.asarray(test[0])))
    if classes is None:
        at_out = np.asarray(apply(jnp.asarray(out[0]))).reshape(out[1].shape)
        variance = float(np.mean((at_out - out[1]) ** 2))
        square = np.square(outputs.reshape(test[1].shape) - test[1])
        nll = 0.5 * (math.log(2 * math.pi * variance) + square / variance)
        return {"nll": float(nll.mean()), "rmse": float(np.sqrt(square.mean()))}
    return networks.calibrated_scores(jax.nn.log_softmax(outputs), test[1])


def runs(
    name: str, net: str, setting: Any, seed: int, epochs: int, root: Any
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one data set, one setting and one seed."""
    criterion, optimizer, judge, temperature, warmup = setting
    train, test, classes = data_of(name, root, seed)
    network = build(net, name, train[0].shape[1:], classes, seed)
    kind = programs.regression if classes is None else programs.classifier
    program = kind(network, priors.Flat())
    size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array)))
    fit, out = split(train, seed)
    row = {"set": name, "net": net if name in IMAGES else "table", "seed": seed, "epochs": epochs}
    row |= {"criterion": criterion, "optimizer": optimizer, "judge": judge}
    row |= {"temperature": temperature, "warmup": warmup}
    steps = max(100, math.ceil(len(train[1]) / BATCH))
    begin = time.process_time()
    if criterion == "point":
        steps = max(100, math.ceil(len(fit[1]) / BATCH))
        key = jax.random.key(10 + seed)
        found = point_estimate(network, fit, classes, epochs, steps, key)
        row |= {"removed": 0.0, "kept": size, "seconds": time.process_time() - begin}
        yield row | score_of_point(found, out, test, classes)
        return
    by_rows = judge == "held-out"
    common: dict[str, Any] = {"guide": infer.AutoMeanField(program), "batch_size": BATCH}
    anneals, tempered = judge == ANNEALED, {"temperature": temperature}
    result = (bmr.anneal if anneals else bmr.sparsify)(
        program,
        fit if by_rows else train,
        key=jax.random.key(10 + seed),
        criterion=None if criterion == "unreduced" else CRITERIA[criterion](),
        optimizer=OPTIMIZERS[optimizer](),
        schedule=schedules.Verified(judge="held-out" if by_rows else "vfe"),
        held_out=bmr.HeldOut(out, samples=50, every=epochs) if by_rows else None,
        num_epochs=epochs,
        progress=False,
        options=bmr.FitOptions(
            kl_warmup=None if warmup == DEFAULT else warmup * steps, **({} if anneals else tempered)
        ),
        **common,
    )
    row["seconds"] = time.process_time() - begin
    if criterion == "unreduced":
        row |= {"removed": 0.0, "kept": size}
    else:
        row |= {"removed": result.sparsity, "kept": result.num_kept}
    yield row | {"vfe": result.vfe_per_datum} | score(result, test)
    if not by_rows:
        return
    again = bmr.sparsify(
        program,
        train,
        key=jax.random.key(20 + seed),
        criterion=None,
        optimizer=OPTIMIZERS[optimizer](),
        num_epochs=max(1, epochs // 4),
        progress=False,
        options=bmr.FitOptions(start=result, temperature=temperature),
        **common,
    )
    row |= {"judge": AGAIN, "seconds": time.process_time() - begin}
    yield row | {"vfe": again.vfe_per_datum} | score(again, test)


def score(result: bmr.Result, test: Any) -> dict[str, float]:
    """Return the test metrics of a result."""
    found = result.evaluate(jax.random.key(1), test, num_samples=100)
    return {k: float(found[k]) for k in ("nll", "rmse", "accuracy", "ece") if k in found}


def write_table(rows: Rows) -> None:
    """Write the table of a row a data set and setting, and which settings the rule allows."""
    digits = {"removed": 3, "kept": 0, "vfe": 3, "nll": 3}
    digits |= {"rmse": 3, "accuracy": 3, "ece": 3, "seconds": 0}
    header = (
        "set | network | epochs | criterion | optimiser | judge | temperature | warm-up | removed | kept | "
        "VFE / row | NLL | RMSE | accuracy | ECE | CPU seconds | within the rule"
    )
    lines: list[Any] = []
    for names, of_set in group(rows.rows, "set net epochs").items():
        by = {
            key: some
            for key, some in group(of_set, "criterion optimizer judge temperature warmup").items()
        }
        allowed = {key for key in by if _predicts(by, key)}
        most = max((_mean(by[key], "removed") for key in allowed), default=0.0)
        for key, some in by.items():
            word = "–"
            if key in allowed:
                word = "**yes, most removed**" if _mean(some, "removed") >= most else "yes"
            elif key[0] in CRITERIA:
                word = "no"
            lines.append([*map(str, (*names, *key)), *means(some, **digits), word])
    rows.write_table(markdown(header, lines), "defaults.md")


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _predicts(by: dict[Any, Any], key: Setting) -> bool:
    """Say whether a setting's NLL is within a standard error of the best reference's, seed by seed."""
    if key[0] not in CRITERIA:
        return False
    known = [("unreduced", key[1], "–", *key[3:]), ("point", "adam", "–", 1.0, 0)]
    references = [by[name] for name in known if name in by]
    if not references:
        return False
    best = min(references, key=lambda some: _mean(some, "nll"))
    of_best = {row["seed"]: row["nll"] for row in best}
    gaps = [row["nll"] - of_best[row["seed"]] for row in by[key] if row["seed"] in of_best]
    if not gaps:
        return False
    error = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else 0.0
    return float(np.mean(gaps)) <= error


def _warmup(text: str) -> Any:
    return DEFAULT if text == DEFAULT else int(text)


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=3, report=True)
    parser.add_argument(
        "--epochs", type=int, default=40, help="passes over the rows, 100 steps at least"
    )
    parser.add_argument("--sets", nargs="+", default=TABLES, choices=(*table_names(), *IMAGES))
    parser.add_argument("--nets", nargs="+", default=("mlp",), choices=("mlp", "deep", "lenet5"))
    parser.add_argument("--judges", nargs="+", default=JUDGES, choices=JUDGES)
    parser.add_argument("--optimizers", nargs="+", default=tuple(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--temperatures", nargs="+", type=float, default=(1.0, 0.5, 0.25))
    parser.add_argument("--anneal", action="store_true", help="bmr.anneal for as many epochs too")
    parser.add_argument(
        "--warmups", nargs="+", type=_warmup, default=(0, DEFAULT), help="epochs, or 'default'"
    )
    parser.add_argument("--criteria", nargs="+", default=tuple(CRITERIA), choices=CRITERIA)
    args = options.parse(parser)
    rows = Rows(args.out, "defaults.json", shared=True)
    for seed in () if args.report else range(args.seeds):
        chosen = settings(args)
        for name, net, setting in itertools.product(args.sets, args.nets, chosen):
            names = dict(zip(SETTING, setting, strict=True))
            known = {"set": name, "net": net if name in IMAGES else "table", "seed": seed}
            if not rows.has(**known, **names, epochs=args.epochs):
                for row in runs(name, net, setting, seed, args.epochs, args.data_root):
                    rows.add(row)
                    print({k: row[k] for k in (*known, *names, "removed", "nll")}, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

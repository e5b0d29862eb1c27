"""What rounds are judged by: the free energy, the same less its overcharge, or rows kept out; and from where.

Small perceptrons on tables, fitted by a factorised posterior and reduced in verified rounds. Each judge has
the same rows, epochs and seeds; the one by rows kept out has a fifth of the training rows to judge by, and
fits the rest. By ``unreduced``, the free energy of a round is compared with what the unreduced state reaches
in the same epochs, rather than with where it was before. Beside them the same fit without reduction.

    python -m benchmarks.trust.judges --data-root DIR
"""

import time
from typing import Any

import jax
import numpy as np

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.datasets import table
from benchmarks.common.rows import Rows, group, means
from benchmarks.common.rows import table as markdown

TABLES = ("digits", "diabetes", "boston", "energy", "concrete")
JUDGES = ("none", "vfe", "unreduced", "corrected", "held-out")
HIDDEN = (50, 20)


def one(name: str, judge: str, seed: int, epochs: int, data_root: Any) -> dict[str, Any]:
    """Return a row: one table, one judge, one seed."""
    data = bmr.data.from_frame(table(name, data_root), name=name, seed=seed)
    network = bmr.zoo.MLP(
        data.train[0].shape[1], HIDDEN, data.num_classes or 1, key=jax.random.key(seed)
    )
    kind = bmr.programs.regression if data.num_classes is None else bmr.programs.classifier
    program = kind(network, bmr.priors.Flat())
    train = tuple(np.asarray(part) for part in data.train)
    kept_out = None
    if judge == "held-out":
        order = np.random.default_rng(seed).permutation(len(train[1]))
        cut = len(order) // 5
        kept_out = bmr.HeldOut(tuple(part[order[:cut]] for part in train), samples=50, every=epochs)
        train = tuple(part[order[cut:]] for part in train)
    begin = time.process_time()
    result = bmr.sparsify(
        program,
        train,
        guide=bmr.infer.AutoMeanField(program),
        key=jax.random.key(10 + seed),
        criterion=None if judge == "none" else bmr.criteria.SpikeAndSlab(),
        schedule=bmr.schedules.Verified(
            judge="vfe" if judge in ("none", "unreduced") else judge,
            against="unreduced" if judge == "unreduced" else "before",
        ),
        held_out=kept_out,
        num_epochs=epochs,
        options=bmr.FitOptions(kl_warmup=0),
        progress=False,
    )
    seconds = time.process_time() - begin
    found = result.evaluate(jax.random.key(1), data.test)
    whole = tuple(np.asarray(part) for part in data.train)
    vfe = result.free_energy(jax.random.key(2), whole, num_samples=200)
    extra = bmr.overcharge(result, whole, key=jax.random.key(3))
    return {
        "table": name,
        "judge": judge,
        "seed": seed,
        "kept": result.num_kept if judge != "none" else extra.size,
        "vfe": vfe / len(whole[1]),
        "overcharge": extra.nats / len(whole[1]),
        "clipped": extra.clipped,
        "nll": found["nll"],
        "rmse": found.get("rmse"),
        "accuracy": found.get("accuracy"),
        "seconds": seconds,
    }


def write_table(rows: Rows) -> None:
    """Write the table of a row a data set and judge."""
    digits = {
        "kept": 0,
        "vfe": 3,
        "overcharge": 3,
        "nll": 3,
        "rmse": 3,
        "accuracy": 3,
        "seconds": 0,
    }
    header = (
        "table | judge | kept | VFE / row | overcharge / row | NLL | RMSE | accuracy | CPU seconds"
    )
    found = group(rows.rows, "table judge").items()
    lines = [[*names, *means(some, **digits)] for names, some in found]
    rows.write_table(markdown(header, lines), "judges.md")


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=3, report=True)
    parser.add_argument(
        "--epochs", type=int, default=40, help="passes over the rows, 100 steps at least"
    )
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--judges", nargs="+", default=JUDGES, choices=JUDGES)
    args = options.parse(parser)
    rows = Rows(args.out, "judges.json", shared=True)
    for seed in () if args.report else range(args.seeds):
        for name in args.tables:
            for judge in args.judges:
                if not rows.has(table=name, judge=judge, seed=seed):
                    rows.add(one(name, judge, seed, args.epochs, args.data_root))
                    print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

"""The scale of a layer's weights, learned or in closed form, at several learning rates.

    python -m benchmarks.trust.layer_scales --data-root DIR --kept-out 0.2
    python -m benchmarks.trust.layer_scales --data-root DIR
    python -m benchmarks.trust.layer_scales --data-root DIR --sets fashion_mnist --nets deep --epochs 40
        --temperature 0.25 --forms collapsed --rates 5e-3 --seeds 1

`priors.Flat` writes a weight as γ c ŵ and learns c; with ``collapsed=True`` the site is the weight, and the
posterior of c follows from those of the weights. Each is fitted and reduced in verified rounds under the
spike-and-slab criterion, at several learning rates of AdaBelief: in units of ŵ for the one, of the weights
for the other. Beside them stands the point estimate of `benchmarks.trust.defaults`.

With ``--kept-out``, a share of the training rows is kept out and scored, for choosing; without, the test rows
are, for reporting.
"""

import itertools
import math
import time
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.datasets import table_names
from benchmarks.common.rows import Rows, group, means
from benchmarks.common.rows import table as markdown
from benchmarks.trust.defaults import (
    BATCH,
    IMAGES,
    build,
    data_of,
    point_estimate,
    score,
    score_of_point,
    split,
)
from bmrjax import infer, priors, programs

TABLES = ("energy", "concrete", "yacht", "boston", "digits", "diabetes", "noise", "one_column")
FORMS = {"learned": (1e-2, 3e-2), "collapsed": (5e-3, 1e-2)}


def run(row: dict[str, Any], root: Any, kept_out: float) -> dict[str, Any]:
    """Return a row with the scores of its setting.

    Args:
        row: The setting: set, net, seed, epochs, form, rate and temperature.
        root: Folder of the data.
        kept_out: Share of the training rows that is scored in place of the test rows; 0 for the test rows.
    """
    name, seed, epochs = row["set"], row["seed"], row["epochs"]
    train, test, classes = data_of(name, root, seed)
    if kept_out:
        order = np.random.default_rng(1000 + seed).permutation(len(train[1]))
        cut = round(kept_out * len(order))
        train, test = (tuple(part[rows] for part in train) for rows in (order[cut:], order[:cut]))
    network = build(row["net"], name, train[0].shape[1:], classes, seed)
    begin, key = time.process_time(), jax.random.key(10 + seed)
    if row["form"] == "point":
        fit, out = split(train, seed)
        steps = max(100, math.ceil(len(fit[1]) / BATCH))
        found = point_estimate(network, fit, classes, epochs, steps, key)
        size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array)))
        row = row | {"removed": 0.0, "kept": size, "seconds": time.process_time() - begin}
        return row | score_of_point(found, out, test, classes)
    kind = programs.regression if classes is None else programs.classifier
    program = kind(network, priors.Flat(collapsed=row["form"] == "collapsed"))
    result = bmr.sparsify(
        program,
        train,
        key=key,
        guide=infer.AutoMeanField(program),
        optimizer=optax.adabelief(row["rate"]),
        batch_size=BATCH,
        num_epochs=epochs,
        progress=False,
        options=bmr.FitOptions(temperature=row["temperature"]),
    )
    row = row | {"removed": result.sparsity, "kept": result.num_kept, "vfe": result.vfe_per_datum}
    return row | {"seconds": time.process_time() - begin} | score(result, test)


def write_table(rows: Rows) -> None:
    """Write a row for each data set, form and learning rate."""
    header = (
        "rows scored | set | network | epochs | scale | learning rate | temperature | removed | kept | "
        "VFE / row | NLL | RMSE | accuracy | ECE | CPU seconds"
    )
    digits = {"removed": 3, "kept": 0, "vfe": 3, "nll": 3}
    digits |= {"rmse": 3, "accuracy": 4, "ece": 4, "seconds": 0}
    lines = [
        [*map(str, names), *means(some, **digits)]
        for names, some in group(rows.rows, "scored set net epochs form rate temperature").items()
    ]
    rows.write_table(markdown(header, lines), "layer_scales.md")


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=3, report=True)
    parser.add_argument("--epochs", type=int, default=100, help="of 100 steps at least")
    parser.add_argument("--sets", nargs="+", default=TABLES, choices=(*table_names(), *IMAGES))
    parser.add_argument("--nets", nargs="+", default=("mlp",), choices=("mlp", "deep", "lenet5"))
    parser.add_argument("--forms", nargs="+", default=("point", *FORMS), choices=("point", *FORMS))
    parser.add_argument("--rates", nargs="+", type=float, default=None, help="for all forms alike")
    parser.add_argument(
        "--kept-out", type=float, default=0.0, help="share of the training rows to score"
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    args = options.parse(parser)
    rows = Rows(args.out, "layer_scales.json", shared=True)
    scored = f"{args.kept_out:g} of training" if args.kept_out else "test"
    settings: list[Any] = []
    for form in args.forms:
        settings += [(form, rate) for rate in args.rates or FORMS.get(form, ())] or [(form, None)]
    for seed in () if args.report else range(args.seeds):
        for name, net, (form, rate) in itertools.product(args.sets, args.nets, settings):
            row = {"set": name, "net": net if name in IMAGES else "table", "seed": seed}
            row |= {"epochs": args.epochs, "form": form, "scored": scored}
            row["rate"] = None if form == "point" else rate
            row["temperature"] = 1.0 if form == "point" else args.temperature
            if not rows.has(**row):
                rows.add(run(row, args.data_root, args.kept_out))
                print({k: rows.rows[-1].get(k) for k in (*row, "kept", "vfe", "nll")}, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

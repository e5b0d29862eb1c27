"""Structured Bayesian pruning (Neklyudov et al. 2017): faster networks, beside the published figures.

    python -m benchmarks.papers.neklyudov2017 --data-root DIR

Noise multiplies the inputs of every linear layer and the channels of every convolution; the divergence is
scaled (the paper's SBPa), groups with a signal-to-noise ratio below one go while the network trains, and
what is left is folded, compacted and timed. Each run is a row of results.json at once; a stopped command
goes on with what is missing. ``--random-labels`` is the paper's section 5.5; ``--quick`` goes through small
networks in minutes and proves nothing; ``--report`` writes the table of the rows there are.
"""

import argparse
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import bmrjax as bmr
from benchmarks.common import datasets, networks, options, structured
from benchmarks.common.rows import Rows, environment, group, mean_and_error, table

# Error in percent, units left, FLOPs ratio and CPU speed-up of the paper's Table 1.
PAPER = {
    "lenet-500-300": ("1.55", "245-160-55", "11.2", "2.33"),
    "lenet-5-caffe": ("0.86", "3-18-284-283", "10.5", "5.41"),
}
RULE = "snr"
NETWORKS = {"lenet-500-300": "LeNet-500-300", "lenet-5-caffe": "LeNet-5-Caffe"}
FITS = {
    "lenet-500-300": structured.Fit(
        epochs=60, rate=1e-3, noise_rate=1e-2, kl_weight=4.0, wait=1, tune=18
    ),
    "lenet-5-caffe": structured.Fit(
        epochs=40, rate=1e-3, noise_rate=1e-2, kl_weight=0.85, wait=1, tune=12, pretrain=4,
        weight_decay=1e-4, saved=structured.SAVED_BY_CAFFE,
    ),
}  # fmt: skip


def one(args: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Run one seed of one network; return its row."""
    flat = name == "lenet-500-300"
    cut = {"rows": 4000 if args.quick else None, "held_out": args.validation}
    train, test = datasets.images("mnist", args.data_root, flat=flat, **cut)
    if args.random_labels:
        train = train[0], np.random.default_rng(seed).permutation(train[1])
    fit = FITS[name]
    if args.epochs is not None or args.quick:
        epochs = args.epochs or 6
        fit = replace(fit, epochs=epochs, tune=max(1, epochs * 3 // 10))
    small_size = {"hidden": (50, 30)} if flat else {"conv_features": (4, 8), "hidden": 20}
    network = networks.build(NETWORKS[name], seed, **(small_size if args.quick else {}))
    where = structured.every_input if flat else structured.channels_and_inputs
    row, (small, result) = structured.run(network, where, (train, test), RULE, fit, seed)
    if args.random_labels:
        probs = result.predict(jax.random.key(0), *(a[:1000] for a in test), num_samples=1).mean
        row["prediction_spread"] = float(np.ptp(np.asarray(probs), axis=0).max())
    else:
        plain = bmr.compact(network, jax.numpy.asarray(train[0][0]), drop_inputs=False)
        for size in (1, 256):
            timing = {"batch_sizes": (size,), "repeats": args.repeats}
            old, new = (side.latency(**timing)[0] for side in (plain, small))
            row[f"latency_{size}"] = {"before_ms": old.before, "after_ms": new.after}
    return {**row, "rows": len(train[1]), "fit": vars(fit)}


def units(row: dict[str, Any]) -> str:
    """Return how many groups each noise layer kept."""
    return "-".join(str(n) for n in row["units"].values())


def write_table(rows: Rows) -> None:
    """Write table.md."""
    lines, mean = [], mean_and_error
    real = rows.where(random_labels=False, validation=0)
    for (name, rule, quick), part in group(real, "net rule quick").items():
        paper, fit = PAPER[name], part[0]["fit"]
        label = f"{rule}, divergence × {fit['kl_weight']:g}"
        if fit.get("saved"):
            label += " for each thousand multiply-adds that a unit saves"
        times = [[row[f"latency_{n}"] for row in part] for n in (1, 256)]
        lines.append([
            name + (", shrunk" if quick else ""),
            label,
            str(len(part)),
            f"{mean([100 - r['accuracy'] for r in part], 2)} ({paper[0]})",
            f"{units(part[0])} ({paper[1]})",
            f"{mean([r['flops_ratio'] for r in part], 1)} ({paper[2]})",
            *(mean([t["before_ms"] / t["after_ms"] for t in found], 1) for found in times),
            paper[3],
        ])  # fmt: skip
    header = "network | rule | seeds | error, % (paper) | groups kept, first seed (paper)"
    header += (
        " | FLOPs smaller (paper) | batch 1, times faster | batch 256, times faster | CPU, paper"
    )
    text = table(header, lines) + (
        "\nError on the test set by the compacted network, its noise folded into its weights. FLOPs as "
        "XLA counts those of the network that runs, where the paper counts single inputs behind a "
        "flattening too. Latency of the compacted network against the dense one, in turns on one CPU core, "
        "each compiled in the form that is fastest there.\n"
    )
    for row in rows.where(random_labels=True, validation=0):
        text += (
            f"\nRandom labels, {row['net']}, seed {row['seed']}, {row['rows']:,} rows, "
            f"{row['fit']['epochs']} epochs: {units(row)} groups are left, "
            f"and class probabilities differ by at most {row['prediction_spread']:.1e} between inputs.\n"
        )
    rows.write_table(text)


def main() -> None:
    parser = options.parser(__doc__, "neklyudov2017", quick="small networks", report=True)
    parser.add_argument("--nets", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="instead of the network's own")
    parser.add_argument("--validation", type=int, default=0, help=structured.VALIDATION)
    parser.add_argument("--repeats", type=int, default=100, help="calls of a timing")
    parser.add_argument("--random-labels", action="store_true")
    args = options.parse(parser)
    rows = Rows(args.out)
    what = {name: getattr(args, name) for name in ("quick", "random_labels", "validation")}
    for name in args.nets if not args.report else []:
        for seed in range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)):
            which = {"net": name, "rule": RULE, "seed": seed, **what}
            if rows.has(**which):
                continue
            row = one(args, name, seed)
            rows.add({**which, **row, **environment()})
            print(
                f"{name} seed {seed}: error {100 - row['accuracy']:.2f} %, {units(row)}, FLOPs "
                f"{row['flops_ratio']:.1f}x, {row['seconds']:.0f} s",
                flush=True,
            )
    write_table(rows)


if __name__ == "__main__":
    main()

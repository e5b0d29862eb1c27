"""Structured Bayesian pruning (Neklyudov et al. 2017): faster networks, beside the published figures.

    python benchmarks/neklyudov2017.py --data-root DIR

Noise multiplies the inputs of every linear layer and the channels of every convolution; the divergence is
scaled (the paper's SBPa), groups with a signal-to-noise ratio below one go while the network trains, and
what is left is folded, compacted and timed. Each run is a row of results.json at once; a stopped command
goes on with what is missing. ``--random-labels`` is the paper's section 5.5; ``--quick`` goes through small
networks in minutes and proves nothing; ``--report`` writes the table of the rows there are.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import records
import structured

import bmrjax as bmr
from bmrjax import zoo

# Error in percent, units left, FLOPs ratio and CPU speed-up of the paper's Table 1.
PAPER = {
    "lenet-500-300": ("1.55", "245-160-55", "11.2", "2.33"),
    "lenet-5-caffe": ("0.86", "3-18-284-283", "10.5", "5.41"),
}
FITS = {
    "lenet-500-300": structured.Fit(
        epochs=60, rate=1e-3, noise_rate=1e-2, kl_weight=4.0, wait=1, tune=18
    ),
    "lenet-5-caffe": structured.Fit(
        epochs=40, rate=1e-3, noise_rate=1e-2, kl_weight=0.85, wait=1, tune=12, pretrain=4,
        weight_decay=1e-4,
        # A filter of the first convolution takes 25 * 24 * 24 of them, and what reads it 50 * 25 * 8 * 8.
        saved={"convs.0": 94.4, "convs.1": 40.0, "linears.0": 0.5, "linears.1": 0.81},
    ),
}  # fmt: skip


def build(name: str, seed: int, *, quick: bool) -> tuple[Any, Any]:
    """Return a network, and where its noise goes."""
    key = jax.random.key(seed)
    if name == "lenet-500-300":
        hidden = (50, 30) if quick else (500, 300)
        network = zoo.MLP(784, hidden, 10, activation=jax.nn.relu, key=key)
        return network, lambda path, layer: "inputs"
    size: dict[str, Any] = {"conv_features": (4, 8), "hidden": 20} if quick else {}
    network = zoo.LeNet5Caffe(**size, key=key)
    return network, lambda path, layer: "outputs" if path.startswith("convs") else "inputs"


def one(args: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Run one seed of one network; return its row."""
    found = bmr.data.load_dataset("mnist", data_root=args.data_root)
    rows = 4000 if args.quick else args.rows
    flat = name == "lenet-500-300"
    train, test = structured.images(found, rows=rows, flat=flat)
    if args.validation:
        # For choosing settings: the test set stays out of it.
        cut = len(train[1]) - args.validation
        train, test = tuple(a[:cut] for a in train), tuple(a[cut:] for a in train)
    if args.random_labels:
        rng = np.random.default_rng(seed)
        train = train[0], jax.numpy.asarray(rng.permutation(np.asarray(train[1])))
    fit = FITS[name]
    if args.kl_weight is not None:
        fit = replace(fit, kl_weight=args.kl_weight)
    if args.epochs is not None or args.quick:
        epochs = args.epochs or 6
        fit = replace(fit, epochs=epochs, tune=max(1, epochs * 3 // 10))
    if args.quick:
        fit = replace(fit, finetune=min(fit.finetune, 1))
    network, where = build(name, seed, quick=args.quick)
    row, (small, result) = structured.run(network, where, train, test, args.rule, fit, seed)
    if args.random_labels:
        probs = result.predict(jax.random.key(0), *(a[:1000] for a in test), num_samples=1).mean
        row["prediction_spread"] = float(np.ptp(np.asarray(probs), axis=0).max())
    else:
        plain = bmr.compact(network, train[0][0], drop_inputs=False)
        for size in (1, 256):
            old = plain.latency(batch_sizes=(size,), repeats=args.repeats)[0]
            new = small.latency(batch_sizes=(size,), repeats=args.repeats)[0]
            row[f"latency_{size}"] = {"before_ms": old.before, "after_ms": new.after}
    return {**row, "rows": len(train[1]), "fit": vars(fit)}


def units(row: dict[str, Any]) -> str:
    """Return how many groups each noise layer kept."""
    return "-".join(str(n) for n in row["units"].values())


def write_table(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write table.md."""
    header = [
        "network", "rule", "seeds", "error, % (paper)", "groups kept, first seed (paper)",
        "FLOPs smaller (paper)", "batch 1, times faster", "batch 256, times faster", "CPU, paper",
    ]  # fmt: skip
    lines = []
    mean = records.mean_and_error
    real = [r for r in rows if not r["random_labels"]]
    for (name, rule, _), part in records.group(
        real, lambda r: (r["net"], r["rule"], r["quick"])
    ).items():
        paper = PAPER[name]
        fit = part[0]["fit"]
        label = f"{rule}, divergence × {fit['kl_weight']:g}"
        if fit.get("saved"):
            label += " for each thousand multiply-adds that a unit saves"
        if finetune := part[0]["fit"].get("finetune"):
            label += f"; {finetune} epochs of fine-tuning"
        faster = [
            mean(
                [
                    r[f"latency_{n}"]["before_ms"] / r[f"latency_{n}"]["after_ms"]
                    for r in part
                ],
                1,
            )
            for n in (1, 256)
        ]  # fmt: skip
        lines.append(
            [
                name + (", shrunk" if part[0]["quick"] else ""),
                label,
                str(len(part)),
                f"{mean([100 - r['accuracy'] for r in part], 2)} ({paper[0]})",
                f"{units(part[0])} ({paper[1]})",
                f"{mean([r['flops_ratio'] for r in part], 1)} ({paper[2]})",
                *faster,
                paper[3],
            ]
        )
    text = records.table(header, lines)
    text += (
        "\nError on the test set by the compacted network, its noise folded into its weights. FLOPs as "
        "XLA counts those of the network that runs, where the paper counts single inputs behind a "
        "flattening too. Latency of the compacted network against the dense one, in turns on one CPU core, "
        "each compiled in the form that is fastest there.\n"
    )
    for row in (r for r in rows if r["random_labels"]):
        text += (
            f"\nRandom labels, {row['net']}, seed {row['seed']}, {row['rows']:,} rows, "
            f"{row['fit']['epochs']} epochs: {units(row)} groups "
            "are left, "
            f"and class probabilities differ by at most {row['prediction_spread']:.1e} between inputs.\n"
        )
    (out / "table.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/neklyudov2017"))
    parser.add_argument("--nets", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--rule", default="snr", choices=list(structured.CRITERIA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="instead of the network's own")
    parser.add_argument("--kl-weight", type=float, help="instead of the network's own")
    parser.add_argument("--rows", type=int, help="training and test data at most")
    parser.add_argument(
        "--validation", type=int, default=0, help="rows to score on, not the test set"
    )
    parser.add_argument("--repeats", type=int, default=100, help="calls a timing")
    parser.add_argument("--random-labels", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--report", action="store_true", help="only write the table")
    args = parser.parse_args()
    found = records.Rows(args.out)
    for name in args.nets if not args.report else []:
        for seed in range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)):
            what = {
                "net": name, "rule": args.rule, "seed": seed, "quick": args.quick,
                "random_labels": args.random_labels, "validation": args.validation,
            }  # fmt: skip
            if found.has(**what):
                continue
            row = one(args, name, seed)
            found.add({**what, **row, **records.environment()})
            print(
                f"{name} seed {seed}: error {100 - row['accuracy']:.2f} %, {units(row)}, FLOPs "
                f"{row['flops_ratio']:.1f}x, {row['seconds']:.0f} s",
                flush=True,
            )
    write_table(args.out, [r for r in found.rows if not r["validation"]])


if __name__ == "__main__":
    main()

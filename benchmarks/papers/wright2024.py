"""BMRS (Wright, Igel and Selvan 2024): structured pruning by evidence, beside the published figures.

    python -m benchmarks.papers.wright2024 --data-root DIR

Noise multiplies the outputs of every layer but the last, and a rule removes units after every epoch of
training, with a few epochs of fine-tuning at the end. The rules are the published ones, with the divergence
that their authors' code has by default, a mean over units and layers beside the mean loss per data point
(``--divergence published``, BMRS-N with their margin), or with that of the evidence's bound, the sum, and
the equations as printed (``--divergence elbo``). ``ours`` is BMRS-U with that sum times one factor a row.
Each run is a row of results.json at once; a stopped command goes on with what is missing.
``--study curve`` prunes after training, by seven rankings, up to the knee of accuracy over compression;
``--study ranks`` correlates the rankings, and ``--study digits`` changes p1. ``--quick`` goes through a small
data set in minutes and proves nothing; ``--report`` writes the table of the rows there are.
"""

import argparse
import math
from dataclasses import replace
from typing import Any

import jax

from benchmarks.common import datasets, networks, options, structured
from benchmarks.common.rows import Rows, environment, means, table
from benchmarks.papers import wright2024_studies as studies
from bmrjax import criteria, zoo

RULES = ("none", "mean", "snr", "bmrs-n", "bmrs-u8", "bmrs-u4", "ours")
# Compression and accuracy in percent, in the order of RULES without the last: Table 1.
PAPER = {
    ("mnist", "mlp"): "0/97.43 52.1/96.88 58.6/96.92 48.9/96.95 48.7/96.93 54.5/96.99",
    ("mnist", "lenet5"): "0/99.07 88.3/51.3 92.7/62.7 86.9/95.59 86.1/95.27 87.6/96.66",
    ("fashion_mnist", "mlp"): "0/88.17 91.8/85.59 99.8/10.0 93.2/84.99 93.0/85.01 91.6/85.79",
    ("fashion_mnist", "lenet5"): "0/89.16 89.7/50.9 98.5/17.0 88.0/77.90 87.6/77.23 88.7/81.10",
    ("cifar10", "mlp"): "0/44.94 78.0/43.39 75.9/43.97 76.4/43.59 77.2/43.45 76.6/44.06",
    ("cifar10", "lenet5"): "0/67.62 66.2/65.83 70.3/67.68 62.9/66.14 62.5/66.28 68.1/67.66",
}
MLPS = {"mnist": (100,) * 7, "fashion_mnist": (150,), "cifar10": (150,) * 5}
# Batch size and learning rate of Appendix C; and what `ours` multiplies the divergence with, chosen on rows
# kept out of the training data.
FITS = {
    ("mnist", "mlp"): (128, 8.5e-4, 25.0),
    ("fashion_mnist", "mlp"): (128, 1.5e-3, 250.0),
    ("cifar10", "mlp"): (32, 6.8e-4, 60.0),
    ("mnist", "lenet5"): (128, 1.4e-3, 70.0),
    ("fashion_mnist", "lenet5"): (32, 1.4e-3, 130.0),
    ("cifar10", "lenet5"): (64, 1e-3, 60.0),
}


def build(data: str, net: str, shape: tuple[int, ...], seed: int) -> Any:
    """Return the network of a row."""
    key, relu = jax.random.key(seed), networks.RELU
    if net == "mlp":
        return zoo.MLP(math.prod(shape), MLPS[data], 10, key=key, **relu)
    wide = {**networks.WIDE, "hidden": 252} if shape[0] == 3 else {}
    return zoo.LeNet5(shape[0], 10, max_pool=True, key=key, **relu, **wide)


def divergence(args: argparse.Namespace, rule: str | None) -> str | None:
    """Return which divergence a rule is run with, where there is a choice."""
    return None if rule in ("none", "ours") else args.divergence


def settings(args: argparse.Namespace, data: str, net: str, rule: str, rows: int) -> structured.Fit:
    """Return how a row is fitted."""
    size, rate, scale = FITS[data, net]
    average = divergence(args, rule) == "published"
    if rule == "ours":
        scale = args.kl_weight or scale
    else:
        # Their loss is a mean over data, so theirs is ours times the number of data.
        scale = rows / (len(MLPS[data]) if net == "mlp" else 4) if average else 1.0
    fit = structured.Fit(
        epochs=args.epochs + args.tune,
        batch_size=args.batch_size or size,
        rate=rate,
        noise_rate=1e-2,
        tune=args.tune,
        kl_weight=scale,
        average=average,
    )
    return replace(fit, epochs=4, tune=1) if args.quick else fit


def one(
    args: argparse.Namespace, data: str, net: str, rule: str | None, seed: int
) -> dict[str, Any]:
    """Run one seed of one rule, or of the study; return its row."""
    size = {"rows": 2000 if args.quick else None, "flat": net == "mlp"}
    train, test = datasets.images(data, args.data_root, held_out=args.validation, **size)
    network = build(data, net, train[0].shape[1:], seed)
    fit = settings(args, data, net, rule or "bmrs-u8", len(train[1]))
    if args.study == "digits":
        found = {}
        for p1 in (4,) if args.quick else (1, 2, 4, 6, 8, 11, 14):
            row, _ = structured.run(
                network, None, (train, test), criteria.BMRSUniform(p1), fit, seed
            )
            found[p1] = {"accuracy": row["accuracy"], "compression": row["compression"]}
        return {"digits": found, "fit": vars(fit)}
    if args.study:
        return studies.rankings(network, train, test, fit, seed, curve=args.study == "curve")
    name = "bmrs-u8" if rule == "ours" else rule
    if rule == "bmrs-n" and divergence(args, rule) == "published":
        name = "bmrs-n, margin"
    row, _ = structured.run(network, None, (train, test), name, fit, seed)
    return {**row, "rows": len(train[1]), "fit": vars(fit)}


def cells(part: list[dict[str, Any]], published: list[str]) -> list[str]:
    """Return epochs, then a cell for each rule, of the rows of one network on one data set."""
    found = []
    for rule, paper in zip(RULES, [*published, "–"], strict=True):
        of = [r for r in part if r["rule"] == rule]
        both = " / ".join(means(of, compression=1, accuracy=2))
        found.append(f"{both} ({paper}), {len(of)}" if of else "–")
    ours, others = (
        "/".join(sorted({str(r["fit"]["epochs"]) for r in part if (r["rule"] == "ours") is which}))
        for which in (True, False)
    )
    epochs = ours if others in ("", ours) else f"{others}; ours {ours}" if ours else others
    return [epochs, *found]


def write_table(rows: Rows) -> None:
    """Write table.md, compression and accuracy with the paper's, and what the studies found."""
    lines = []
    for (data, net), published in PAPER.items():
        here = rows.where(data=data, net=net, study=None, quick=False, validation=0)
        for kind in ("published", "elbo"):
            part = [r for r in here if r["divergence"] == kind]
            if kind == "published":
                part += [r for r in here if r["divergence"] is None]
            if part:
                lines.append([data, net, kind, *cells(part, published.split())])
    text = table(["data", "network", "divergence", "epochs", *RULES], lines)
    text += (
        "\nCompression in percent of the parameters / test accuracy in percent of the compacted network "
        "(the paper's figures), number of seeds. The paper trains for 50 + 10 epochs.\n"
    )
    rows.write_table(text)
    found = [studies.as_text(r) for r in rows.where(quick=False, validation=0) if r["study"]]
    if found:
        rows.write_table("\n".join(found), "studies.md")


def main() -> None:
    parser = options.parser(__doc__, "wright2024", quick="one small data set", report=True)
    parser.add_argument("--data", nargs="+", default=list(MLPS), choices=list(MLPS))
    parser.add_argument("--nets", nargs="+", default=["mlp", "lenet5"], choices=["mlp", "lenet5"])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--tune", type=int, default=10, help="epochs of fine-tuning")
    parser.add_argument("--batch-size", type=int, help="instead of the paper's")
    parser.add_argument(
        "--divergence", choices=["published", "elbo"], default="published", help="of the rules"
    )
    parser.add_argument("--kl-weight", type=float, help="of `ours`, instead of the row's own")
    parser.add_argument("--validation", type=int, default=0, help=structured.VALIDATION)
    parser.add_argument("--study", choices=["curve", "ranks", "digits"])
    args = options.parse(parser)
    if args.quick:
        args.data, args.nets, args.seeds = ["fashion_mnist"], ["mlp"], 1
    rows = Rows(args.out)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    common = {name: getattr(args, name) for name in ("study", "quick", "validation")}
    wanted = [
        (data, net, rule, seed)
        for data in args.data for net in args.nets for seed in seeds
        for rule in ([None] if args.study else args.rules)
    ]  # fmt: skip
    for cell in wanted if not args.report else []:
        what = dict(zip(("data", "net", "rule", "seed"), cell, strict=True)) | common
        what["divergence"] = divergence(args, cell[2])
        if not rows.has(**what):
            row = one(args, *cell)
            rows.add({**what, **row, **environment()})
            shown = [
                f"{name} {row[name]:.2f}" for name in ("compression", "accuracy") if name in row
            ]
            print(*cell, args.study or "", *shown, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

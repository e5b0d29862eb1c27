"""How few weights reach 97 % on MNIST?

    python benchmarks/few_weights.py --data-root DIR --jobs 2

Each row is one `bmrjax sparsify` command on all training data. The point on the path is the one
with the lowest free energy, the masks' own cost counted (``--mask-prior``): test data decide
nothing. Finished runs in --runs are not run again.
"""

import argparse
from pathlib import Path

import cli_runs
import records

# Latent binary Bayesian network, arXiv 2503.10496.
PUBLISHED = ("arXiv 2503.10496", "0.97", "935")
COMMAND = (
    "sparsify --data mnist --net mlp --hidden 300 100 --method bmr --epochs 100 --steps-per-epoch 500 "
    "--batch-size 128 --wait 15 --refit 2 --cooldown 25 --fraction 0.25 --mask-prior"
)
QUICK = (
    "sparsify --data digits --net mlp --hidden 100 100 --method bmr --epochs 30 --steps-per-epoch 50 "
    "--refit 2 --fraction 0.25 --mask-prior"
)


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short run on digits, into runs/")
    cli_runs.add_arguments(parser, "runs/few_weights")
    args = parser.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    name, line = ("digits", QUICK) if args.quick else ("mnist", COMMAND)
    commands = {f"{name}-{seed}": [*line.split(), "--seed", str(seed)] for seed in seeds}
    cli_runs.run_missing(commands, args)
    folder = "runs/few_weights_quick" if args.quick else "benchmarks/results/few_weights"
    rows = records.Rows(args.out or Path(folder))
    rows.rows = []
    for run, words in commands.items():
        rows.add(cli_runs.row_of(args.runs / run, words))
    write_table(rows)


def write_table(rows: records.Rows) -> None:
    """Write ``table.md``: a line a seed, their mean, and the published figure."""
    names = {"accuracy": 4, "kept": 0, "nll": 4, "ece": 4, "vfe_per_datum": 4}
    lines = [
        [str(seed), *(f"{row[name]:.{digits}f}" for name, digits in names.items())]
        for seed, row in enumerate(rows.rows)
    ]
    mean = [
        records.mean_and_error([row[name] for row in rows.rows], digits)
        for name, digits in names.items()
    ]
    lines.append(["mean", *mean])
    lines.append([*PUBLISHED, "–", "–", "–"])
    header = ["seed", "accuracy", "weights kept", "NLL", "ECE", "VFE, nats per data point"]
    (rows.path.parent / "table.md").write_text(records.table(header, lines))


if __name__ == "__main__":
    main()

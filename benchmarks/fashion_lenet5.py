"""LeNet-5 on Fashion-MNIST: MAP and BMR, by the command line, over seeds.

    python benchmarks/fashion_lenet5.py --data-root DIR --runs runs/lenet5 --jobs 4

Each row is one `bmrjax sparsify` command; finished runs in --runs are not run again.
"""

import argparse
from pathlib import Path

import cli_runs
import records

PAPER = {"bmr": ("0.90", "0.28", "–", "0.81")}


def command(method: str, seed: int, epochs: int) -> list[str]:
    """Return the words of the run's command, without its folders."""
    words = f"sparsify --data fashion_mnist --net lenet5 --method {method} --epochs {epochs}"
    return [*words.split(), *f"--steps-per-epoch 500 --batch-size 128 --seed {seed}".split()]


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/fashion_lenet5"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--methods", nargs="+", default=["map", "bmr"])
    parser.add_argument("--quick", action="store_true", help="one seed, two epochs")
    cli_runs.add_arguments(parser, "runs/lenet5")
    args = parser.parse_args()
    seeds, epochs = (1, 2) if args.quick else (args.seeds, args.epochs)
    commands = {
        f"{method}-{seed}": command(method, seed, epochs)
        for seed in range(seeds)
        for method in args.methods
    }
    cli_runs.run_missing(commands, args)
    rows = records.Rows(args.out)
    # Rows of methods that were not asked for stay.
    rows.rows = [row for row in rows.rows if row["method"] not in args.methods]
    for name, words in commands.items():
        rows.add(cli_runs.row_of(args.runs / name, words))
    write_table(rows)


def write_table(rows: records.Rows) -> None:
    """Write ``table.md``: ours, mean ± standard error, with the paper's beside it."""
    lines = []
    for method, found in records.group(rows.rows, lambda r: r["method"]).items():
        lines.append(
            [
                method,
                records.mean_and_error([r["accuracy"] for r in found], 4),
                records.mean_and_error([r["nll"] for r in found], 4),
                records.mean_and_error([r["ece"] for r in found], 4),
                records.mean_and_error([r["sparsity"] for r in found], 3),
                str(len(found)),
                f"`{found[0]['command'].rsplit(' --seed', 1)[0]} --seed 0 --out DIR`",
            ]
        )
        if method in PAPER:
            accuracy, nll, ece, sparsity = PAPER[method]
            source = "Marković et al. 2024, read off the figures; 50 epochs"
            lines.append([f"{method}, published", accuracy, nll, ece, sparsity, "–", source])
    header = ["method", "accuracy", "NLL", "ECE", "sparsity", "seeds", "command"]
    (rows.path.parent / "table.md").write_text(records.table(header, lines))


if __name__ == "__main__":
    main()

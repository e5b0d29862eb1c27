"""LeNet-5 on Fashion-MNIST: MAP and BMR, by the command line, over seeds.

    python -m benchmarks.papers.fashion_lenet5 --data-root DIR --jobs 4

Each row is one `bmrjax sparsify` command; finished runs in --runs are not run again.
"""

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, command_of_today, group, means, table

PAPER = ["0.90", "0.28", "–", "0.81", "–", "Marković et al. 2024, read off the figures; 50 epochs"]
COMMAND = (
    "sparsify --data fashion_mnist --net lenet5 --method {method} --num-epochs {epochs} "
    "--steps-per-epoch 500 --batch-size 128 --kl-warmup-epochs 0 --seed {seed}"
)


def write_table(rows: Rows) -> None:
    """Write ``table.md``: ours, mean ± standard error, with the paper's beside it."""
    lines = []
    for method, found in group(rows.rows, "method").items():
        figures = means(found, accuracy=4, nll=4, ece=4, sparsity=3)
        command = command_of_today(found[0]["command"]).rsplit(" --seed", 1)[0]
        lines.append([method, *figures, str(len(found)), f"`{command} --seed 0 --out DIR`"])
        if method == "bmr":
            lines.append([f"{method}, published", *PAPER])
    rows.write_table(table("method | accuracy | NLL | ECE | sparsity | seeds | command", lines))


def main() -> None:
    """Run what is missing and write the table."""
    quick = "one seed, two epochs"
    parser = options.parser(__doc__, "fashion_lenet5", quick=quick, jobs=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--methods", nargs="+", default=["map", "bmr"])
    args = options.parse(parser)
    seeds, epochs = (1, 2) if args.quick else (args.seeds, args.epochs)
    commands = {
        f"{method}-{seed}": COMMAND.format(method=method, epochs=epochs, seed=seed).split()
        for seed in range(seeds)
        for method in args.methods
    }
    processes.run_missing(commands, args)
    rows = Rows(args.out)
    # Rows of other methods stay.
    rows.rows = [row for row in rows.rows if row["method"] not in args.methods]
    for name, words in commands.items():
        rows.add(processes.row_of(args.runs / name, words))
    write_table(rows)


if __name__ == "__main__":
    main()

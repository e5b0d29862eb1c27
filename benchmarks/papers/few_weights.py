"""How few weights reach 97 % on MNIST?

    python -m benchmarks.papers.few_weights --data-root DIR --jobs 2

Each row is one `bmrjax sparsify` command on all training data. The point on the path is the one
with the lowest free energy, the masks' own cost counted (``--mask-prior``): test data are
used for reporting only. Finished runs in --runs are not run again.
"""

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, means, table

# Latent binary Bayesian network, arXiv 2503.10496.
PUBLISHED = ["arXiv 2503.10496", "0.97", "935", "–", "–", "–"]
COMMAND = (
    "sparsify --data mnist --net mlp --hidden 300 100 --method bmr --num-epochs 100 --steps-per-epoch 500 "
    "--batch-size 128 --wait 15 --refit 2 --cooldown 25 --fraction 0.25 --mask-prior --kl-warmup-epochs 0"
)
QUICK = (
    "sparsify --data digits --net mlp --hidden 100 100 --method bmr --num-epochs 30 --steps-per-epoch 50 "
    "--refit 2 --fraction 0.25 --mask-prior --kl-warmup-epochs 0"
)


def write_table(rows: Rows) -> None:
    """Write ``table.md``: a line for each seed, their mean, and the published figure."""
    digits = {"accuracy": 4, "kept": 0, "nll": 4, "ece": 4, "vfe_per_datum": 4}
    lines = [[str(seed), *means([row], **digits)] for seed, row in enumerate(rows.rows)]
    lines += [["mean", *means(rows.rows, **digits)], PUBLISHED]
    header = "seed | accuracy | weights kept | NLL | ECE | VFE, nats per data point"
    rows.write_table(table(header, lines))


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "few_weights", quick="one short run on digits", jobs=True)
    args = options.parse(parser)
    name, line = ("digits", QUICK) if args.quick else ("mnist", COMMAND)
    seeds = range(1 if args.quick else args.seeds)
    commands = {f"{name}-{seed}": [*line.split(), "--seed", str(seed)] for seed in seeds}
    processes.run_missing(commands, args)
    rows = Rows(args.out)
    rows.rows = [processes.row_of(args.runs / run, words) for run, words in commands.items()]
    rows.save()
    write_table(rows)


if __name__ == "__main__":
    main()

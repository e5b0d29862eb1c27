"""Which schedule ends with the best VFE? Seven of them, four data sets, the same budget of epochs.

    python -m benchmarks.papers.schedules --data-root DIR --jobs 4

Stopped runs go on where they were. ``--quick`` runs the two small data sets on one seed.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import bmrjax as bmr
from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, environment, group, mean_and_error, means, table
from bmrjax.criteria import Shrinkage, SpikeAndSlab, smallest_magnitude_first, smallest_snr_first
from bmrjax.schedules import Every, Verified, WhenConverged

DEFAULT = "verified (default)"
HALF = Every(every=3, wait=10, fraction=0.5, cooldown=10, order=smallest_magnitude_first)
# Schedule, criterion, and whether only small data sets have it.
SCHEDULES: dict[str, tuple[Any, Any, bool]] = {
    "every epoch (published)": (Every(), SpikeAndSlab(), False),
    "wait 20, every 5th": (Every(every=5, wait=20, cooldown=10), SpikeAndSlab(), False),
    "wait 10, every 3rd, at most half": (HALF, SpikeAndSlab(), True),
    "when converged": (WhenConverged(cooldown=10), SpikeAndSlab(), True),
    "verified, smallest SNR first": (Verified(order=smallest_snr_first), SpikeAndSlab(), False),
    DEFAULT: (Verified(), SpikeAndSlab(), False),
    "verified, shrinkage": (Verified(), Shrinkage(), False),
}
CASES = [
    ("digits", (100, 100), 200),
    ("diabetes", (50,), 200),
    ("mnist", (100, 100), 468),
    ("fashion_mnist", (100, 100), 468),
    ("mnist", (300, 100), 468),
]


def schedules_of(case: int) -> list[str]:
    """Return the schedules that a case runs."""
    name, hidden, _ = CASES[case]
    if hidden == (300, 100):
        return [DEFAULT, "verified, shrinkage"]
    large = name.endswith("mnist")
    return [found for found, (_, _, small) in SCHEDULES.items() if not (large and small)]


def run_one(args: argparse.Namespace) -> None:
    """Run one (case, schedule, seed) and print its row."""
    name, hidden, steps = CASES[args.case]
    found = bmr.data.load_dataset(name, data_root=args.data_root)
    classes, in_size = found.num_classes, int(np.prod(found.train[0].shape[1:]))
    network = bmr.zoo.MLP(in_size, hidden, classes or 1, key=jax.random.key(1000 + args.seed))

    def program(x, y=None):
        net = bmr.random_module("net", network, bmr.priors.Flat())
        if classes:
            numpyro.sample("y", dist.Categorical(logits=net(x)), obs=y)
        else:
            noise = numpyro.sample("noise", dist.HalfNormal(1.0))
            numpyro.sample("y", dist.Normal(net(x)[:, 0], noise), obs=y)

    schedule, criterion, _ = SCHEDULES[args.schedule]
    begin = time.perf_counter()
    train, held_out = (tuple(map(np.asarray, part)) for part in (found.train, found.test))
    result = bmr.sparsify(
        program,
        train,
        key=jax.random.key(args.seed),
        num_epochs=args.epochs,
        steps_per_epoch=steps,
        criterion=criterion,
        schedule=schedule,
        options=bmr.FitOptions(kl_warmup=0),
        progress=False,
    )
    seconds = time.perf_counter() - begin
    # The VFE that decided is a measurement with noise; the one reported is taken afresh.
    size = len(train[0])
    vfe = result.free_energy(jax.random.key(7000), train, num_samples=4 if size > 5000 else 40)
    row = {
        "data": name,
        "network": f"MLP {in_size}-{'-'.join(map(str, hidden))}-{classes or 1}",
        "schedule": args.schedule,
        "seed": args.seed,
        "epochs": args.epochs,
        "steps_per_epoch": steps,
        "vfe_per_datum": vfe / size,
        "kept": result.num_kept,
        "total": result.num_total,
        **result.evaluate(jax.random.key(1), held_out, num_samples=100),
        "seconds": seconds,
        "skipped_steps": result.num_skipped,
        "path": [(p.epoch, p.kept, p.vfe / size) for p in result.path],
        **environment(),
    }
    processes.print_row(row)


def write_table(rows: Rows) -> None:
    """Write ``table.md``: means and standard errors over seeds."""
    lines, names = [], [name for name, *_ in CASES]
    cases = group(rows.rows, "data network")
    for case in sorted(cases, key=lambda c: names.index(c[0])):
        grouped = group(cases[case], "schedule")
        if DEFAULT not in grouped:
            continue  # an unfinished case has no winner yet
        vfes = {n: [r["vfe_per_datum"] for r in found] for n, found in grouped.items()}
        lowest = min(sum(values) / len(values) for values in vfes.values())
        for name in (name for name in SCHEDULES if name in grouped):
            found, values = grouped[name], vfes[name]
            vfe, score = mean_and_error(values, 4), "accuracy" if "accuracy" in found[0] else "rmse"
            best = sum(values) / len(values) == lowest
            held_out, nll, kept = means(found, **{score: 4, "nll": 3, "kept": 0})
            cells = [f"**{vfe}**" if best else vfe, f"{score} {held_out}", nll, kept]
            lines.append([*case, name, *cells, str(found[0]["total"]), str(len(found))])
    header = (
        "data | network | schedule | VFE, nats per data point | held out | NLL | kept | of | seeds"
    )
    rows.write_table(table(header, lines))


def main() -> None:
    """Run what is missing, several at a time, and write the table."""
    parser = options.parser(__doc__, "schedules", quick="small data, one seed", jobs=True)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--case", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--schedule", default=DEFAULT, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=None, help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.case is not None:
        run_one(args)
        return
    rows, commands = Rows(args.out), {}
    for seed in range(1 if args.quick else args.seeds):
        for case in range(2 if args.quick else len(CASES)):
            name, hidden, _ = CASES[case]
            shape = f"-{'-'.join(map(str, hidden))}-"
            for schedule in schedules_of(case):
                found = rows.where(data=name, schedule=schedule, seed=seed, epochs=args.epochs)
                if any(shape in row["network"] for row in found):
                    continue
                words = ["-m", "benchmarks.papers.schedules", "--case", str(case)]
                words += ["--schedule", schedule, "--seed", str(seed), "--epochs", str(args.epochs)]
                words += ["--data-root", str(args.data_root)] if args.data_root else []
                commands[name, schedule, seed, case] = words

    def done(what: tuple, text: str) -> None:
        rows.add({**processes.printed_row(text), "jobs": args.jobs})
        print(*what, rows.rows[-1]["vfe_per_datum"], rows.rows[-1]["kept"], flush=True)

    processes.run_all(commands, args.jobs, done)
    write_table(rows)


if __name__ == "__main__":
    main()

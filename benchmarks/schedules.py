"""Which schedule ends with the best VFE? Seven of them, four data sets, the same budget of epochs.

    python benchmarks/schedules.py --data-root DIR --out benchmarks/results/schedules --jobs 4

Stopped runs go on where they were. ``--quick`` runs the two small data sets on one seed.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import records

SCHEDULES = {
    "every epoch (published)": "Every()",
    "wait 20, every 5th": "Every(every=5, wait=20, cooldown=10)",
    "wait 10, every 3rd, at most half": (
        "Every(every=3, wait=10, fraction=0.5, cooldown=10, order=smallest_magnitude_first)"
    ),
    "when converged": "WhenConverged(cooldown=10)",
    "verified, smallest SNR first": "Verified(order=smallest_snr_first)",
    "verified (default)": "Verified()",
    "verified, shrinkage": "Verified()",
}
# Of all others, the default criterion: spike-and-slab.
CRITERIA = {"verified, shrinkage": "Shrinkage()"}
CASES = [
    ("digits", (100, 100), 200),
    ("diabetes", (50,), 200),
    ("mnist", (100, 100), 468),
    ("fashion_mnist", (100, 100), 468),
    ("mnist", (300, 100), 468),
]
# The large data sets run the contenders only.
CONTENDERS = tuple(
    n for n in SCHEDULES if n not in ("when converged", "wait 10, every 3rd, at most half")
)


def schedules_of(case: int) -> tuple[str, ...]:
    """Return the schedules that a case runs."""
    name, hidden, _ = CASES[case]
    if hidden == (300, 100):
        return ("verified (default)", "verified, shrinkage")
    return CONTENDERS if name.endswith("mnist") else tuple(SCHEDULES)


def run_one(args: argparse.Namespace) -> None:
    """Run one (case, schedule, seed) and print its row as JSON."""
    import json

    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import bmrjax as bmr
    from bmrjax import data

    name, hidden, steps = CASES[args.case]
    found = data.load_dataset(name, data_root=args.data_root)
    classes = found.num_classes
    in_size = int(np.prod(found.train[0].shape[1:]))
    network = bmr.zoo.MLP(in_size, hidden, classes or 1, key=jax.random.key(1000 + args.seed))

    def program(x, y=None):
        net = bmr.random_module("net", network, bmr.priors.Flat())
        if classes:
            numpyro.sample("y", dist.Categorical(logits=net(x)), obs=y)
        else:
            noise = numpyro.sample("noise", dist.HalfNormal(1.0))
            numpyro.sample("y", dist.Normal(net(x)[:, 0], noise), obs=y)

    schedule = eval(SCHEDULES[args.schedule], vars(bmr.schedules))
    criterion = eval(CRITERIA.get(args.schedule, "SpikeAndSlab()"), vars(bmr.criteria))
    begin = time.perf_counter()
    train = tuple(np.asarray(part) for part in found.train)
    result = bmr.sparsify(
        program,
        train,
        key=jax.random.key(args.seed),
        num_epochs=args.epochs,
        steps_per_epoch=steps,
        criterion=criterion,
        schedule=schedule,
        progress=False,
    )
    seconds = time.perf_counter() - begin
    # The VFE that decided is a measurement with noise; the one reported is taken afresh.
    size = len(train[0])
    repeats = 4 if size > 5000 else 40
    vfe = result.free_energy(jax.random.key(7000), train, num_samples=repeats)
    held_out = tuple(np.asarray(part) for part in found.test)
    metrics = result.evaluate(jax.random.key(1), held_out, num_samples=100)
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
        **metrics,
        "seconds": seconds,
        "skipped_steps": result.num_skipped,
        "path": [(p.epoch, p.kept, p.vfe / len(train[0])) for p in result.path],
        **records.environment(),
    }
    print("ROW " + json.dumps(row), flush=True)


def write_table(rows: records.Rows) -> None:
    """Write ``table.md``: means and standard errors over seeds."""
    lines = []
    grouped = records.group(rows.rows, lambda r: (r["data"], r["network"], r["schedule"]))
    order = {name: i for i, name in enumerate(SCHEDULES)}
    cases = list(dict.fromkeys((r["data"], r["network"]) for r in rows.rows))
    for case in sorted(cases, key=lambda c: [name for name, *_ in CASES].index(c[0])):
        names = sorted((k[2] for k in grouped if k[:2] == case), key=order.__getitem__)
        if "verified (default)" not in names:
            continue  # an unfinished case has no winner yet
        means = {
            n: sum(r["vfe_per_datum"] for r in grouped[(*case, n)]) / len(grouped[(*case, n)])
            for n in names
        }
        for name in names:
            found = grouped[(*case, name)]
            score = "accuracy" if "accuracy" in found[0] else "rmse"
            vfe = records.mean_and_error([r["vfe_per_datum"] for r in found], 4)
            lines.append(
                [
                    *case,
                    name,
                    f"**{vfe}**" if means[name] == min(means.values()) else vfe,
                    f"{score} {records.mean_and_error([r[score] for r in found], 4)}",
                    records.mean_and_error([r["nll"] for r in found], 3),
                    records.mean_and_error([r["kept"] for r in found], 0),
                    str(found[0]["total"]),
                    str(len(found)),
                ]
            )
    header = [
        "data",
        "network",
        "schedule",
        "VFE, nats per data point",
        "held out",
        "NLL",
        "kept",
        "of",
        "seeds",
    ]
    (rows.path.parent / "table.md").write_text(records.table(header, lines))


def main() -> None:
    """Run what is missing, several at a time, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/schedules"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a core each")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--schedule", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        run_one(args)
        return
    rows = records.Rows(args.out)
    cases = range(2) if args.quick else range(len(CASES))
    waiting = []
    for seed in range(1 if args.quick else args.seeds):
        for case in cases:
            name, hidden, _ = CASES[case]
            for schedule in schedules_of(case):
                shape = f"-{'-'.join(map(str, hidden))}-"
                done = any(
                    r["data"] == name
                    and shape in r["network"]
                    and (r["schedule"], r["seed"], r["epochs"]) == (schedule, seed, args.epochs)
                    for r in rows.rows
                )
                if not done:
                    waiting.append((case, schedule, seed))
    launch(waiting, args, rows)
    write_table(rows)


def launch(
    waiting: list[tuple[int, str, int]], args: argparse.Namespace, rows: records.Rows
) -> None:
    """Run each of `waiting` in a process of its own, `args.jobs` at a time."""
    import json
    import os

    free = sorted(os.sched_getaffinity(0))[: args.jobs]
    running: dict[int, tuple[subprocess.Popen, tuple[int, str, int]]] = {}
    while waiting or running:
        while waiting and free:
            core, what = free.pop(), waiting.pop(0)
            command = [sys.executable, __file__, "--case", str(what[0]), "--schedule", what[1]]
            command += ["--seed", str(what[2]), "--epochs", str(args.epochs)]
            command += ["--data-root", args.data_root] if args.data_root else []
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=(lambda c=core: os.sched_setaffinity(0, {c})) if args.jobs > 1 else None,
            )
            running[core] = process, what
        time.sleep(0.5)
        for core, (process, what) in list(running.items()):
            if process.poll() is None:
                continue
            assert process.stdout is not None
            found = [line for line in process.stdout if line.startswith("ROW ")]
            if process.returncode or not found:
                raise SystemExit(f"{what} failed with exit code {process.returncode}")
            rows.add({**json.loads(found[-1][4:]), "jobs": args.jobs})
            print(what, rows.rows[-1]["vfe_per_datum"], rows.rows[-1]["kept"], flush=True)
            del running[core]
            free.append(core)


if __name__ == "__main__":
    main()

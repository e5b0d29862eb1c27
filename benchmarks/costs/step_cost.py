"""What a mean-field SVI step costs, against a deterministic step of the same network in the same run.

    python -m benchmarks.costs.step_cost

Random data: only time is measured. Both sides run in their fastest form (one fused loop, or a
compiled step that is dispatched), in turn, with donated state. All is measured again by each call.
"""

import resource
import statistics

from benchmarks.common import datasets, networks, options, steps
from benchmarks.common.rows import Rows, environment, table
from bmrjax import criteria

# Network, and steps of a turn.
CASES = {"lenet5": ("LeNet-5", 20), "mlp 5x400": ("MLP 5x400", 100)}
KINDS = {"deterministic": "deterministic", "mean-field": "global"}
MODES = ("fused", "dispatch")
BATCH = 128


def measure(name: str, repeats: int) -> dict:
    """Return the row of a network."""
    built, turn = CASES[name]
    network, data = networks.build(built), datasets.random_images((1, 28, 28), 4096)
    sides = {
        f"{what}, {mode}": steps.warm(steps.side(kind, network, data, BATCH, turn, mode))
        for mode in MODES
        for what, kind in KINDS.items()
    }
    steps.take_turns(sides, repeats)
    best = {w: min((f"{w}, {m}" for m in MODES), key=lambda k: sides[k].median) for w in KINDS}
    ours, plain = (sides[best[what]] for what in ("mean-field", "deterministic"))
    middle, least, largest = steps.ratio(ours, plain)
    fused = sides["mean-field, fused"]
    reducing = steps.reduction(fused.parts, criteria.SpikeAndSlab(), repeats)["median_ms"]
    return {
        "network": name,
        "batch_size": BATCH,
        "milliseconds_a_step": {name: side.milliseconds for name, side in sides.items()},
        "best": best,
        "ratio_median": middle,
        "ratio_min": least,
        "ratio_max": largest,
        "reduction_ms": reducing,
        "reduction_share_of_500_steps": reducing / (500 * ours.median),
        "compile_seconds": fused.compile_seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **environment(),
    }


def write_table(rows: Rows) -> None:
    lines = []
    for row in rows.rows:
        times = {name: statistics.median(t) for name, t in row["milliseconds_a_step"].items()}
        best = [row["best"][side] for side in KINDS]
        lines.append([
            row["network"],
            *(f"{times[name]:.1f} ({name.split(', ')[1]})" for name in best),
            f"{row['ratio_median']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})",
            f"{row['reduction_ms']:.1f}",
            f"{row['reduction_share_of_500_steps']:.2%}",
        ])  # fmt: skip
    header = "network, batch 128 | deterministic step, ms | mean-field step, ms | ratio (range)"
    rows.write_table(table(header + " | reduction, ms | share of 500 steps", lines))


def main() -> None:
    """Measure both networks and write the table."""
    parser = options.parser(__doc__, "step_cost", seeds=None, data=False, quick="three turns")
    parser.add_argument("--repeats", type=int, default=9)
    args = options.parse(parser)
    rows = Rows(args.out)
    rows.rows = []
    for name in CASES:
        rows.add(measure(name, 3 if args.quick else args.repeats))
    write_table(rows)


if __name__ == "__main__":
    main()

"""Peak memory of a whole run, against what it cannot do without: parameters, optimiser state and data.

    python -m benchmarks.costs.memory --data-root DIR

Each network gets a process of its own. There are two peaks. That of the arrays: all that are alive
when a program starts, the host's copy of the data, and what XLA has planned for the program beside its
arguments. And that of the process: its resident set at its largest less the one after the imports,
which holds the compiler and what it leaves behind, whatever the size of the network.
"""

import argparse
import resource
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import bmrjax as bmr
from benchmarks.common import datasets, networks, options, processes
from benchmarks.common.rows import Rows, environment, table
from bmrjax.infer.loop import Loop

NETWORKS = {
    "lenet5": "LeNet-5", "mlp 784-100-100-10": "MLP 100-100", "mlp 5x400": "MLP 5x400",
}  # fmt: skip
FIGURES = ("parameters_mib", "optimiser_mib", "data_mib", "arrays_peak_mib")


def resident() -> float:
    """Return the current resident set in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def mebibytes(tree: Any) -> float:
    """Return the size of all arrays of a tree in MiB."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) / 2**20


class Watch:
    """Follow the memory of the arrays while programs run."""

    def __init__(self) -> None:
        self.peak = 0.0
        run, watch = Loop.__call__, self

        def watched(loop, carry, n, *args):
            watch.see(loop.compile(carry, *args).memory_analysis())
            return run(loop, carry, n, *args)

        Loop.__call__ = watched

    def see(self, plan: Any) -> None:
        """Count what is alive, with a program's plan."""
        planned = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
        self.peak = max(self.peak, mebibytes(jax.live_arrays()) + planned / 2**20)


def worker(args: argparse.Namespace) -> None:
    """Run four epochs of one network, evaluation and reduction included, and print the figures."""
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((8, 8))))
    before = resident()
    train, test = datasets.images("fashion_mnist", args.data_root)
    watch, network = Watch(), networks.build(NETWORKS[args.network])
    result = bmr.sparsify(
        bmr.programs.classifier(network, bmr.priors.Flat()),
        train,
        key=jax.random.key(0),
        held_out=test,
        num_epochs=4,
        steps_per_epoch=50,
        schedule=bmr.schedules.Verified(wait=1, refit=1, cooldown=1),
        progress=False,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    state = jax.eval_shape(optax.adabelief(1e-2).init, result.params)
    sizes = [mebibytes(tree) for tree in (result.params, state, (train, test))]
    arrays = watch.peak + sizes[-1]
    processes.print_row({
        "network": args.network,
        **dict(zip(FIGURES, [*sizes, arrays], strict=True)),
        "ratio": arrays / sum(sizes),
        "process_peak_mib": peak,
        "process_ratio": peak / sum(sizes),
        "resident_before_mib": before,
        **environment(),
    })  # fmt: skip


def write_table(rows: Rows) -> None:
    lines = [
        [
            row["network"],
            *(f"{row[k]:.1f}" for k in FIGURES),
            f"{row['ratio']:.2f}",
            f"{row['process_peak_mib']:.0f}",
        ]
        for row in rows.rows
    ]
    header = "network | parameters, MiB | optimiser | data | peak of arrays | ratio"
    rows.write_table(table(header + " | peak of the process", lines))


def main() -> None:
    """Measure every network and write the table."""
    parser = options.parser(__doc__, "memory", seeds=None)
    parser.add_argument("--network", choices=NETWORKS, help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.network:
        worker(args)
        return
    rows = Rows(args.out)
    rows.rows = []
    for network in NETWORKS:
        words = [*sys.argv[1:], "--network", network]
        rows.add(processes.measured("benchmarks.costs.memory", *words))
    write_table(rows)


if __name__ == "__main__":
    main()

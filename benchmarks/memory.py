"""Peak memory of a whole run, against what it cannot do without: parameters, optimiser state and data.

    python benchmarks/memory.py --data-root DIR --out benchmarks/results/memory

Each network gets a process of its own. Two peaks are told. That of the arrays: all that are alive
when a program starts, the host's copy of the data, and what XLA has planned for the program beside its
arguments. And that of the process: its resident set at its largest less the one after the imports,
which holds the compiler and what it leaves behind, whatever the size of the network.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import records

NETWORKS = ("lenet5", "mlp 784-100-100-10", "mlp 5x400")


def resident() -> float:
    """Return the current resident set in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def mebibytes(tree) -> float:
    """Return the size of all arrays of a tree in MiB."""
    import jax

    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) / 2**20


class Watch:
    """Follow the memory of the arrays while programs run."""

    def __init__(self) -> None:
        from bmrjax.infer.loop import Loop

        self.peak = 0.0
        run, watch = Loop.__call__, self

        def watched(loop, carry, n, *args):
            watch.see(loop.compile(carry, *args).memory_analysis())
            return run(loop, carry, n, *args)

        Loop.__call__ = watched

    def see(self, plan) -> None:
        """Count what is alive, with a program's plan."""
        import jax

        planned = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
        self.peak = max(self.peak, mebibytes(jax.live_arrays()) + planned / 2**20)


def worker(args: argparse.Namespace) -> None:
    """Run two epochs of one network, evaluation and reduction included, and print the figures."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import bmrjax as bmr
    from bmrjax.programs import classifier

    key = jax.random.key(0)
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((8, 8))))
    before = resident()
    found = bmr.data.load_dataset("fashion_mnist", data_root=args.data_root)
    train, test = ((np.asarray(x), np.asarray(y)) for x, y in (found.train, found.test))
    watch = Watch()
    if args.network == "lenet5":
        network = bmr.zoo.LeNet5(key=key)
    else:
        hidden = [400] * 5 if args.network == "mlp 5x400" else [100, 100]
        network = bmr.zoo.MLP(784, hidden, 10, key=key)
    result = bmr.sparsify(
        classifier(network, bmr.priors.Flat()),
        train,
        key=key,
        held_out=test,
        num_epochs=4,
        steps_per_epoch=50,
        schedule=bmr.schedules.Verified(wait=1, refit=1, cooldown=1),
        progress=False,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    state = jax.eval_shape(optax.adabelief(1e-2).init, result.params)
    parameters, optimiser = mebibytes(result.params), mebibytes(state)
    data = mebibytes((train, test))
    needed = parameters + optimiser + data
    row = {
        "network": args.network,
        "parameters_mib": parameters,
        "optimiser_mib": optimiser,
        "data_mib": data,
        "arrays_peak_mib": watch.peak + data,
        "ratio": (watch.peak + data) / needed,
        "process_peak_mib": peak,
        "process_ratio": peak / needed,
        "resident_before_mib": before,
        **records.environment(),
    }
    print("ROW " + json.dumps(row), flush=True)


def main() -> None:
    """Measure every network and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--network", choices=NETWORKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.network:
        worker(args)
        return
    rows = records.Rows(args.out)
    rows.rows = []
    for network in NETWORKS:
        command = [sys.executable, __file__, "--network", network]
        command += ["--data-root", args.data_root] if args.data_root else []
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.add(json.loads(next(x for x in out.stdout.splitlines() if x.startswith("ROW "))[4:]))
    figures = ("parameters_mib", "optimiser_mib", "data_mib", "arrays_peak_mib")
    lines = [
        [
            row["network"],
            *(f"{row[k]:.1f}" for k in figures),
            f"{row['ratio']:.2f}",
            f"{row['process_peak_mib']:.0f}",
        ]
        for row in rows.rows
    ]
    header = ["network", "parameters, MiB", "optimiser", "data", "peak of arrays", "ratio"]
    header += ["peak of the process"]
    (args.out / "table.md").write_text(records.table(header, lines))


if __name__ == "__main__":
    main()

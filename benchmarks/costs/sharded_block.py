"""A transformer block of up to 1e8 weights, sparsified over eight virtual devices.

    python -m benchmarks.costs.sharded_block
    python -m benchmarks.costs.sharded_block --largest 13000000

Each size has a process of its own. Posterior, state of the optimiser and masks are parted over the devices;
three steps, a reduction by `SpikeAndSlab`, three steps, the free energy (a hundred draws of all weights), and
the result. Random data: two sequences of eight tokens, which the block is to give back.

Times are CPU seconds of all threads. What a device plans is the memory of the compiled step, its arguments
included; what it holds are the arrays of the state. On the first device alone are the network and what the
guide keeps of the start.
"""

import argparse
import resource
import sys
import time
from typing import Any

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, environment, table

WIDTHS = (64, 256, 1024, 2896)
DEVICES, STEPS = 8, 3
MIB = 2**20
PHASES = {
    "network": "network",
    "start": "start",
    "first_steps": "compile, 3 steps",
    "steps": "3 steps",
    "reduction": "compile, reduction",
    "measurement": "free energy",
    "result": "result",
}


def num_weights(width: int) -> int:
    """Return the number of weights and biases of a block."""
    return 12 * width**2 + 13 * width


class Clock:
    """CPU seconds of one phase after the other, and the largest resident set so far, in MiB."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self._begin = time.process_time()

    def note(self, phase: str, *found: Any) -> None:
        """Note a phase as over, once what it found is there."""
        import jax

        jax.block_until_ready(found)
        now = time.process_time()
        self.seconds[phase], self._begin = now - self._begin, now
        self.peaks[phase] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def whole_mib() -> float:
    """Return the size of the arrays that are on one device alone: the network, and what the guide keeps."""
    import jax

    arrays = [x for x in jax.live_arrays() if len(x.sharding.device_set) == 1]
    words = [x for x in arrays if not jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum({x.unsafe_buffer_pointer(): x.nbytes for x in words}.values()) / MIB


def measure(width: int) -> dict[str, Any]:
    """Return the row of a width."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import bmrjax as bmr
    from benchmarks.common.steps import planned
    from bmrjax.zoo.vit import TransformerBlock

    begin, clock = time.perf_counter(), Clock()
    key = jax.random.key(0)
    block = TransformerBlock(
        width, 8, 4 * width, dropout=0.0, exact_gelu=False, norm_eps=1e-5, key=key
    )
    clock.note("network", jax.tree.leaves(block))

    def program(x: Any, y: Any = None) -> None:
        outputs = bmr.random_module("net", block, bmr.priors.Flat())(x)
        numpyro.sample("y", dist.Normal(outputs, 0.1).to_event(2), obs=y)

    x = np.random.default_rng(0).standard_normal((2, 8, width)).astype(np.float32)
    mesh = jax.make_mesh((DEVICES,), ("model",))
    chosen = bmr.FitOptions(mesh=mesh, loop="dispatch")
    fit = bmr.Fit(program, (x, x), batch_size=None, options=chosen)
    state = fit.init(jax.random.key(1))
    clock.note("start", state)
    whole = whole_mib()
    state, first = fit.epoch(state, jax.random.key(2), num_steps=STEPS)
    clock.note("first_steps", state)
    state, reduced = fit.reduce(state)
    removed = int(reduced.removed)
    del reduced
    clock.note("reduction", state)
    state, last = fit.epoch(state, jax.random.key(3), num_steps=STEPS)
    clock.note("steps", state)
    vfe = fit.measure(state, jax.random.key(4))
    clock.note("measurement")
    result = fit.result(state)
    clock.note("result", result.params)
    (step,) = fit.engine.loops()[0]._compiled.values()
    shards = [s for leaf in jax.tree.leaves(state) for s in leaf.addressable_shards]
    held = [sum(s.data.nbytes for s in shards if s.device == d) for d in mesh.devices.flat]
    judged = sum(mask.size for mask in result.keep.values())
    return {
        "weights": num_weights(width),
        "width": width,
        "devices": DEVICES,
        "judged": judged,
        "removed": removed,
        "kept": result.num_kept,
        "cpu_seconds": clock.seconds,
        "seconds": time.perf_counter() - begin,
        "losses": [float(x) for info in (first, last) for x in info.losses],
        "vfe": vfe,
        "held_mib": max(held) / MIB,
        "planned_mib": planned(step)["peak"] / MIB,
        "whole_mib": whole,
        "peak_mib": clock.peaks,
        **environment(),
    }


def write_table(rows: Rows) -> None:
    """Write the costs of each size."""
    lines = []
    for row in sorted(rows.rows, key=lambda row: row["weights"]):
        lines.append([
            f"{row['weights']:,}",
            *(f"{row['cpu_seconds'][phase]:.1f}" for phase in PHASES),
            f"{row['removed'] / row['judged']:.1%}",
            f"{row['held_mib']:,.1f}",
            f"{row['planned_mib']:,.1f}",
            f"{row['whole_mib']:,.1f}",
            f"{row['peak_mib']['result']:,.0f}",
        ])  # fmt: skip
    header = ["weights", *PHASES.values(), "removed"]
    header += ["held per device, MiB", "planned per device, MiB", "on the first device alone, MiB"]
    header.append("peak of the process, MiB")
    rows.write_table(table(header, lines))


def main() -> None:
    """Measure each width in a process of its own."""
    parser = options.parser(__doc__, "scale/block", seeds=None, data=False, report=True)
    parser.add_argument("--largest", type=int, help="leave out blocks of more weights")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.worker is not None:
        processes.print_row(measure(args.worker))
        return
    rows = Rows(args.out)
    for width in () if args.report else WIDTHS:
        if args.largest is not None and num_weights(width) > args.largest:
            continue
        module, env = "benchmarks.costs.sharded_block", processes.virtual_devices(DEVICES)
        row = processes.measured(module, "--worker", str(width), env=env)
        rows.rows = [r for r in rows.rows if r["width"] != width]
        rows.add(row)
        print(f"{row['weights']:,}", f"{row['seconds']:.0f} s", file=sys.stderr)
    write_table(rows)


if __name__ == "__main__":
    main()

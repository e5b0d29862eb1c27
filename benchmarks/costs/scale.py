"""Costs as weights, rows and devices grow, with exponents, and a block of 1e8 weights over eight devices.

    python -m benchmarks.costs.scale
    python -m benchmarks.costs.scale --axes block

Each size has a process of its own. CPU seconds count all threads, after a first call that compiles:

- `weights`: a reduction by `SpikeAndSlab` of a normal posterior in memory, 1e4 to 1e8 weights.
- `rows`: steps over rows that are made as they are read (`Batches` of 1,000), 1e3 to 1e7 of them.
- `devices`: 50 steps of a network whose weights lie on 1 to 8 virtual devices of this machine.
- `block`: a transformer block whose posterior lies on eight virtual devices: steps, a reduction, steps.

An exponent is the slope of the logarithms from a size to one ten times as large (twice, for devices). Virtual
devices share the cores of the machine, so an exponent of 0 is the best that devices can have here.
"""

import argparse
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, environment, table

SIZES = {
    "weights": (10**4, 10**5, 10**6, 10**7, 10**8),
    "rows": (10**3, 10**4, 10**5, 10**6, 10**7),
    "devices": (1, 2, 4, 8),
    "block": (8,),
}
WHAT = {
    "weights": "reduction, weights",
    "rows": "steps over streamed rows",
    "devices": "50 steps, virtual devices",
    "block": "a block of 1e8 weights over virtual devices",
}


def cpu_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and what it returns, which is waited for."""
    import jax

    begin = time.process_time()
    found = jax.block_until_ready(call())
    return time.process_time() - begin, found


def weights(size: int) -> dict[str, Any]:
    """Reduce a posterior of so many weights."""
    import jax
    import jax.numpy as jnp

    from bmrjax.criteria import SitePosteriors, SpikeAndSlab
    from bmrjax.reduction import Normal

    keys = jax.random.split(jax.random.key(0))
    spread = jnp.where(jax.random.uniform(keys[0], (size,)) < 0.1, 1.0, 0.01)
    posterior = Normal(spread * jax.random.normal(keys[1], (size,)), jnp.full(size, 0.05))
    prior = Normal(jnp.zeros(size), jnp.ones(size))
    found = SitePosteriors({"w": posterior}, {"w": prior}, {"w": "w"})
    criterion, keep = SpikeAndSlab(), {"w": jnp.ones(size, bool)}
    memory = criterion.init(found.posterior)
    reduce = jax.jit(lambda found, keep: criterion(found, keep, memory).keep)
    jax.block_until_ready(reduce(found, keep))
    calls = max(1, 10**7 // size)
    seconds, _ = cpu_of(lambda: [reduce(found, keep) for _ in range(calls)])
    return {"cpu_seconds": seconds / calls}


def rows(size: int) -> dict[str, Any]:
    """Take steps over so many rows, which are made as they are read."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import bmrjax as bmr

    batch, columns = 1000, 20

    def source(epoch: int) -> Any:
        rng = np.random.default_rng(epoch)
        for _ in range(size // batch):
            x = rng.standard_normal((batch, columns), np.float32)
            yield x, x[:, 0] - x[:, 1]

    def program(x: Any, y: Any = None) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([columns]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

    data = bmr.Batches(source, num_data=size)
    fit = bmr.Fit(program, data, batch_size=batch)
    state = fit.init(jax.random.key(0))
    # An epoch of so many steps is compiled by the first.
    steps = min(size // batch, 1000)
    state, _ = fit.epoch(state, jax.random.key(1), num_steps=steps)

    def all_rows() -> Any:
        now = state
        for index in range(size // (batch * steps)):
            now, _ = fit.epoch(now, jax.random.key(2), num_steps=steps, index=index)
        return now

    return {"cpu_seconds": cpu_of(all_rows)[0]}


def held(tree: Any) -> list[int]:
    """Return the bytes that each device holds of a tree."""
    import jax

    bytes_by: dict[Any, int] = dict.fromkeys(jax.devices(), 0)
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            for shard in leaf.addressable_shards:
                bytes_by[shard.device] += shard.data.nbytes
    return list(bytes_by.values())


def fitted(network: Any, shape: tuple[int, ...], number: int) -> Any:
    """Return the fit of a classifier over all devices, on made-up data."""
    import jax
    import numpy as np

    import bmrjax as bmr

    rng = np.random.default_rng(0)
    x: Any = rng.standard_normal((64, *shape), np.float32)
    y: Any = rng.integers(0, 10, 64)
    mesh = jax.make_mesh((number,), ("model",)) if number > 1 else None
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    settings = bmr.FitOptions(mesh=mesh)
    return bmr.Fit(program, (x, y), batch_size=8, options=settings)


def devices(size: int) -> dict[str, Any]:
    """Take steps of a network whose weights lie on so many devices."""
    import jax

    import bmrjax as bmr

    network = bmr.zoo.MLP(256, [512, 512], 10, key=jax.random.key(0))
    fit = fitted(network, (256,), size)
    state = fit.init(jax.random.key(0))
    state, _ = fit.epoch(state, jax.random.key(1), num_steps=1)
    seconds, found = cpu_of(lambda: fit.epoch(state, jax.random.key(2), num_steps=50)[0])
    return {"cpu_seconds": seconds, "mib_per_device": max(held(found)) / 2**20}


def block(size: int, width: int = 2896, steps: int = 2) -> dict[str, Any]:
    """Sparsify a transformer block over devices: steps, a reduction of half of what may go, steps."""
    import jax

    import bmrjax as bmr

    network = bmr.zoo.ViT(
        1, 10, image_size=8, patch=4, depth=1, width=width, heads=16, key=jax.random.key(0)
    )
    fit = fitted(network, (1, 8, 8), size)
    state = fit.init(jax.random.key(0))
    first, (state, _) = cpu_of(lambda: fit.epoch(state, jax.random.key(1), num_steps=steps))
    seconds, (state, info) = cpu_of(lambda: fit.epoch(state, jax.random.key(2), num_steps=steps))
    reducing, (state, found) = cpu_of(lambda: fit.reduce(state, 0.5))
    parts = held(state.svi)
    state, _ = fit.epoch(state, jax.random.key(3), num_steps=steps)
    kept = sum(int(mask.sum()) for mask in state.keep.values())
    return {
        "weights": sum(mask.size for mask in state.keep.values()),
        "kept": kept,
        "removed": int(found.removed),
        "loss": float(info.losses[-1]),
        "first_epoch_cpu_seconds": first,
        "cpu_seconds": seconds / steps,
        "reduction_cpu_seconds": reducing,
        "mib_per_device": max(parts) / 2**20,
        "least_mib_per_device": min(parts) / 2**20,
    }


AXES = {"weights": weights, "rows": rows, "devices": devices, "block": block}


def exponents(found: list[dict[str, Any]]) -> list[float]:
    """Return the slope of the logarithms of the costs from each size to the next."""
    return [
        math.log(b["cpu_seconds"] / a["cpu_seconds"]) / math.log(b["size"] / a["size"])
        for a, b in zip(found, found[1:], strict=False)
    ]


def write_table(rows: Rows) -> None:
    """Write the costs of each size, and the exponents."""
    lines = []
    for axis, what in WHAT.items():
        found = sorted(rows.where(axis=axis), key=lambda row: row["size"])
        slopes = ["–", *(f"{slope:.2f}" for slope in exponents(found))]
        for row, slope in zip(found, slopes, strict=False):
            each = f"{row['mib_per_device']:,.1f}" if "mib_per_device" in row else "–"
            seconds = f"{row['cpu_seconds']:.3g}"
            lines.append(
                [what, f"{row['size']:,}", seconds, slope, f"{row['peak_mib']:,.0f}", each]
            )
    header = ["what", "size", "CPU seconds", "exponent", "peak of the process, MiB"]
    rows.write_table(table([*header, "state per device, MiB"], lines))


def main() -> None:
    """Measure each size in a process of its own."""
    parser = options.parser(__doc__, "scale", seeds=None, report=True)
    parser.add_argument("--axes", nargs="+", choices=tuple(SIZES), default=tuple(SIZES))
    parser.add_argument("--largest", type=int, help="leave out larger sizes")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.worker is not None:
        axis, size = args.worker[0], int(args.worker[1])
        found = AXES[axis](size)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        row = {"axis": axis, "size": size, **found, "peak_mib": peak, **environment()}
        processes.print_row(row)
        return
    rows_ = Rows(args.out)
    for axis in () if args.report else args.axes:
        for size in SIZES[axis]:
            if args.largest is not None and size > args.largest:
                continue
            number = size if axis in ("devices", "block") else 1
            flags = (
                f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={number}"
            )
            # A virtual device that waits for the others holds a thread of XLA's pool.
            env = {"XLA_FLAGS": flags, "NPROC": str(8 * number)} if number > 1 else {}
            row = processes.measured("benchmarks.costs.scale", "--worker", axis, str(size), env=env)
            rows_.rows = [r for r in rows_.rows if (r["axis"], r["size"]) != (axis, size)]
            rows_.add(row)
            print(axis, size, f"{row['cpu_seconds']:.3g}", file=sys.stderr)
    write_table(rows_)


if __name__ == "__main__":
    main()

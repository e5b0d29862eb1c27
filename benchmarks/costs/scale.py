"""Costs as weights and rows grow, with exponents.

    python -m benchmarks.costs.scale
    python -m benchmarks.costs.scale --axes rows

Each size has a process of its own. CPU seconds count all threads, after a first call that compiles:

- `weights`: a reduction by `SpikeAndSlab` of a normal posterior in memory, 1e4 to 1e8 weights.
- `rows`: steps over rows that are made as they are read (`Batches` of 1,000), 1e3 to 1e7 of them.

An exponent is the slope of the logarithms from a size to one ten times as large.
"""

import argparse
import math
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
}
WHAT = {
    "weights": "reduction, weights",
    "rows": "steps over streamed rows",
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


AXES = {"weights": weights, "rows": rows}


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
            seconds = f"{row['cpu_seconds']:.3g}"
            lines.append([what, f"{row['size']:,}", seconds, slope, f"{row['peak_mib']:,.0f}"])
    header = ["what", "size", "CPU seconds", "exponent", "peak of the process, MiB"]
    rows.write_table(table(header, lines))


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
            row = processes.measured("benchmarks.costs.scale", "--worker", axis, str(size))
            rows_.rows = [r for r in rows_.rows if (r["axis"], r["size"]) != (axis, size)]
            rows_.add(row)
            print(axis, size, f"{row['cpu_seconds']:.3g}", file=sys.stderr)
    write_table(rows_)


if __name__ == "__main__":
    main()

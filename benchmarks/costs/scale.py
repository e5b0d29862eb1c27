"""Costs as weights and rows grow, with exponents.

    python -m benchmarks.costs.scale
    python -m benchmarks.costs.scale --axes rows

Each size has a process of its own. CPU seconds count all threads, after a first call that compiles:

- `weights`: a reduction by `SpikeAndSlab` of a normal posterior in memory, 1e4 to 1e8 weights.
- `rows`: steps over rows that are made as they are read (`Batches` of 1,000), 1e3 to 1e7 of them.
- `devices`: 200 steps of a perceptron of 71,425 weights, whose batches of 2,048 rows are divided over 1 to 8
  virtual devices.
- `processes`: the same over 1 to 4 processes with a device each, which `jax.distributed` joins; CPU seconds
  and the peak are the sums over processes.

An exponent is the slope of the logarithms from a size to the next.
"""

import argparse
import math
import os
import resource
import socket
import subprocess
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
    "processes": (1, 2, 4),
}
WHAT = {
    "weights": "reduction, weights",
    "rows": "steps over streamed rows",
    "devices": "200 steps, devices",
    "processes": "200 steps, processes",
}
MODULE = "benchmarks.costs.scale"
# Where the first of several processes waits for the others, and which one of them this is.
ADDRESS, MEMBER = "SCALE_ADDRESS", "SCALE_MEMBER"


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


def devices(size: int) -> dict[str, Any]:
    """Take steps whose batches are divided over so many devices, of this process or of several."""
    import jax
    import numpy as np

    import bmrjax as bmr
    from benchmarks.common.steps import planned

    assert jax.device_count() == size
    x = np.random.default_rng(0).standard_normal((8192, 20), np.float32)
    network = bmr.zoo.MLP(20, [256, 256], 1, key=jax.random.key(0))
    program = bmr.programs.regression(network, bmr.priors.Flat())
    chosen = bmr.FitOptions(mesh=jax.make_mesh((size,), ("data",)), loop="dispatch")
    fit = bmr.Fit(program, (x, x[:, 0] - x[:, 1]), batch_size=2048, options=chosen)
    state, _ = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=200)
    seconds, _ = cpu_of(lambda: fit.epoch(state, jax.random.key(3), num_steps=200))
    (step,) = fit.engine.loops()[0]._compiled.values()
    return {"cpu_seconds": seconds, "planned_mib": planned(step)["peak"] / 2**20}


def processes_(size: int) -> dict[str, Any]:
    """Take steps whose batches are divided over so many processes, each with a device."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port.getsockname()[1]}"
    command = [sys.executable, "-m", MODULE, "--worker", "processes", str(size)]
    members = [
        subprocess.Popen(
            command,
            env={**os.environ, ADDRESS: address, MEMBER: str(member)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for member in range(size)
    ]
    # None ends before the others, and what they print is short.
    printed = [member.communicate()[0] for member in members]
    if any(member.returncode for member in members):
        raise SystemExit(f"One of {size} processes failed.")
    found = [processes.printed_row(text) for text in printed]
    return {
        "cpu_seconds": sum(row["cpu_seconds"] for row in found),
        "planned_mib": max(row["planned_mib"] for row in found),
        "peak_mib": sum(row["peak_mib"] for row in found),
    }


def member_of(size: int) -> dict[str, Any]:
    """Join the other processes, and take the steps of this one."""
    import jax

    jax.distributed.initialize(
        os.environ[ADDRESS], num_processes=size, process_id=int(os.environ[MEMBER])
    )
    return devices(size)


AXES = {"weights": weights, "rows": rows, "devices": devices, "processes": processes_}


def measured_here(axis: str, size: int) -> dict[str, Any]:
    """Return the row of a size, measured in this process."""
    found = member_of(size) if MEMBER in os.environ else AXES[axis](size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"axis": axis, "size": size, "peak_mib": peak, **found, **environment()}


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
            planned = f"{row['planned_mib']:,.1f}" if "planned_mib" in row else "–"
            peak = f"{row['peak_mib']:,.0f}"
            lines.append([what, f"{row['size']:,}", seconds, slope, peak, planned])
    header = ["what", "size", "CPU seconds", "exponent", "peak of the process, MiB"]
    header.append("planned per device, MiB")
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
        processes.print_row(measured_here(axis, size))
        return
    rows_ = Rows(args.out)
    for axis in () if args.report else args.axes:
        for size in SIZES[axis]:
            if args.largest is not None and size > args.largest:
                continue
            env = None
            if axis in ("devices", "processes"):
                env = processes.virtual_devices(size if axis == "devices" else 1)
            row = processes.measured(MODULE, "--worker", axis, str(size), env=env)
            rows_.rows = [r for r in rows_.rows if (r["axis"], r["size"]) != (axis, size)]
            rows_.add(row)
            print(axis, size, f"{row['cpu_seconds']:.3g}", file=sys.stderr)
    write_table(rows_)


if __name__ == "__main__":
    main()

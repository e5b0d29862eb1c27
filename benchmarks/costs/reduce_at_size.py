"""Reduction of a posterior in a folder, against the time that reading the folder takes.

    python -m benchmarks.costs.reduce_at_size

The posterior is made up: shards of four tensors, of whose weights between 2 and 70 % are far from zero, whole
rows of them in every other tensor. A sample tells little of such rows, so some of these are read twice.
Reading is what a plain program does: each file once, by one thread, into one buffer of 4 MiB. `sum` adds the
numbers up besides, over a memory map. Both are timed in turn with the reduction, with the files in the page
cache (warm) and after the cache has let go of them (cold; a virtual machine's host may still have
them). Each row runs in a process of its own, for its peak memory. At the smaller size, the masks are compared
with those of the criterion in memory, in float32 and float64. `load` is how many processes wanted the cores.
"""

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, environment, table
from bmrjax import criteria, reduction
from bmrjax.streaming import reduce_folder

SHARDS, TENSORS = 5, 4
PRIOR_SCALE = 0.1
CRITERIA = {"spike-slab": criteria.SpikeAndSlab, "shrinkage": criteria.Shrinkage}
COMPARED = 10_000_000


def make(folder: Path, weights: int, dtype: str) -> None:
    """Write a posterior of about that many weights."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows, columns = max(1, weights // (SHARDS * TENSORS * 1000)), 1000
    kind = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    for shard in range(SHARDS):
        tensors = {}
        for i in range(TENSORS):
            name = f"layers.{shard}.{i}.weight"
            each = (rows, columns) if i % 2 else (rows, 1)
            alive = rng.random(each, np.float32) < rng.choice([0.02, 0.1, 0.3, 0.7])
            loc = rng.standard_normal((rows, columns), np.float32)
            loc *= np.where(alive, np.float32(0.06), np.float32(0.004))
            scale = rng.standard_normal((rows, columns), np.float32)
            scale = np.exp(0.5 * scale - 5)
            tensors |= {f"{name}.loc": loc.astype(kind), f"{name}.scale": scale.astype(kind)}
        save_file(tensors, folder / f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors")
    os.sync()


def forget(folder: Path) -> None:
    """Have the page cache let go of the files."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_once(folder: Path) -> float:
    """Return the seconds to read every file into one buffer."""
    buffer = np.ones(2**22, np.uint8)
    begin = time.perf_counter()
    for path in sorted(folder.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while os.readv(descriptor, [buffer.data]):
            pass
        os.close(descriptor)
    return time.perf_counter() - begin


def sum_once(folder: Path) -> float:
    """Return the seconds to add up what the files hold, as integers, over memory maps."""
    begin = time.perf_counter()
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size // 8
        np.memmap(path, np.uint64, "r", shape=(size,)).sum()
    return time.perf_counter() - begin


def worker(args: argparse.Namespace) -> None:
    """Time one criterion on one folder, in turn with reading, and print the row."""
    folder, out = args.worker, args.worker.with_name("masks")
    criterion = CRITERIA[args.criterion]()
    small = args.worker.with_name("small")
    make(small, 100_000, args.dtype)

    def reduce(where):
        shutil.rmtree(out, ignore_errors=True)
        return reduce_folder(where, out, criterion, prior_scale=PRIOR_SCALE)

    compile_seconds = reduce(small).compile_seconds
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times: dict[str, list[float]] = {}

    def timed(what, seconds):
        times.setdefault(what, []).append(seconds)

    read_once(folder)
    cpu = []
    for _ in range(args.repeats):
        timed("warm read", read_once(folder))
        begin = time.process_time()
        timed("warm reduce", reduce(folder).seconds)
        cpu.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for _ in range(args.repeats):
        timed("sum", sum_once(folder))
    for _ in range(args.repeats):
        for what in ("read", "reduce"):
            forget(folder)
            seconds = read_once(folder) if what == "read" else (found := reduce(folder)).seconds
            timed(f"cold {what}", seconds)
    layers = found.layers.values()
    row = {
        "weights": found.total,
        "dtype": args.dtype,
        "criterion": args.criterion,
        "bytes": found.bytes,
        "bytes_read": found.bytes_read,
        "seconds": times,
        "cpu_seconds": cpu,
        "ratio": {
            cache: statistics.median(
                a / b for a, b in zip(times[f"{cache} reduce"], times[f"{cache} read"], strict=True)
            )
            for cache in ("warm", "cold")
        },
        "ratio_to_sum": statistics.median(times["warm reduce"]) / statistics.median(times["sum"]),
        "compile_seconds": compile_seconds,
        "peak_mib": peak - before,
        "process_peak_mib": peak,
        "kept": found.kept,
        "reads": max(each.reads for each in layers),
        "sampled": sum(each.sampled for each in layers),
        "error_bound": max(each.error_bound for each in layers),
        "unproven": found.unproven,
        "load": os.getloadavg()[0],
        **environment(),
    }
    if found.total <= COMPARED:
        row["differ"] = {bits: differing(folder, out, criterion, bits) for bits in (32, 64)}
    processes.print_row(row)


def differing(folder: Path, out: Path, criterion, bits: int) -> int:
    """Return in how many weights the masks differ from those of the criterion in memory."""
    count, dtype = 0, {32: jnp.float32, 64: jnp.float64}[bits]
    with jax.enable_x64(bits == 64):
        for path in sorted(out.glob("*.safetensors")):
            tensors = load_file(folder / path.name)
            for key, mask in load_file(path).items():
                name = key.removesuffix(".keep")
                loc, scale = (jnp.asarray(tensors[f"{name}.{p}"], dtype) for p in ("loc", "scale"))
                q = {name: reduction.Normal(loc, scale)}
                prior = reduction.Normal(jnp.zeros_like(loc), jnp.full_like(loc, PRIOR_SCALE))
                keep = criterion(criteria.SitePosteriors(q, {name: prior})).keep[name]
                count += int(np.sum(np.asarray(keep) != mask))
    return count


def write_table(rows: Rows) -> None:
    """Write ``table.md``."""
    lines = []
    for row in rows.rows:
        times = {what: statistics.median(found) for what, found in row["seconds"].items()}
        lines.append([
            f"{row['weights']:,} {row['dtype']}",
            row["criterion"],
            f"{row['bytes'] / 1e6:.0f}",
            *(f"{times[f'{c} {w}']:.2f}" for w in ("read", "reduce") for c in ("warm", "cold")),
            *(f"{row['ratio'][cache]:.1f}" for cache in ("warm", "cold")),
            f"{row['ratio_to_sum']:.1f}",
            f"{statistics.median(row['cpu_seconds']):.2f}",
            f"{row['load']:.1f}",
            f"{row['bytes_read'] / row['bytes']:.2f}",
            f"{row['peak_mib']:.0f}",
            f"{row['error_bound']:.0e}" if row["error_bound"] else "–",
            str(row["unproven"]),
            ", ".join(str(n) for n in row["differ"].values()) if "differ" in row else "–",
        ])  # fmt: skip
    header = "weights | criterion | MB | reading, s: warm | cold | reduction, s: warm | cold"
    header += " | ratio: warm | cold | to a sum | core seconds | load | bytes read, of all"
    header += " | peak, MiB | ± ζ, nats | unproven | differ from memory, float32, float64"
    rows.write_table(table(header, lines))


def main() -> None:
    """Measure what is missing and write the table."""
    parser = options.parser(
        __doc__, "reduce_at_size", seeds=None, data=False, quick="a million weights"
    )
    parser.add_argument("--weights", type=int, nargs="+", default=[COMPARED, 100_000_000])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--criterion", choices=CRITERIA, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.worker:
        worker(args)
        return
    if args.quick:
        args.weights, args.repeats = [1_000_000], 2
    rows = Rows(args.out)
    for weights in args.weights:
        for dtype in args.dtypes:
            wanted = [c for c in CRITERIA if not rows.has(asked=weights, dtype=dtype, criterion=c)]
            if not wanted:
                continue
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made) / "posterior"
                make(folder, weights, dtype)
                for criterion in wanted:
                    shutil.rmtree(folder.with_name("small"), ignore_errors=True)
                    words = ["--worker", str(folder), "--criterion", criterion, "--dtype", dtype]
                    words += ["--repeats", str(args.repeats)]
                    row = processes.measured("benchmarks.costs.reduce_at_size", *words)
                    rows.add({"asked": weights, **row, "command": environment()["command"]})
                    print(weights, dtype, criterion, row["ratio"], flush=True)
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()

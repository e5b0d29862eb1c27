"""What an accelerator makes of it: reduction, steps, ten seeds, bfloat16 and memory, in one command.

    python -m benchmarks.costs.device

Each part has a process of its own, and its row is written as soon as it is there; a part that fails leaves
its last line of output in place of figures. The processes compile side by side; when all have, they are timed
one after the other, each alone on the device, its steps in turn. The
reduction is compared with a stream over as many bytes, in one process; `passes` says how many bytes of a
weight a criterion must move. Data are random: only time and memory are measured. On a CPU the sizes are
smaller, and ``--quick`` takes seconds a part.
"""

import argparse
import contextlib
import functools
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common import datasets, networks, options, processes, steps
from benchmarks.common.rows import Rows, environment, table
from bmrjax import criteria, priors, programs, reduction

SITES, COUNT = 10, 10
GIB = 2.0**30
# Networks with the shape of an image, and the steps of a turn on an accelerator and on a CPU.
NETWORKS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "LeNet-5": ((1, 28, 28), 500, 10),
    "MLP 5x400": ((1, 28, 28), 500, 20),
    "ViT": ((1, 28, 28), 50, 1),
    "Mixer": ((1, 28, 28), 50, 1),
    "ResNet-18": ((3, 32, 32), 50, 1),
}
SEEDS = ("LeNet-5", "MLP 5x400", "MLP 100-100")
LARGE = ("ViT", "Mixer", "ResNet-18")
SIDES = ("deterministic", "mean-field", "mean-field, bfloat16")
BATCH = 128
READY = "READY"
QUIET = ("compile_seconds", "versions", "python", "commit", "command")


# --- reduction ------------------------------------------------------------------------------------


# Bytes of a weight that a criterion moves at the least. All read a mean and a scale of four bytes each and a
# mask of one, and write a mask. Spike-and-slab writes ΔF besides, and reads it and the mask once for each of
# its fixed-point iterations, and once for the probabilities.
def passes(iterations: int) -> float:
    """Return the bytes of a weight that so many fixed-point iterations move; none for one pass over all."""
    return 10.0 + (4.0 + 5.0 * iterations if iterations else 0.0)


def times_of(run: Callable[[], Any], repeats: int) -> list[float]:
    """Return the seconds of each call, after one that compiles."""
    found = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - begin)
    return found[1:]


def reduction_row(weights: int, repeats: int) -> dict[str, Any]:
    """Return what a reduction of so many weights takes, beside a stream over as many bytes.

    The stream multiplies numbers in place: it reads four bytes and writes four for each.
    """
    each = weights // SITES
    stream = jax.jit(lambda x: 0.999 * x + 0.001, donate_argnums=0)
    box = [jnp.ones((SITES, each), jnp.float32)]

    def streamed() -> Any:
        box[0] = stream(box[0])
        return box[0]

    moved = 8.0 * SITES * each
    rate = moved / statistics.median(times_of(streamed, repeats))
    box.clear()

    @jax.jit
    def site(key: Any) -> reduction.Normal:
        chosen, mean, scale = jax.random.split(key, 3)
        size = jnp.where(jax.random.bernoulli(chosen, 0.2, (each,)), 0.06, 0.004)
        loc = size * jax.random.normal(mean, (each,))
        return reduction.Normal(loc, 0.006 * jnp.exp(0.5 * jax.random.normal(scale, (each,))))

    keys = jax.random.split(jax.random.key(0), SITES)
    posterior = {f"layer{i}": site(key) for i, key in enumerate(keys)}
    prior = {name: reduction.Normal(jnp.zeros(()), jnp.asarray(0.1)) for name in posterior}
    keep = {name: jnp.ones(each, bool) for name in posterior}
    row: dict[str, Any] = {"weights": SITES * each, "stream_gb_per_s": rate / 1e9}
    for name, criterion, iterations in (
        ("shrinkage", criteria.Shrinkage(), 0),
        ("spike-slab", criteria.SpikeAndSlab(), criteria.SpikeAndSlab().num_steps + 1),
    ):

        @functools.partial(jax.jit, donate_argnums=0)
        def reduce(keep: Any, posterior: Any, criterion: Any = criterion) -> Any:
            found = criteria.SitePosteriors(posterior, prior)
            return criterion(found, keep, criterion.init(posterior)).keep

        kept = [keep]

        def run(reduce: Any = reduce, kept: Any = kept) -> Any:
            kept[0] = reduce(jax.tree.map(jnp.ones_like, kept[0]), posterior)
            return kept[0]

        def ones(kept: Any = kept) -> Any:
            return jax.tree.map(jnp.ones_like, kept[0])

        seconds = statistics.median(times_of(run, repeats))
        # New masks are made inside the timed call, since the old ones are given away.
        seconds -= statistics.median(times_of(ones, repeats))
        share = sum(float(jnp.mean(mask)) for mask in kept[0].values()) / SITES
        planned = steps.planned(reduce.lower(kept[0], posterior).compile())
        row[name] = {
            "seconds": seconds,
            "bytes_a_weight": passes(iterations),
            "share_of_stream": passes(iterations) * SITES * each / seconds / rate,
            "one_pass_share_of_stream": passes(0) * SITES * each / seconds / rate,
            "kept": share,
            "temporary_bytes_a_weight": planned.get("temporary", 0) / (SITES * each),
        }
        keep = ones()
    return row


# --- steps ----------------------------------------------------------------------------------------


def network_of(name: str) -> Any:
    """Return a network by its name."""
    kinds = {"LeNet-5": "lenet5", "MLP 5x400": "mlp", "ViT": "vit", "Mixer": "mixer"}
    if name in kinds:
        return networks.classifier_of(kinds[name], NETWORKS[name][0], 10, 0, dropout=0.0)
    return networks.build(name)


def steps_row(name: str, repeats: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a mean-field step of a network takes beside a deterministic one, in turn."""
    shape, many, few = NETWORKS[name]
    on_cpu = jax.default_backend() == "cpu"
    turn, batch = (few, 16 if name in LARGE else BATCH) if on_cpu else (many, BATCH)
    turn, batch = (1, 4) if args.quick else (turn, batch)
    network, data = network_of(name), datasets.random_images(shape, 4096)
    model = programs.classifier(network, priors.Flat())
    mode = "auto" if on_cpu else "fused"
    sides = {
        "deterministic": steps.side("deterministic", network, data, batch, turn, mode),
        "mean-field": steps.side("global", network, data, batch, turn, mode),
    }
    if args.bfloat16:
        sides["mean-field, bfloat16"] = steps.engine_side(
            model, data, batch, turn, masks=True, loop=mode, matmul_dtype="bfloat16"
        )
    for one in sides.values():
        steps.warm(one)
    row: dict[str, Any] = {"network": name, "batch_size": batch, "steps_of_a_turn": turn}
    row["weights"] = networks.weights(network[0] if isinstance(network, tuple) else network)[1]
    row["compile_seconds"] = {side: one.compile_seconds for side, one in sides.items()}
    wait_for_turn()
    steps.take_turns(sides, repeats)
    plain, count = sides["deterministic"], steps.flops(network, data, batch)
    ratios = {side: steps.ratio(one, plain) for side, one in sides.items()}
    return {
        **row,
        "milliseconds": {side: one.median for side, one in sides.items()},
        "ratio_to_deterministic": ratios,
        "peak_bytes_of_program": {side: one.plan.get("peak") for side, one in sides.items()},
        "teraflop_per_s": None if math.isnan(count) else count / plain.median / 1e9,
    }


def seeds_row(name: str, repeats: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a step of ten seeds in one program takes, beside a step of one."""
    shape = NETWORKS[name][0] if name in NETWORKS else (1, 28, 28)
    turn = 2 if args.quick else 20 if jax.default_backend() == "cpu" else 500
    data = datasets.random_images(shape, 4096)
    model = programs.classifier(network_of(name), priors.Flat())
    sides = steps.seeds(model, "global", data, BATCH, turn, COUNT)
    row = {"network": name, "batch_size": BATCH, "seeds": COUNT, "steps_of_a_turn": turn}
    wait_for_turn()
    steps.take_turns(sides, repeats)
    middle = {side: one.median for side, one in sides.items()}
    return {**row, "milliseconds": middle, "ratio": steps.ratio(sides["many"], sides["one"])}


# --- parts ----------------------------------------------------------------------------------------


def parts(args: argparse.Namespace) -> list[str]:
    """Return the names of the parts."""
    nets = ("LeNet-5", "MLP 5x400") if args.quick else tuple(NETWORKS)
    return ["reduction", *(f"steps {n}" for n in nets), *(f"seeds {n}" for n in SEEDS)]


def measured(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a part, in the process that has it."""
    kind, _, name = part.partition(" ")
    begin, repeats = time.perf_counter(), 3 if args.quick else args.repeats
    if kind == "reduction":
        weights = args.weights or (10**9 if jax.default_backend() != "cpu" else 10**7)
        row = reduction_row(10**6 if args.quick else weights, repeats)
    else:
        make = {"steps": steps_row, "seeds": seeds_row}[kind]
        row = make(name, repeats, args)
    stats = jax.local_devices()[0].memory_stats() or {}
    more = {"peak_gib_of_device": stats.get("peak_bytes_in_use", 0) / GIB or None}
    more["seconds_of_process"] = time.perf_counter() - begin
    command = "python -m benchmarks.costs.device"  # that of the process which started this one
    return {"part": part, **row, **more, **environment(), "command": command}


def wait_for_turn() -> None:
    """Say that all is compiled, and wait until this process has the device for itself."""
    print(READY, flush=True)
    sys.stdin.readline()


class Part:
    """A part in a process of its own.

    Args:
        name: Of the part.
        args: Those of the command.
    """

    def __init__(self, name: str, args: argparse.Namespace):
        words = [sys.executable, "-m", "benchmarks.costs.device", "--part", name]
        words += ["--repeats", str(args.repeats), *(["--quick"] if args.quick else [])]
        words += ["--weights", str(args.weights)] if args.weights else []
        words += [] if args.bfloat16 else ["--no-bfloat16"]
        pipe, env = subprocess.PIPE, {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.name, self.lines, self.ready = name, [], threading.Event()
        self.process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip())
            if line.startswith(READY):
                self.ready.set()
        self.ready.set()

    def row(self, seconds: float) -> dict[str, Any]:
        """Let the process go on, wait for it, and return its row; of one that failed, what it said last."""
        failed = f"nothing after {seconds:.0f} s"
        if self.ready.is_set():
            try:
                with contextlib.suppress(OSError):  # it has ended
                    self.process.stdin.write("\n")  # pyright: ignore[reportOptionalMemberAccess]
                    self.process.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess]
                if self.process.wait(seconds) == 0:
                    self.reader.join()
                    return processes.printed_row("\n".join(self.lines))
                self.reader.join()
                failed = next((line for line in reversed(self.lines) if line.strip()), "")[:300]
                print("\n".join(self.lines[-25:]), flush=True)
            except subprocess.TimeoutExpired:
                pass
        self.process.kill()
        return {"part": self.name, "failed": failed}


def run(args: argparse.Namespace, rows: Rows) -> None:
    """Run the parts, so many at a time: compile side by side, and time one after the other."""
    begin, waiting = time.perf_counter(), args.parts or parts(args)
    while waiting:
        # The reduction fills the device.
        many = 1 if waiting[0] == "reduction" else args.jobs
        now, waiting = waiting[:many], waiting[many:]
        running = [Part(name, args) for name in now]
        if now[0] == "reduction":
            running[0].ready.set()
        until = time.perf_counter() + args.limit
        for part in running:
            part.ready.wait(max(until - time.perf_counter(), 0))
        for part in running:
            if not part.ready.is_set():
                part.process.kill()  # it compiles still, and would take the device from the others
        print(f"{', '.join(now)}: ready after {time.perf_counter() - begin:.0f} s", flush=True)
        for part in running:
            row = part.row(args.limit)
            rows.rows = [one for one in rows.rows if one["part"] != part.name]
            rows.add(row)
            write_table(rows)
            print({k: v for k, v in row.items() if k not in QUIET}, flush=True)
    print(f"ended after {time.perf_counter() - begin:.0f} s", flush=True)


def write_table(rows: Rows) -> None:
    """Write what is there as tables."""
    found = [row for row in rows.rows if "failed" not in row]
    said = []
    for row in found:
        if row["part"] != "reduction":
            continue
        lines = [
            [
                name,
                row["device"],
                f"{row['weights']:.0e}",
                f"{row['stream_gb_per_s']:.0f}",
                f"{1e3 * row[name]['seconds']:.1f}",
                f"{row[name]['bytes_a_weight']:.0f}",
                f"{row[name]['share_of_stream']:.0%}",
                f"{row[name]['one_pass_share_of_stream']:.0%}",
            ]
            for name in ("shrinkage", "spike-slab")
        ]
        header = "criterion | device | weights | stream, GB/s | reduction, ms | bytes per weight"
        said.append(table(f"{header} | share of the stream's rate | if one pass had to do", lines))
    lines = []
    for row in found:
        if row["part"].startswith("steps "):
            cost, ratios = row["milliseconds"], row["ratio_to_deterministic"]
            peaks = row["peak_bytes_of_program"]
            lines.append(
                [
                    row["network"],
                    row["device"],
                    f"{row['weights']:,}",
                    str(row["batch_size"]),
                    *(f"{cost[side]:.3f}" if side in cost else "–" for side in SIDES),
                    *(
                        "{:.2f} ({:.2f} to {:.2f})".format(*ratios[side]) if side in ratios else "–"
                        for side in SIDES[1:]
                    ),
                    " / ".join(f"{(peaks[side] or 0) / 2**20:.0f}" for side in peaks),
                ]
            )
    if lines:
        header = (
            "network | device | weights | batch | deterministic, ms | mean-field, ms | bfloat16, ms"
        )
        header += " | ratio (range) | ratio in bfloat16 | memory of each, MiB"
        said.append(table(header, lines))
    lines = [
        [
            row["network"],
            row["device"],
            *(f"{row['milliseconds'][side]:.3f}" for side in ("one", "many")),
            "{:.2f} ({:.2f} to {:.2f})".format(*row["ratio"]),
        ]
        for row in found
        if row["part"].startswith("seeds ")
    ]
    if lines:
        said.append(table("network | device | one seed, ms | ten seeds, ms | ratio (range)", lines))
    lines = [[row["part"], row["failed"]] for row in rows.rows if "failed" in row]
    said += [table("part | failed", lines)] if lines else []
    rows.write_table("\n\n".join(said))


def main() -> None:
    """Measure all parts, or be the process of one."""
    parser = options.parser(__doc__, "device", seeds=None, data=False, quick="tiny", report=True)
    parser.add_argument("--repeats", type=int, default=7, help="turns")
    parser.add_argument("--weights", type=int, help="of the reduction: 1e9, on a CPU 1e7")
    parser.add_argument("--parts", nargs="+", help="by default all")
    bfloat16 = argparse.BooleanOptionalAction
    parser.add_argument("--bfloat16", action=bfloat16, default=True, help="products in it too")
    parser.add_argument("--jobs", type=int, default=8, help="parts that compile at a time")
    parser.add_argument(
        "--limit",
        type=float,
        default=600,
        help="seconds of compilation, and of a turn on the device",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.part:
        processes.print_row(measured(args.part, args))
        return
    rows = Rows(args.out)
    if args.report:
        write_table(rows)
    else:
        run(args, rows)


if __name__ == "__main__":
    main()

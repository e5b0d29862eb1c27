"""What every kind of step costs, what it costs as a network grows, and how far that is from the limit.

    python -m benchmarks.costs.speed --data-root DIR

LeNet-5, an MLP of 100-100 and one of 5 x 400, a ViT and a ResNet-18 on random data, and ten seeds of a UCI
regression beside one. A network has a process of its own, in which its steps are compiled, warmed up, and
then taken in turn: compare figures within a row. In turn with them go what no step can beat (a stream over
the bytes that a step must move, a matrix product of as many operations as the deterministic step has) and,
where they are installed, other people's steps: PyTorch in this Python or the one of ``--peer-python``,
jaxpruner and bmr4pml installed or in a clone. A stopped command goes on with what is missing. ``--quick``
takes smaller batches of the large networks, fewer kinds and fewer turns, and no ResNet: five minutes on
two cores. ``--report`` only writes tables and plot.

On a CPU, several devices are virtual ones that share its cores: they show what dividing costs, and no gain.
There, the ViT has two blocks, and it and the ResNet-18 fewer kinds of steps, for the time that these take
to compile.
"""

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import datasets, networks, options, processes, steps
from benchmarks.common.rows import Rows, environment
from benchmarks.costs import speed_peers as peers
from benchmarks.costs import speed_report as report
from bmrjax import criteria, schedules
from bmrjax.infer.placement import Placement

ESTIMATORS = {"global": 2000, "local": 2000, "moments": 500}  # steps of an epoch
SEEDS = 10
WHAT = ("network", "scaling", "devices", "seeds")
# What is on its way to a limit is measured with these.
SWEPT = ("deterministic", "global", "local")
PLAIN = ("deterministic", "global")


@dataclass(frozen=True)
class Case:
    """How a network is timed."""

    name: str
    shape: tuple[int, ...]
    steps: int  # of a turn, on CPU; ten times as many on an accelerator
    batches: tuple[int, int, int] = (128, 128, 128)  # on an accelerator, on CPU, with --quick
    kinds: tuple[str, ...] | None = None  # on CPU; None for all
    kinds_quick: tuple[str, ...] | None = None


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
SOME = (*SWEPT, "map", "moments", "noise")
CASES = {
    "lenet5": Case("LeNet-5", GREY, 10, kinds_quick=(*SWEPT, "noise")),
    "mlp": Case("MLP 100-100", GREY, 100, kinds_quick=(*SWEPT, "map", "noise")),
    "mlp400": Case("MLP 5x400", GREY, 10, kinds_quick=SWEPT),
    "vit": Case("ViT", (1, 32, 32), 1, (128, 32, 4), kinds=SOME, kinds_quick=PLAIN),
    "resnet18": Case("ResNet-18", COLOUR, 1, (128, 8, 2), kinds=PLAIN, kinds_quick=PLAIN),
}
# Width of two hidden layers; number of layers of 400; rows of a step of 5 x 400, whose row is on both ways;
# devices of a batch of 512.
AXES = {"width": (100, 400, 1600), "depth": (2, 8), "batch": (32, 512)}
DEVICES = (2, 4)
QUICK_AXES = {"width": (100,), "depth": (2,), "batch": (32,)}
QUICK_DEVICES = (2,)


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def summary(sides: Any, *, beside: str = "deterministic") -> dict[str, Any]:
    """Return the figures of sides, each with its ratio to one of them."""
    return {
        name: {
            "milliseconds": one.milliseconds,
            "median_ms": one.median,
            "steps_a_turn": one.steps,
            f"ratio_to_{beside.replace(' ', '_')}": steps.ratio(one, sides[beside]),
            "compile_seconds": one.compile_seconds,
            "driver": one.driver,
            "plan_bytes": one.plan,
        }
        for name, one in sides.items()
    }


def weights_of(one: Any) -> int:
    """Return how many parameters the network of an engine's side has."""
    return sum(mask.size for mask in one.parts[2].values())


def network(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a network."""
    case = CASES[name]
    batch = case.batches[2 if args.quick else on_cpu()]
    turn = case.steps * (1 if on_cpu() else 10)
    turn = max(turn // 3, 1) if args.quick else turn
    kinds = (args.quick and case.kinds_quick) or (on_cpu() and case.kinds) or steps.KINDS
    whole = networks.build(case.name, **({"depth": 2 if on_cpu() else 6} if name == "vit" else {}))
    data = datasets.random_images(case.shape, max(1024, 4 * batch), seed=1)
    # What the engine would choose, without tracing both.
    mode = "dispatch" if name in ("lenet5", "resnet18") and on_cpu() else "fused"
    sides, failed, missing = {}, {}, {}
    for kind in kinds:
        begin = time.perf_counter()
        # Moments cost so much more that few steps a turn are enough.
        n = max(turn // 10, 1) if kind == "moments" else turn
        try:
            sides[kind] = steps.warm(steps.side(kind, whole, data, batch, n, mode))
        # A kind that a network cannot take is reported, and the others are measured.
        except Exception as error:
            failed[kind] = f"{type(error).__name__}: {error}"
        report.say(f"{name}: {kind} compiled and warm in {time.perf_counter() - begin:.0f} s")
    weights = weights_of(sides["global"])
    sides |= steps.limits(whole, weights, data, batch, turn)
    begin = time.perf_counter()
    make_peers = {
        "PyTorch": lambda: peers.pytorch(
            args.peer_python, name, whole, case.shape, len(data[0]), batch, turn
        ),
        "jaxpruner": lambda: peers.jaxpruner(args.jaxpruner, whole, data, batch, turn, mode),
        "bmr4pml": lambda: peers.bmr4pml(args.bmr4pml, name, data, batch, turn),
    }  # fmt: skip
    if args.quick:
        del make_peers["bmr4pml"]  # a minute to compile
    sides |= peers.found(make_peers, missing)
    report.say(f"{name}: peers {missing or 'are'} ready in {time.perf_counter() - begin:.0f} s")
    steps.take_turns(sides, args.repeats, args.seconds)
    rules = {"spike-and-slab": criteria.SpikeAndSlab(), "shrinkage": criteria.Shrinkage()}
    parts, repeats = sides["global"].parts, min(args.repeats, 5)
    return {
        "parameters": weights,
        "batch": batch,
        "flops_deterministic": steps.flops(whole, data, batch),
        "data_bytes": sum(a.nbytes for a in data),
        "steps": summary(sides),
        "failed": failed,
        "not_timed": missing,
        "reduction": {name: steps.reduction(parts, rule, repeats) for name, rule in rules.items()},
    }


def scaling(axis: str, value: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of an MLP of one width, depth or batch size."""
    width = value if axis == "width" else 400
    hidden = (width,) * {"width": 2, "depth": value}.get(axis, 5)
    batch = value if axis == "batch" else 128
    whole = bmr.zoo.MLP(784, hidden, 10, key=jax.random.key(0))
    data = datasets.random_images(GREY, max(1024, 2 * batch), seed=1)
    turn = 5 if args.quick else 10
    sides = {
        kind: steps.warm(steps.side(kind, whole, data, batch, turn, "fused"))
        for kind in (SWEPT[:2] if args.quick else SWEPT)
    }
    weights = weights_of(sides["global"])
    sides |= steps.limits(whole, weights, data, batch, turn)
    steps.take_turns(sides, args.repeats, args.seconds / 5)
    return {
        "parameters": weights,
        "hidden": list(hidden),
        "batch": batch,
        "flops_deterministic": steps.flops(whole, data, batch),
        "steps": summary(sides),
    }


def devices(value: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of so many devices, over which batches or parameters are divided, beside one."""
    if len(jax.devices()) < value:
        return {"too_few": len(jax.devices())}
    batch, whole = 512, networks.build("MLP 5x400")
    data = datasets.random_images(GREY, 2 * batch, seed=1)
    places: dict[str, Any] = {"one": None}
    places |= {axis: Placement(jax.make_mesh((value,), (axis,))) for axis in ("data", "model")}
    sides = {
        name: steps.warm(steps.side("global", whole, data, batch, 5, "fused", place))
        for name, place in places.items()
    }
    steps.take_turns(sides, args.repeats, args.seconds / 5)
    return {
        "parameters": weights_of(sides["one"]),
        "batch": batch,
        "data_bytes": sum(a.nbytes for a in data),
        "virtual": on_cpu(),
        "steps": summary(sides, beside="one"),
    }


def seeds(estimator: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of ten seeds of a UCI regression side by side, beside one."""
    if args.data_root:
        train, name = datasets.regression("boston", args.data_root).train, "boston"
    else:
        rng = np.random.default_rng(0)
        train = rng.standard_normal((455, 13)), rng.standard_normal(455)
        name = "random, as large as boston"
    train = tuple(jax.numpy.asarray(a, jax.numpy.float32) for a in train)
    many = jax.random.split(jax.random.key(0), SEEDS)
    epoch = ESTIMATORS[estimator] // (10 if args.quick else 1)
    size = {"num_epochs": 4, "steps_per_epoch": epoch, "batch_size": 16}
    settings: dict[str, Any] = size | {
        "criterion": criteria.Shrinkage(),
        "schedule": schedules.Every(wait=1),
        "optimizer": optax.adabelief(1e-2),
        "options": bmr.FitOptions(estimator=estimator, kl_warmup=0),
        "progress": False,
    }
    small = bmr.zoo.MLP(13, (50,), 1, key=jax.random.key(0))
    program = bmr.programs.regression(small, bmr.priors.NormalPrior(1.0), precision=(1.0, 1.0))
    runs = {
        "one": lambda: [bmr.sparsify(program, train, key=many[0], **settings)],
        "many": lambda: bmr.ensemble(program, train, keys=many, **settings),
    }
    times = {}
    for side, run in runs.items():
        begin = time.perf_counter()
        results = run()
        times[side] = {"seconds": time.perf_counter() - begin, **results[0].timing}
    sides = steps.seeds(program, estimator, train, 16, min(epoch, 500), SEEDS)
    steps.take_turns(sides, args.repeats, args.seconds / 2)
    found = summary(sides, beside="one")
    return {"data": name, "seeds": SEEDS, **size, "runs": times, "steps": found}


MEASURES = {"network": network, "scaling": scaling, "devices": devices, "seeds": seeds}


def worker(job: dict[str, Any], args: argparse.Namespace) -> None:
    """Measure in this process and print the row."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    row = MEASURES[job["what"]](*list(job.values())[1:], args)
    stats = jax.devices()[0].memory_stats() or {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row |= {
        "worker_seconds": time.perf_counter() - begin,
        "process_peak_mib": (peak - before) / 1024,
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
    }
    processes.print_row(row)


def jobs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what is to be measured, a process each."""
    axes, counts = (QUICK_AXES, QUICK_DEVICES) if args.quick else (AXES, DEVICES)
    ways = [(axis, value) for axis, values in axes.items() for value in values]
    estimators = list(ESTIMATORS)[:1] if args.quick else list(ESTIMATORS)
    found = [{"what": "network", "name": name} for name in args.networks]
    found += [{"what": "scaling", "axis": axis, "value": value} for axis, value in ways]
    found += [{"what": "devices", "value": value} for value in counts]
    found += [{"what": "seeds", "estimator": estimator} for estimator in estimators]
    return [job for job in found if job["what"] in args.only]


def settings_of(job: dict[str, Any]) -> dict[str, str]:
    """Return what a job's process has in its environment."""
    env = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    if job["what"] == "devices":
        flag = f"--xla_force_host_platform_device_count={job['value']}"
        env["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    return env


def cpu_model() -> str:
    """Return what the CPU calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), "unknown")


def main() -> None:
    """Measure what is missing, a process each, and write tables and plot."""
    parser = options.parser(
        __doc__, "speed", seeds=None, quick="smaller, with fewer turns", report=True
    )
    parser.add_argument("--networks", nargs="+", choices=CASES, help="all; not resnet18 if quick")
    parser.add_argument("--only", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side at most")
    parser.add_argument("--seconds", type=float, default=30, help="of the turns of a network")
    parser.add_argument("--cores", type=int, help="use the first so many; all by default")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--jaxpruner", default="installed", help="folder of a clone")
    parser.add_argument("--bmr4pml", default="installed", help="folder of a clone")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.networks is None:
        # The compilation of the deepest alone takes a minute.
        args.networks = [name for name in CASES if not (args.quick and name == "resnet18")]
    if args.quick:
        args.repeats, args.seconds = min(args.repeats, 3), min(args.seconds, 5)
    if args.worker:
        worker(json.loads(args.worker), args)
        return
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    rows = Rows(args.out)
    for job in [] if args.report else jobs(args):
        if rows.has(**job, quick=args.quick):
            continue
        begin, load = time.perf_counter(), os.getloadavg()[0]
        words = [*sys.argv[1:], "--worker", json.dumps(job)]
        row = processes.measured("benchmarks.costs.speed", *words, env=settings_of(job))
        where = {**environment(), "cpu": cpu_model(), "load_average_before": load}
        rows.add({**job, "quick": args.quick, **row, **where})
        report.say(f"{job}: {time.perf_counter() - begin:.0f} s")
        report.write(rows)
    report.write(rows)


if __name__ == "__main__":
    main()

"""What every kind of step costs, what it costs as a network grows, and how far that is from the limit.

    python benchmarks/speed.py --data-root DIR

LeNet-5, an MLP of 100-100 and one of 5 x 400, a ViT and a ResNet-18 on random data, and ten seeds of a UCI
regression beside one. A network has a process of its own, in which its steps are compiled, warmed up, and
then taken in turn: compare figures within a row. In turn with them go what no step can beat (a stream over
the bytes that a step must move, a matrix product of as many operations as the deterministic step has) and,
where they are installed, other people's steps: PyTorch in this Python or the one of ``--peer-python``,
jaxpruner and bmr4pml installed or in a clone. A stopped command goes on with what is missing. ``--quick``
takes smaller batches of the large networks, fewer kinds and fewer turns, and no ResNet: five minutes on
two cores.
``--report`` only writes tables and plot.

On a CPU, several devices are virtual ones that share its cores: they show what dividing costs, and no gain.
There, the ViT has two blocks, and it and the ResNet-18 fewer kinds of steps, for the time that these take
to compile.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
import speed_report as report

ESTIMATORS = {"global": 2000, "local": 2000, "moments": 500}  # steps of an epoch
SEEDS = 10
WHAT = ("network", "scaling", "devices", "seeds")
# What is on its way to a limit is asked of these.
SWEPT = ("deterministic", "global", "local")
PLAIN = ("deterministic", "global")


@dataclass(frozen=True)
class Case:
    """How a network is timed.

    Attributes:
        shape: Of an input.
        steps: Steps a turn, on CPU; ten times as many on an accelerator.
        batch: Data a step.
        batch_on_cpu: The same where there is no accelerator.
        batch_quick: The same with ``--quick``.
        kinds: Kinds of steps on CPU; None for all.
        kinds_quick: The same with ``--quick``.
    """

    shape: tuple[int, ...]
    steps: int
    batch: int = 128
    batch_on_cpu: int = 128
    batch_quick: int = 128
    kinds: tuple[str, ...] | None = None
    kinds_quick: tuple[str, ...] | None = None


CASES = {
    "lenet5": Case((1, 28, 28), 10, kinds_quick=(*SWEPT, "noise")),
    "mlp": Case((1, 28, 28), 100, kinds_quick=(*SWEPT, "map", "noise")),
    "mlp400": Case((1, 28, 28), 10, kinds_quick=SWEPT),
    "vit": Case(
        (1, 32, 32),
        1,
        batch_on_cpu=32,
        batch_quick=4,
        kinds=(*SWEPT, "map", "moments", "noise"),
        kinds_quick=PLAIN,
    ),
    "resnet18": Case((3, 32, 32), 1, batch_on_cpu=8, batch_quick=2, kinds=PLAIN, kinds_quick=PLAIN),
}
# Width of two hidden layers; number of layers of 400; data a step of 5 x 400, whose row is on both ways;
# devices of a batch of 512.
AXES = {"width": (100, 400, 1600), "depth": (2, 8), "batch": (32, 512)}
DEVICES = (2, 4)
QUICK_AXES = {"width": (100,), "depth": (2,), "batch": (32,)}
QUICK_DEVICES = (2,)


def build(name: str, sizes: Any = (400,) * 5) -> Any:
    """Return a network of the zoo."""
    import jax

    from bmrjax import zoo

    key, on_cpu = jax.random.key(0), jax.default_backend() == "cpu"
    return {
        "lenet5": lambda: zoo.LeNet5(key=key),
        "mlp": lambda: zoo.MLP(784, (100, 100), 10, key=key),
        "mlp400": lambda: zoo.MLP(784, sizes, 10, key=key),
        "vit": lambda: zoo.ViT(depth=2 if on_cpu else 6, key=key),
        "resnet18": lambda: zoo.resnet18(small_images=True, key=key),
    }[name]()


def arrays(shape: tuple[int, ...], rows: int) -> Any:
    """Return random images and labels."""
    import jax

    key = jax.random.key(1)
    return jax.random.normal(key, (rows, *shape)), jax.random.randint(key, (rows,), 0, 10)


def driver(name: str) -> str:
    """Return how steps are repeated: what the engine would choose, without tracing both."""
    import jax

    convolutions = name in ("lenet5", "resnet18")
    return "dispatch" if convolutions and jax.default_backend() == "cpu" else "fused"


def summary(sides: Any, *, beside: str = "deterministic") -> dict[str, Any]:
    """Return the figures of sides, each with its ratio to one of them."""
    import speed_steps

    return {
        name: {
            "milliseconds": one.milliseconds,
            "median_ms": one.median,
            "steps_a_turn": one.steps,
            f"ratio_to_{beside.replace(' ', '_')}": speed_steps.ratio(one, sides[beside]),
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
    import jax
    import speed_peers as peers
    import speed_steps

    from bmrjax import criteria

    case, on_cpu = CASES[name], jax.default_backend() == "cpu"
    batch = case.batch_quick if args.quick else case.batch_on_cpu if on_cpu else case.batch
    steps = case.steps if on_cpu else 10 * case.steps
    steps = max(steps // 3, 1) if args.quick else steps
    kinds = (args.quick and case.kinds_quick) or (on_cpu and case.kinds) or speed_steps.KINDS
    whole, data, mode = build(name), arrays(case.shape, max(1024, 4 * batch)), driver(name)
    sides, failed, missing = {}, {}, {}
    for kind in kinds:
        begin = time.perf_counter()
        # Moments cost so much more that few steps a turn are enough.
        n = max(steps // 10, 1) if kind == "moments" else steps
        try:
            sides[kind] = speed_steps.warm(speed_steps.side(kind, whole, data, batch, n, mode))
        # A kind that a network cannot take is reported, and the others are measured.
        except Exception as error:
            failed[kind] = f"{type(error).__name__}: {error}"
        report.say(f"{name}: {kind} compiled and warm in {time.perf_counter() - begin:.0f} s")
    weights = weights_of(sides["global"])
    sides |= speed_steps.limits(whole, weights, data, batch, steps)
    begin = time.perf_counter()
    make_peers = {
        "PyTorch": lambda: peers.pytorch(
            args.peer_python, name, whole, case.shape, len(data[0]), batch, steps,
            compile_too=args.peer_compile,
        ),
        "jaxpruner": lambda: peers.jaxpruner(args.jaxpruner, whole, data, batch, steps, mode),
        "bmr4pml": lambda: peers.bmr4pml(args.bmr4pml, name, data, batch, steps),
    }  # fmt: skip
    if args.quick:
        del make_peers["bmr4pml"]  # a minute to compile
    sides |= peers.found(make_peers, missing)
    report.say(f"{name}: peers {missing or 'are'} ready in {time.perf_counter() - begin:.0f} s")
    speed_steps.take_turns(sides, args.repeats, args.seconds)
    rules = {"spike-and-slab": criteria.SpikeAndSlab(), "shrinkage": criteria.Shrinkage()}
    parts, repeats = sides["global"].parts, min(args.repeats, 5)
    return {
        "parameters": weights,
        "batch": batch,
        "flops_deterministic": speed_steps.flops(whole, data, batch),
        "data_bytes": sum(a.nbytes for a in data),
        "steps": summary(sides),
        "failed": failed,
        "not_timed": missing,
        "reduction": {
            rule: speed_steps.reduction(parts, criterion, repeats)
            for rule, criterion in rules.items()
        },
    }


def scaling(axis: str, value: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of an MLP of one width, depth or batch size."""
    import speed_steps

    width = value if axis == "width" else 400
    depth = {"width": 2, "depth": value}.get(axis, 5)
    batch = value if axis == "batch" else 128
    hidden = (width,) * depth
    whole, data = build("mlp400", hidden), arrays((1, 28, 28), max(1024, 2 * batch))
    steps = 5 if args.quick else 10
    sides = {
        kind: speed_steps.warm(speed_steps.side(kind, whole, data, batch, steps, "fused"))
        for kind in (SWEPT[:2] if args.quick else SWEPT)
    }
    weights = weights_of(sides["global"])
    sides |= speed_steps.limits(whole, weights, data, batch, steps)
    speed_steps.take_turns(sides, args.repeats, args.seconds / 5)
    return {
        "parameters": weights,
        "hidden": list(hidden),
        "batch": batch,
        "flops_deterministic": speed_steps.flops(whole, data, batch),
        "steps": summary(sides),
    }


def devices(value: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of so many devices, over which batches or parameters are divided, beside one."""
    import jax
    import speed_steps

    from bmrjax.infer.placement import Placement

    if len(jax.devices()) < value:
        return {"too_few": len(jax.devices())}
    batch = 512
    whole, data = build("mlp400"), arrays((1, 28, 28), 2 * batch)
    places: dict[str, Any] = {"one": None}
    places |= {axis: Placement(jax.make_mesh((value,), (axis,))) for axis in ("data", "model")}
    sides = {
        name: speed_steps.warm(
            speed_steps.inferred("global", whole, data, batch, 5, "fused", place)
        )
        for name, place in places.items()
    }
    speed_steps.take_turns(sides, args.repeats, args.seconds / 5)
    return {
        "parameters": weights_of(sides["one"]),
        "batch": batch,
        "data_bytes": sum(a.nbytes for a in data),
        "virtual": jax.default_backend() == "cpu",
        "steps": summary(sides, beside="one"),
    }


def seeds(estimator: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of ten seeds of a UCI regression side by side, beside one."""
    import jax
    import numpy as np
    import optax
    import speed_steps

    import bmrjax as bmr
    from bmrjax import criteria, schedules

    if args.data_root:
        import beckers2024

        train, name = beckers2024.load("boston", args.data_root).train, "boston"
    else:
        rng = np.random.default_rng(0)
        train = rng.standard_normal((455, 13)), rng.standard_normal(455)
        name = "random, as large as boston"
    train = tuple(jax.numpy.asarray(a, jax.numpy.float32) for a in train)
    many = jax.random.split(jax.random.key(0), SEEDS)
    size = {
        "num_epochs": 4,
        "steps_per_epoch": ESTIMATORS[estimator] // (10 if args.quick else 1),
        "batch_size": 16,
    }
    settings: dict[str, Any] = size | {
        "criterion": criteria.Shrinkage(),
        "schedule": schedules.Every(wait=1),
        "optimizer": optax.adabelief(1e-2),
        "options": bmr.FitOptions(estimator=estimator),
        "progress": False,
    }
    program = bmr.programs.regression(
        bmr.zoo.MLP(13, (50,), 1, key=jax.random.key(0)),
        bmr.priors.NormalPrior(1.0),
        precision=(1.0, 1.0),
    )
    runs = {
        "one": lambda: [bmr.sparsify(program, train, key=many[0], **settings)],
        "many": lambda: bmr.ensemble(program, train, keys=many, **settings),
    }
    times = {}
    for name_of_side, run in runs.items():
        begin = time.perf_counter()
        results = run()
        times[name_of_side] = {"seconds": time.perf_counter() - begin, **results[0].timing}
    turn = min(size["steps_per_epoch"], 500)
    sides = speed_steps.seeds(program, estimator, train, size["batch_size"], turn, SEEDS)
    speed_steps.take_turns(sides, args.repeats, args.seconds / 2)
    steps = summary(sides, beside="one")
    return {"data": name, "seeds": SEEDS, **size, "runs": times, "steps": steps}


MEASURES = {"network": network, "scaling": scaling, "devices": devices, "seeds": seeds}


def worker(job: dict[str, Any], args: argparse.Namespace) -> None:
    """Measure in this process and print the row."""
    import jax

    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    row = MEASURES[job["what"]](*list(job.values())[1:], args)
    stats = jax.devices()[0].memory_stats() or {}
    row |= {
        "worker_seconds": time.perf_counter() - begin,
        "process_peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
    }
    print("ROW " + json.dumps(row), flush=True)


def jobs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what is to be measured, a process each."""
    axes, counts = (QUICK_AXES, QUICK_DEVICES) if args.quick else (AXES, DEVICES)
    found = [{"what": "network", "name": name} for name in args.networks]
    found += [
        {"what": "scaling", "axis": axis, "value": value}
        for axis, values in axes.items()
        for value in values
    ]
    found += [{"what": "devices", "value": value} for value in counts]
    found += [
        {"what": "seeds", "estimator": estimator}
        for estimator in (list(ESTIMATORS)[:1] if args.quick else ESTIMATORS)
    ]
    return [job for job in found if job["what"] in args.only]


def settings_of(job: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a job's process."""
    env = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    if job["what"] == "devices":
        flag = f"--xla_force_host_platform_device_count={job['value']}"
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flag}"
    return env


def cpu_model() -> str:
    """Return what the CPU calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), "unknown")


def main() -> None:
    """Measure what is missing, a process each, and write tables and plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--data-root", default=None, help="folder with uci/boston.csv")
    parser.add_argument("--networks", nargs="+", choices=CASES, help="all; not resnet18 if quick")
    parser.add_argument("--only", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side at most")
    parser.add_argument("--seconds", type=float, default=30, help="of the turns of a network")
    parser.add_argument("--cores", type=int, help="use the first so many; all by default")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--peer-compile", action="store_true", help="try torch.compile too")
    parser.add_argument("--jaxpruner", default="installed", help="folder of a clone")
    parser.add_argument("--bmr4pml", default="installed", help="folder of a clone")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
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
    default = Path("runs/speed_quick" if args.quick else "benchmarks/results/speed")
    rows = records.Rows(args.out or default)
    for job in [] if args.report else jobs(args):
        if rows.has(**job, quick=args.quick):
            continue
        begin, load = time.perf_counter(), os.getloadavg()[0]
        words = [sys.executable, __file__, *sys.argv[1:], "--worker", json.dumps(job)]
        out = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=settings_of(job))
        lines = [line for line in out.stdout.splitlines() if line.startswith("ROW ")]
        if out.returncode or not lines:
            raise SystemExit(f"{job} failed with exit code {out.returncode}")
        where = {**records.environment(), "cpu": cpu_model(), "load_average_before": load}
        rows.add({**job, "quick": args.quick, **json.loads(lines[-1][4:]), **where})
        report.say(f"{job}: {time.perf_counter() - begin:.0f} s")
        report.write(rows)
    report.write(rows)


if __name__ == "__main__":
    main()

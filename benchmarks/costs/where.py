"""Where the time of a run goes: CPU seconds by phase in six jobs, from the start of Python to the last file.

    python -m benchmarks.costs.where --data-root DIR
    python -m benchmarks.costs.where --data-root DIR --check

A job has a process of its own, without compiled programs of earlier runs. Beside it, in the same process, a
deterministic optax loop takes as many steps: the log density of the same program at a point instead of a draw
from a posterior, on batches of the same size, compiled as the run's own steps are; and as many bytes are
copied as the steps read and write at least: a batch, and the parameters with the optimiser's state. CPU
seconds depend on what else the machine does much less than time by the clock; they count all threads.

``--check`` measures again and fails if a phase's share of a job is more than 15 % above the committed one. A
share must also have grown by 2 % of the whole: below that, it is noise. It is for a machine that runs it
every night, not for each change.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, environment, table

GROWTH, NOISE = 0.15, 0.02
# Steps of an epoch of the image networks, here and with ``--whole``: a pass over Fashion-MNIST.
STEPS, WHOLE = 100, 468
NAMES = ("regression", "demo", "csv", "lenet5", "mlp", "boston")
WHAT = {
    "regression": "README's regression",
    "demo": "`make demo`: digits",
    "csv": "CSV of 500 rows",
    "lenet5": "LeNet-5, Fashion-MNIST, 10 epochs",
    "mlp": "MLP 5×400, Fashion-MNIST, 10 epochs",
    "boston": "UCI boston by `local`",
}


def regression(_: argparse.Namespace, folder: Path) -> None:
    """Sparsify the regression of the README."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import bmrjax as bmr

    def program(x: Any, y: Any = None) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([100]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    x = jax.random.normal(jax.random.key(2), (200, 100))
    y = x[:, jnp.array([3, 17, 42, 60, 99])] @ jnp.array([1.5, -2.0, 0.8, -1.0, 2.5])
    y = y + 0.5 * jax.random.normal(jax.random.key(3), (200,))
    settings: Any = {"key": jax.random.key(4), "batch_size": None, "progress": False}
    bmr.sparsify(program, (x, y), **settings)


def made_table(_: Path | None) -> Any:
    """Return a table of 500 rows, of whose eleven inputs three count."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.normal(size=500) for i in range(10)}
    columns |= {"site": rng.choice(["north", "south", "west"], 500)}
    y = 2 * columns["x0"] - columns["x3"] + np.where(columns["site"] == "west", 1.5, 0.0)
    return pd.DataFrame({**columns, "y": y + 0.5 * rng.normal(size=500)})


def boston(data_root: Path | None) -> Any:
    """Return UCI's boston."""
    from benchmarks.common import datasets

    return datasets.table("boston", data_root)


def by_command(
    *words: str, table: Callable[[Path | None], Any] | None = None
) -> Callable[[argparse.Namespace, Path], None]:
    """Return a job that is a command, on a table that is written for it if there is one."""

    def run(args: argparse.Namespace, folder: Path) -> None:
        import os

        from bmrjax.cli import main

        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        given = list(words)
        if table is not None:
            path = folder / "table.csv"
            table(args.data_root).to_csv(path, index=False)
            given += ["--data", str(path), "--target", "y"]
        if "fashion_mnist" in given:
            given += [
                "--num-epochs",
                "10",
                "--steps-per-epoch",
                str(WHOLE if args.whole else STEPS),
            ]
            given += ["--data-root", str(args.data_root)] if args.data_root else []
        main(["sparsify", *given, "--out", str(folder / "run"), "--no-progress"])

    return run


JOBS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "regression": regression,
    "demo": by_command("--data", "digits"),
    "csv": by_command(table=made_table),
    "lenet5": by_command("--data", "fashion_mnist", "--net", "lenet5"),
    "mlp": by_command("--data", "fashion_mnist", "--hidden", *["400"] * 5),
    "boston": by_command("--estimator", "local", table=boston),
}


def deterministic_seconds(fit: Any, num_steps: int, at_most: int) -> float:
    """Return the CPU seconds of as many steps of a plain optax loop on the same program and data.

    Args:
        fit: The run's `Fit`.
        num_steps: Steps of the run.
        at_most: So many are taken after warming up, and their seconds scaled.
    """
    import time

    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer.util import potential_energy

    from bmrjax.infer.arguments import arguments
    from bmrjax.infer.init import at_start
    from bmrjax.infer.loop import Loop
    from bmrjax.infer.tracing import is_latent, sites_of

    data, size = fit.source, fit.engine.batch_size
    model = numpyro.handlers.seed(fit.model, jax.random.key(0))
    optimizer = optax.adabelief(1e-2)

    def first() -> dict[str, Any]:
        args, kwargs = arguments(fit.example)
        sites = sites_of(at_start(fit.model), args, kwargs)
        latent = {n: s for n, s in sites.items() if is_latent(s)}
        return {n: dist.biject_to(s["fn"].support).inv(s["value"]) for n, s in latent.items()}

    def step(carry: Any, i: Any, data: Any) -> Any:
        params, opt_state = carry
        batch = data
        if size < fit.num_data:
            start = (i * size) % (fit.num_data - size + 1)
            batch = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), data)
        args, kwargs = arguments(batch)
        grads = jax.grad(lambda values: potential_energy(model, args, kwargs, values))(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    with jax.numpy_dtype_promotion("standard"):
        params = jax.jit(first)()
        carry = jax.tree.map(jnp.copy, (params, optimizer.init(params)))
        loop, taken = Loop(step), min(num_steps, at_most)
        carry = jax.block_until_ready(loop(carry, taken, data))
        begin = time.process_time()
        jax.block_until_ready(loop(carry, taken, data))
    return (time.process_time() - begin) * num_steps / taken


def stream_seconds(fit: Any, num_steps: int, state_bytes: int) -> float:
    """Return the CPU seconds of copying what so many steps read and write at least.

    Args:
        fit: The run's `Fit`.
        num_steps: Steps of the run.
        state_bytes: Of the parameters and the optimiser's state, which a step reads and writes.
    """
    import time

    import jax
    import numpy as np

    rows = sum(leaf.nbytes for leaf in jax.tree.leaves(fit.source)) / fit.num_data
    moved = num_steps * (rows * fit.engine.batch_size + 2 * state_bytes)
    block, times = np.ones(2**24), 10  # 128 MiB
    to = np.zeros_like(block)
    begin = time.process_time()
    for _ in range(times):
        np.copyto(to, block)
    # A copy reads and writes.
    return (time.process_time() - begin) / (2 * times * block.nbytes) * moved


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a job, in the process that runs it."""
    from benchmarks.costs.phases import PHASES, Phases

    phases = Phases()
    with tempfile.TemporaryDirectory() as name, phases.recording():
        JOBS[args.job](args, Path(name))
    seconds = {phase: phases.seconds[phase] for phase in PHASES}
    plain = deterministic_seconds(phases.fits[0], phases.steps, 400)
    return {
        "job": args.job,
        "cpu_seconds": seconds,
        "shares": phases.shares(),
        "total": sum(seconds.values()),
        "steps": phases.steps,
        "deterministic": plain,
        "stream": stream_seconds(phases.fits[0], phases.steps, phases.state_bytes),
        **environment(),
    }


def middle(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a job with the middle total of several."""
    total = statistics.median_low(row["total"] for row in rows)
    return {**next(row for row in rows if row["total"] == total), "repeats": len(rows)}


def grown(old: dict[str, float], new: dict[str, float]) -> list[str]:
    """Return which shares have grown by more than 15 % and by more than 2 % of the whole."""
    return [
        f"{phase} from {old[phase]:.1%} to {new[phase]:.1%}"
        for phase in new
        if new[phase] > (1 + GROWTH) * old[phase] and new[phase] > old[phase] + NOISE
    ]


def write_table(rows: Rows) -> None:
    """Write the seconds and shares of each job."""
    lines = []
    for row in rows.rows:
        seconds, shares = row["cpu_seconds"], row["shares"]
        cells = [f"{seconds[phase]:.1f} ({shares[phase]:.0%})" for phase in seconds]
        measured = seconds["measuring"] + seconds["evaluation"]
        lines.append([
            WHAT[row["job"]], *cells, f"{row['total']:.1f}", f"{row['steps']:,}",
            f"{row['deterministic']:.1f}", f"{row['stream']:.2f}", f"{measured / seconds['training']:.2f}",
        ])  # fmt: skip
    header = ["job", *(rows.rows[0]["cpu_seconds"] if rows.rows else ()), "total", "steps"]
    header += ["deterministic loop", "stream of bytes", "(measuring + evaluation) / training"]
    rows.write_table(table(header, lines))


def main() -> None:
    """Measure the jobs, or compare them with the committed rows."""
    parser = options.parser(__doc__, "where", seeds=None, report=True)
    parser.add_argument("--jobs", nargs="+", choices=NAMES, default=NAMES, help="which; all")
    parser.add_argument("--repeats", type=int, default=1, help="processes per job: 1")
    parser.add_argument(
        "--whole", action="store_true", help=f"epochs of {WHOLE} steps, not of {STEPS}"
    )
    parser.add_argument("--check", action="store_true", help="compare with the committed rows")
    parser.add_argument("--job", choices=NAMES, help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.job is not None:
        processes.print_row(measure(args))
        return
    rows = Rows(args.out)
    failed = []
    for job in () if args.report else args.jobs:
        if args.check and not rows.has(job=job):
            print(f"{job}: no committed row to compare with.")
            continue
        words = ["--job", job, *(["--whole"] if args.whole else [])]
        if args.data_root is not None:
            words += ["--data-root", str(args.data_root)]
        found = [processes.measured("benchmarks.costs.where", *words) for _ in range(args.repeats)]
        new = middle(found)
        if args.check:
            (old,) = rows.where(job=job)
            failed += [f"{job}: {each}" for each in grown(old["shares"], new["shares"])]
            continue
        rows.rows = [row for row in rows.rows if row["job"] != job]
        rows.add(new)
    if args.check:
        print("\n".join(failed) or "No share has grown by more than 15 %.")
        raise SystemExit(1 if failed else 0)
    rows.rows.sort(key=lambda row: NAMES.index(row["job"]))
    rows.save()
    write_table(rows)


if __name__ == "__main__":
    main()

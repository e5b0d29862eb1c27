"""Finished runs for campaigns to damage: one from Python, with checkpoints, and three of the command line."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import bmrjax as bmr
from bmrjax import cli

# The last compares fits at several temperatures, each with a folder of its own.
RUNS = ("python", "regression", "classes", "colder")


def program(x: Any, y: Any = None) -> None:
    """A linear regression."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)


def python_data() -> tuple[jax.Array, jax.Array]:
    """Return inputs and targets."""
    x = jax.random.normal(jax.random.key(0), (60, 6))
    noise = 0.3 * jax.random.normal(jax.random.key(1), (60,))
    return x, x @ jnp.array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0]) + noise


def python_run(
    folder: Path, *, num_epochs: int = 8, resume: bool = False, callbacks: Sequence[Any] = ()
) -> Any:
    """Run a fit with a checkpoint after each epoch."""
    return bmr.sparsify(
        program,
        python_data(),
        key=jax.random.key(2),
        num_epochs=num_epochs,
        steps_per_epoch=20,
        criterion=bmr.criteria.SpikeAndSlab(),
        schedule=bmr.schedules.Verified(wait=1, refit=1, min_fraction=0.02, cooldown=1),
        checkpoints=bmr.Checkpoints(folder, interval=0.0, resume=resume),
        callbacks=callbacks,
        progress=False,
    )


def table(folder: Path, *, classes: bool) -> Path:
    """Write a small table with a category, and return its path."""
    rng = np.random.default_rng(3)
    rows = ["age,height,place,target"]
    for _ in range(80):
        age, height, place = rng.normal(40, 9), rng.normal(170, 8), rng.choice(["a", "b", "c"])
        value = 0.1 * age + (place == "a") + 0.1 * rng.normal()
        target = ("low" if value < 4.3 else "high") if classes else f"{value:.3f}"
        rows.append(f"{age:.2f},{height:.2f},{place},{target}")
    path = folder / "data.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def wave(folder: Path) -> Path:
    """Write a table that a posterior at temperature 1 does not learn in few epochs, and return its path."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 300)
    y = np.sin(6 * x) + 0.02 * rng.normal(size=300)
    path = folder / "data.csv"
    path.write_text(
        "\n".join(["x,y", *(f"{a:.5f},{b:.5f}" for a, b in zip(x, y, strict=True))]) + "\n"
    )
    return path


def command(name: str, folder: Path, data: Path) -> list[str]:
    """Return the command that makes a run."""
    small = ["--hidden", "4", "--num-epochs", "6", "--num-samples", "5"]
    size = ["--hidden", "20", "--num-epochs", "20"] if name == "colder" else small
    words = ["sparsify", "--data", str(data), "--out", str(folder), "--net", "mlp"]
    return [*words, *size, "--no-progress"]


def make_runs(folder: Path) -> None:
    """Write all runs to a folder."""
    for name in RUNS:
        (folder / name).mkdir()
        if name == "python":
            python_run(folder / name).save(folder / name / "model")
            continue
        colder, classes = name == "colder", name == "classes"
        data = wave(folder / name) if colder else table(folder / name, classes=classes)
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(command(name, folder / name, data))

"""A short check of an installed bmrjax: each part that a dependency serves is used once.

    python tools/smoke.py

Needs no optional package. Ends with a line that begins with "smoke: passed".
"""

import csv
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import nnx

import bmrjax as bmr


def check(name: str, *, holds: bool) -> None:
    """Print what was checked; end the process if it does not hold."""
    print(f"{'ok' if holds else 'FAILED'}: {name}", flush=True)
    if not holds:
        raise SystemExit(1)


def regression(folder: Path) -> None:
    """Remove what a regression does not need, with checkpoints, and load the result."""

    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)

    x = jax.random.normal(jax.random.key(0), (100, 5))
    settings = {"key": jax.random.key(1), "num_epochs": 10, "checkpoints": folder / "run"}
    result = bmr.sparsify(program, (x, 2.0 * x[:, 0]), **settings)
    check("regression", holds=result.keep["beta"].tolist() == [True] + [False] * 4)
    settings["checkpoints"] = bmr.Checkpoints(folder / "run", resume=True)
    again = bmr.sparsify(program, (x, 2.0 * x[:, 0]), **settings)
    check("resumed from its checkpoint", holds=again.vfe == result.vfe)
    result.save(folder / "model")
    check("saved and loaded", holds=bmr.load(folder / "model").num_kept == 1)


def networks(folder: Path) -> None:
    """Fit, shrink and save a network of each library."""
    x = jax.random.normal(jax.random.key(0), (256, 4))
    y = (x[:, 0] > 0).astype(int)
    made = {
        "Equinox": eqx.nn.Sequential(
            [
                eqx.nn.Linear(4, 16, key=jax.random.key(1)),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Linear(16, 2, key=jax.random.key(2)),
            ]
        ),
        "Flax NNX": bmr.zoo.NNXMLP(4, [16], 2, rngs=nnx.Rngs(0)),
    }
    for name, network in made.items():
        program = bmr.programs.classifier(network, bmr.priors.Flat())
        result = bmr.sparsify(program, (x, y), key=jax.random.key(3), num_epochs=10)
        check(f"{name}: removed {result.sparsity:.0%}", holds=result.sparsity > 0.3)
        (small,) = result.compact(x[:2]).values()
        file = folder / f"{name[:4]}.bmr"
        bmr.codec.save_network(small, file)
        check(f"{name}: coded", holds=bmr.codec.load_network(file) is not None)


def command_line(folder: Path) -> None:
    """Fit a table and predict it, as a user would."""
    rng = np.random.default_rng(0)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "target"])
        for a, b, c in rng.normal(size=(80, 3)):
            writer.writerow([a, b, c, 3 * a])
    table, out = str(folder / "table.csv"), str(folder / "table")
    run = [sys.executable, "-m", "bmrjax"]
    shown = subprocess.run([*run, "--help"], check=True, capture_output=True, text=True).stdout
    check("help", holds="sparsify" in shown and "report" in shown)
    subprocess.run([*run, "sparsify", "--data", table, "--out", out], check=True)
    found = json.loads((folder / "table" / "results.json").read_text())
    check("a table", holds=found["rmse"] < 0.3 and "a" in found["inputs_kept"])
    words = ["--data", table, "--out", str(folder / "predictions.csv")]
    subprocess.run([*run, "predict", out, *words], check=True)
    subprocess.run([*run, "check", out], check=True)
    file = str(folder / "table.bmr")
    subprocess.run([*run, "compress", out, "--out", file], check=True)
    np.save(folder / "x.npy", rng.normal(size=(3, 3)))
    subprocess.run([*run, "predict", file, "--data", str(folder / "x.npy")], check=True)


def main() -> None:
    """Check all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        regression(folder)
        networks(folder)
        command_line(folder)
    found = " ".join(f"{p} {version(p)}" for p in ("bmrjax", "jax", "numpyro", "equinox", "flax"))
    check("float32 by default", holds=jnp.zeros(1).dtype == jnp.float32)
    print(f"smoke: passed with Python {sys.version.split()[0]}, {found}")


if __name__ == "__main__":
    main()

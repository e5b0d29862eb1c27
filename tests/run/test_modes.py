"""A healthy run under the switches that people set to find faults of their own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.cli.run_sparsify import CONSTANT


def program(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


def healthy_run(impl=None, *, checkpoints=None):
    """Fit, reduce, measure on held-out rows, and predict; return the result."""
    x = jax.random.normal(jax.random.key(0, impl=impl), (40, 3))
    noise = jax.random.normal(jax.random.key(1, impl=impl), (40,))
    y = x @ jnp.array([2.0, 0.0, 0.0]) + jnp.asarray(0.3, x.dtype) * noise
    result = bmr.sparsify(
        program,
        (x, y),
        key=jax.random.key(2, impl=impl),
        num_epochs=6,
        steps_per_epoch=100,
        criterion=bmr.criteria.SpikeAndSlab(),
        schedule=bmr.schedules.Verified(wait=2, refit=1, cooldown=1),
        held_out=bmr.HeldOut((x, y), final_samples=5),
        checkpoints=checkpoints,
        progress=False,
    )
    prediction = result.predict(jax.random.key(3, impl=impl), x, num_samples=5)
    assert prediction.mean.shape == (40,)
    assert repr(result)
    return result


def strict(*more):
    stack = contextlib.ExitStack()
    for switch in (
        jax.debug_nans(new_val=True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        *more,
    ):
        stack.enter_context(switch)
    return stack


@pytest.mark.slow
def test_nans_promotion_ranks_and_leaks_are_clean(tmp_path):
    with strict(jax.checking_leaks()):
        result = healthy_run(checkpoints=bmr.Checkpoints(tmp_path))
    assert result.num_total == 3
    assert all(row["skipped_steps"] == 0 for row in result.history)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("x64", [False, True])
def test_a_trained_network_is_reduced_under_the_switches(x64):
    network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
    with jax.enable_x64(new_val=x64):  # targets in double precision, a network in single
        x = jax.random.normal(jax.random.key(1), (400, 3))
    with strict(jax.enable_x64(new_val=x64)):
        found = bmr.reduce_network(network, (x.astype(jnp.float32), x[:, :1]), keep=0.5)
    assert sum(int(mask.sum()) for mask in found.masks.values()) == 16


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("x64", [False, True])
def test_finished_fits_and_estimators_are_reduced_under_the_switches(x64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    y = x @ [2.0, 0.0, 0.0] + 0.3 * rng.normal(size=80)
    draws = {
        "beta": rng.normal([2.0, 0.0, 0.0], 0.05, (400, 3)),
        "scale": rng.normal(0.3, 0.02, 400),
    }
    with strict(jax.checking_leaks(), jax.enable_x64(new_val=x64)):
        found = bmr.reduce_fit(draws, model=program, data=(x, y), sites=["beta"])
        fitted = bmr.SparseRegressor().fit(x, y)
        predicted = fitted.predict(x)
    assert "beta" in str(found)
    np.testing.assert_array_equal(fitted.selected_, [True, False, False])
    assert np.corrcoef(predicted, y)[0, 1] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["rbg", pytest.param("unsafe_rbg", marks=pytest.mark.slow)])
def test_every_generator_of_random_numbers_works(impl):
    with jax.enable_x64(new_val=impl == "rbg"):  # in double precision too
        assert healthy_run(impl).num_total == 3


CODE = """
import os, sys, warnings
import bmrjax as bmr
import test_modes
warnings.simplefilter("ignore", bmr.FitWarning)
assert not sys.flags.optimize  # which -O leaves out
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
test_modes.healthy_run()
os._exit(7)
"""


@pytest.mark.slow
def test_without_asserts_with_warnings_as_errors_and_in_a_fork_before_the_first_fit():
    words = [sys.executable, "-O", "-W", "error", "-c", CODE]
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        words, cwd=folder, check=False, timeout=600, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr


@pytest.mark.slow
def test_a_command_runs_without_asserts_and_under_the_switches(tmp_path):
    rng = np.random.default_rng(0)
    rows = "\n".join(f"{x:.4f},{2 * x + 0.1 * rng.normal():.4f}" for x in rng.normal(size=60))
    (tmp_path / "d.csv").write_text(f"x,y\n{rows}\n")
    words = [sys.executable, "-O", "-W", "error", "-c", "from bmrjax.cli import script; script()"]
    words += ["sparsify", "--data", str(tmp_path / "d.csv"), "--out", str(tmp_path / "run")]
    words += ["--hidden", "4", "--num-epochs", "4", "--no-progress"]
    switches = {
        "JAX_DEBUG_NANS": "1",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
    }
    done = subprocess.run(
        words,
        check=False,
        timeout=600,
        capture_output=True,
        text=True,
        env={**os.environ, **switches},
    )
    assert done.stderr == ""
    assert done.returncode in (0, CONSTANT)
    assert (tmp_path / "run" / "results.json").is_file()

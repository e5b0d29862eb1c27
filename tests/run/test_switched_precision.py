"""Double precision that is switched on, or off, between two calls, as PyMC and Bambi do."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import bmrjax as bmr
from bmrjax.backend.on_device import on_device

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = X[:, :1] + 0.5 * RNG.normal(size=(200, 1))
SHORT = {"num_epochs": 2, "steps_per_epoch": 20, "progress": False, "batch_size": None}


@contextlib.contextmanager
def double_precision():
    """Switch it on as other libraries do, for all threads."""
    jax.config.update("jax_enable_x64", val=True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", val=False)


def test_an_array_that_a_program_closed_over_is_brought_in_the_precision_that_is_on():
    x = RNG.normal(size=(100, 4))
    keeps = jax.jit(lambda b: x @ b)
    keeps(jnp.ones(4))  # leaves x on the device in single precision
    with double_precision():
        found = on_device(x)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(np.asarray(found), x)


def test_a_finished_fit_is_reduced_in_both():
    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

    y = Y[:, 0]
    guide = AutoNormal(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.01), numpyro.infer.Trace_ELBO())
    fitted = svi.run(jax.random.key(0), 50, X, y, progress_bar=False)

    def reduce():
        fit = bmr.reduce_fit(guide, params=fitted.params, data=(X, y))
        return fit.inclusion_prob["beta"]

    before = reduce()
    with double_precision():
        double = reduce()
    np.testing.assert_allclose(double, before, atol=1e-3)
    np.testing.assert_array_equal(reduce(), before)


@pytest.fixture(scope="module")
def program():
    network = bmr.zoo.MLP(3, [2], 1, key=jax.random.key(0))
    return bmr.programs.regression(network, bmr.priors.Flat())


def test_a_fit_in_single_precision_predicts_in_double(program):
    result = bmr.sparsify(program, (X, Y), key=jax.random.key(0), **SHORT)
    single = result.predict(jax.random.key(1), X)
    with double_precision():
        double = result.predict(jax.random.key(1), X)
    assert double.mean.dtype == double.std.dtype == np.float64
    # Draws differ between the precisions, so the means agree to a fraction of the spread of the 100 draws.
    apart = np.abs(np.asarray(double.mean) - np.asarray(single.mean)) / np.asarray(single.std)
    assert apart.mean() < 0.2


@pytest.mark.slow
def test_a_fit_in_double_precision_is_a_start_in_single(program):
    with double_precision():
        first = bmr.sparsify(program, (X, Y), key=jax.random.key(0), **SHORT)
    options = bmr.FitOptions(start=first)
    one_step = SHORT | {"num_epochs": 1, "steps_per_epoch": 1}
    second = bmr.sparsify(program, (X, Y), key=jax.random.key(0), options=options, **one_step)
    fresh = bmr.sparsify(program, (X, Y), key=jax.random.key(0), **one_step)
    name = "net.layers.0.weight_auto_loc"
    assert second.params[name].dtype == np.float32
    away, near = (
        np.abs(r.params[name] - np.asarray(first.params[name])).max() for r in (fresh, second)
    )
    assert np.isfinite(first.evaluate(jax.random.key(1), (X, Y))["nll"])  # without a warning of JAX
    assert near < 0.3 * away

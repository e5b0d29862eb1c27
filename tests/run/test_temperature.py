"""A likelihood that counts 1 / temperature times: in the fit, in what judges rounds, in what is reported."""

import json
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bmrjax as bmr
from bmrjax import handlers, infer
from bmrjax.run.digests import DIGEST

NOISE = 0.5


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


@pytest.fixture(scope="module")
def data():
    x = jax.random.normal(jax.random.key(0), (200, 4))
    y = x @ jnp.array([1.0, 0.0, 0.15, 0.0]) + NOISE * jax.random.normal(jax.random.key(1), (200,))
    return x, y


@pytest.fixture(scope="module")
def fits(data):
    """The fit at a temperature, made when a test first asks for it."""
    run = partial(
        bmr.sparsify,
        program,
        data,
        key=jax.random.key(2),
        num_epochs=15,
        schedule=bmr.schedules.Verified(wait=6, refit=1),
        batch_size=None,
        progress=False,
        guide=infer.AutoMultivariate(program),
    )
    return cache(lambda temperature: run(options=bmr.FitOptions(temperature=temperature)))


@pytest.mark.parametrize("temperature", [0.25, pytest.param(4.0, marks=pytest.mark.slow)])
def test_posterior_is_that_of_as_many_times_the_data(data, temperature):
    x, y = (np.asarray(part, np.float64) for part in data)
    fit = bmr.sparsify(
        program,
        data,
        key=jax.random.key(3),
        criterion=None,
        optimizer=optax.adabelief(optax.cosine_decay_schedule(2e-2, 4000)),
        num_epochs=40,
        batch_size=None,
        progress=False,
        guide=infer.AutoMultivariate(program),
        options=bmr.FitOptions(temperature=temperature),
    )
    precision = np.eye(4) + x.T @ x / (NOISE**2 * temperature)
    covariance = np.linalg.inv(precision)
    mean = covariance @ x.T @ y / (NOISE**2 * temperature)
    found = fit.posterior()["beta"]
    error = np.abs(np.asarray(found.loc) - mean) / np.sqrt(np.diag(covariance))
    assert error.max() < 0.15
    np.testing.assert_allclose(found.scale, np.sqrt(np.diag(covariance)), rtol=0.1)


@pytest.mark.slow
def test_colder_keeps_more(fits):
    kept = {t: np.asarray(fits(t).keep["beta"]).tolist() for t in (0.25, 25.0)}
    assert kept[0.25] == [True, False, True, False]
    assert kept[25.0] == [True, False, False, False]


def test_vfe_is_that_of_the_tempered_program(fits, data):
    fit = fits(0.25)
    key = jax.random.key(4)
    same = fit.free_energy(key, data, num_samples=4000, temperature=0.25)
    assert fit.vfe == pytest.approx(same, abs=1.0)
    itself, half = (fit.free_energy(key, data, num_samples=4000, temperature=t) for t in (1.0, 0.5))
    # E[-log likelihood] / temperature + KL is linear in 1 / temperature.
    assert same - half == pytest.approx(2 * (half - itself), rel=1e-4)
    assert itself == pytest.approx(fit.free_energy(key, data, num_samples=4000), rel=1e-6)
    assert "at temperature 0.25" in repr(fit)
    assert "temperature" not in repr(replace(fit, temperature=1.0))


def test_is_saved_with_the_result(fits, tmp_path):
    fits(0.25).save(tmp_path / "run")
    assert bmr.load(tmp_path / "run").temperature == 0.25
    document = tmp_path / "run" / "result.json"
    found = json.loads(document.read_text())
    found.pop(DIGEST)  # one that is not there is not compared
    document.write_text(json.dumps(found))
    assert bmr.load(tmp_path / "run").temperature == 0.25
    document.write_text(json.dumps(found | {"temperature": -1.0}))
    with pytest.raises(bmr.DamagedFileError, match="'temperature' is not positive"):
        bmr.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("estimator", "batch_size"),
    [
        ("global", 50),
        pytest.param("local", None, marks=pytest.mark.slow),
        pytest.param("moments", 50, marks=pytest.mark.slow),
    ],
)
def test_every_estimator_counts_it(data, estimator, batch_size):
    network = bmr.zoo.MLP(4, (3,), 1, key=jax.random.key(0))
    model = bmr.programs.regression(network, bmr.priors.Flat())
    values = []
    for temperature in (1.0, 1 / 2, 1 / 3):
        options = bmr.FitOptions(temperature=temperature, estimator=estimator)
        fit = bmr.Fit(model, data, batch_size=batch_size, criterion=None, options=options)
        state = fit.init(jax.random.key(5))
        batch = tuple(part[: batch_size or len(part)] for part in data)
        svi = state.svi
        loss, _ = jax.jit(fit.engine.step.loss)(
            svi.params, svi.mutable, jnp.zeros((), int), {}, 1.0, batch, jax.random.key(6)
        )
        values.append(float(loss))
    assert values[2] - values[1] == pytest.approx(values[1] - values[0], rel=1e-3)
    assert values[1] - values[0] > 10


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_what_is_no_temperature(temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        bmr.FitOptions(temperature=temperature)
    with pytest.raises(ValueError, match="temperature must be positive"):
        handlers.temper(program, temperature=temperature)

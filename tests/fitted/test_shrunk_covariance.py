"""Covariances of few draws, shrunk towards the curvature of the program."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import bmrjax as bmr
from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.shrunk_covariance import shrunk_covariance

SIZE, ROWS, PRIOR_SCALE, NOISE = 24, 40, 0.8, 0.5


def _program(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


@pytest.fixture(scope="module")
def linear():
    """Return data with nearly collinear columns, and the exact posterior."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, SIZE))
    for column in range(1, SIZE, 2):
        x[:, column] = 0.95 * x[:, column - 1] + 0.3 * x[:, column]
    beta = np.where(np.arange(SIZE) % 6 == 0, 0.7, 0.0)
    y = x @ beta + NOISE * rng.normal(size=ROWS)
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(SIZE) / PRIOR_SCALE**2)
    data = x.astype(np.float32), y.astype(np.float32)
    return data, covariance @ x.T @ y / NOISE**2, covariance


def _whole(loc, covariance):
    _, unpack = ravel_pytree({"beta": jnp.zeros(SIZE)})
    return Whole(loc, covariance, unpack)


@pytest.mark.slow
def test_few_draws_of_a_normal_posterior_are_nearly_as_good_as_the_posterior(linear):
    data, loc, covariance = linear
    prior = bmr.reduction.Normal(0.0, PRIOR_SCALE)
    exact = bmr.reduce_fit(loc=loc, covariance=covariance, prior=prior).inclusion_prob["z"]
    draws = np.random.default_rng(1).multivariate_normal(loc, covariance, 300)
    sample = {"loc": loc, "covariance": np.cov(draws.T)}
    noisy = bmr.reduce_fit(prior=prior, **sample).inclusion_prob["z"]
    found = bmr.reduce_fit({"beta": draws}, model=_program, data=data)
    error = np.abs(found.inclusion_prob["beta"] - exact)
    # What is left is the noise of the mean, of the variances, and of the sampler.
    assert error.mean() < 0.6 * np.abs(noisy - exact).mean()
    assert "towards the program's curvature" in str(found)


def test_the_weight_is_one_for_noise_and_small_for_another_shape(linear):
    data, loc, covariance = linear
    draws = np.random.default_rng(2).multivariate_normal(loc, covariance, 500)
    shrunk, weight = shrunk_covariance(_whole(loc, np.cov(draws.T)), _program, data, 500)
    assert weight > 0.8
    scale = np.sqrt(np.diag(np.cov(draws.T)))
    np.testing.assert_allclose(np.sqrt(np.diag(shrunk.covariance)), scale, rtol=1e-6)

    def distance(other):
        sd = np.sqrt(np.diag(other))
        true = np.sqrt(np.diag(covariance))
        return np.abs(other / sd / sd[:, None] - covariance / true / true[:, None]).max()

    assert distance(shrunk.covariance) < 0.35 * distance(np.cov(draws.T))
    # Draws of something else: the mixture stays with what was drawn.
    other = np.eye(SIZE) + 0.8 * (1 - np.eye(SIZE))
    _, weight = shrunk_covariance(_whole(loc, other), _program, data, 500)
    assert weight < 0.05


def test_many_draws_stay_as_they_are(linear):
    data, loc, covariance = linear
    whole = _whole(loc, 1.1 * covariance)
    same, weight = shrunk_covariance(whole, _program, data, 100 * SIZE)
    assert same is whole
    assert weight == 0


def test_a_curvature_that_is_no_maximum_is_left_alone(linear):
    data, loc, covariance = linear

    def saddle(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
        numpyro.factor("up", (beta**2).sum())

    whole = _whole(loc, covariance)
    same, weight = shrunk_covariance(whole, saddle, data, 100)
    assert same is whole
    assert weight == 0

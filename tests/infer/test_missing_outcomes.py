"""Programs whose outcomes are missing in part, by ``obs_mask=``."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import bmrjax as bmr
from bmrjax.handlers import missing_outcomes


def test_missing_outcomes_are_worth_nothing():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3)).astype("f4")
    y = (x[:, 0] + 0.5 * generator.normal(size=40)).astype("f4")
    is_there = np.arange(40) % 4 > 0
    y[~is_there] = 99.0

    def program(x, y, is_there):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ weights, 0.5), obs=y, obs_mask=is_there)

    found = bmr.sparsify(
        program,
        (x, y, is_there),
        key=jax.random.key(0),
        criterion=None,
        batch_size=None,
        num_epochs=20,
        progress=False,
    )
    # The evidence and the posterior of the rows that are there.
    kept, targets = x[is_there], y[is_there]
    precision = np.eye(3) + kept.T @ kept / 0.25
    mean = np.linalg.solve(precision, kept.T @ targets / 0.25)
    covariance = 0.25 * np.eye(len(kept)) + kept @ kept.T
    evidence = -dist.MultivariateNormal(jnp.zeros(len(kept)), covariance).log_prob(targets)
    np.testing.assert_allclose(found.posterior()["weights"].loc, mean, atol=0.03)
    assert evidence - 0.5 < found.vfe < evidence + 1.5


def test_only_sites_that_obs_mask_made_are_completed():
    def program(x, y):
        with numpyro.handlers.mask(
            mask=False
        ):  # a flat prior, under a name that obs_mask= gives too
            effect = numpyro.sample(
                "effect_unobserved", dist.Normal(0, 0.01).expand([2]).to_event(1)
            )
        numpyro.sample("y", dist.Normal(x @ effect, 1.0), obs=y)

    x = np.random.default_rng(0).normal(size=(40, 2)).astype("f4")
    y = (3 * x[:, 0]).astype("f4")
    with numpyro.handlers.trace() as sites, numpyro.handlers.seed(rng_seed=0):
        program(x, y)
    assert missing_outcomes(sites) == []

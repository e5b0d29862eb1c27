"""Spread of predictions: against the posterior samples that they are averages of."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.distributions import transforms
from numpyro.infer import log_likelihood
from test_evaluate import (
    SAMPLES,
    bernoulli,
    coefficients,
    fitted,
    inputs,
    normal,
    posterior_samples,
)

from bmrjax.infer.evaluate import Evaluator

ROWS = inputs().shape[0]
Y = jnp.linspace(-1.0, 1.0, ROWS)


def predicted(model, *data, num_samples=SAMPLES, batch_size=1000, key=2, **options):
    guide, params = fitted(model, *data)
    evaluator = Evaluator(model, guide, batch_size=batch_size)
    key = jax.random.key(key)
    found = evaluator.predict(params, {}, data, key, num_samples=num_samples, **options)
    return found, posterior_samples(guide, params, {}, key)


@pytest.mark.parametrize("batch_size", [None, 10])
def test_the_deviation_has_both_parts(batch_size):
    found, samples = predicted(normal, inputs(), Y, batch_size=batch_size)
    means = np.einsum("ri,si->sr", inputs(), samples["beta"])
    expected = np.sqrt(means.var(0) + np.mean(np.square(samples["scale"])))
    np.testing.assert_allclose(found.std, expected, rtol=1e-4)
    np.testing.assert_allclose(found.mean, means.mean(0), rtol=1e-4, atol=1e-5)
    assert found.samples is None


def test_quantiles_and_samples_are_of_the_predictive():
    count = 3000
    options = {"num_samples": count, "return_samples": True, "levels": (0.1, 0.5)}
    found, _ = predicted(normal, inputs(), Y, batch_size=10, **options)
    assert found.samples.shape == (count, ROWS)
    error = np.asarray(found.std) / np.sqrt(count)
    assert (np.abs(found.samples.mean(0) - found.mean) < 5 * error).all()
    np.testing.assert_allclose(found.samples.std(0), found.std, rtol=0.1)
    expected = np.quantile(found.samples, [0.1, 0.5], axis=0)
    np.testing.assert_allclose(found.at_levels, expected, rtol=1e-5, atol=1e-6)
    low, high = found.interval(0.8)
    np.testing.assert_allclose(low, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(high, np.quantile(found.samples, 0.9, axis=0), rtol=1e-5, atol=1e-6)
    # Noise is drawn anew in every batch: rows 0 and 10 share the posterior samples, and no more.
    noise = found.samples - found.samples.mean(0)
    same_place = np.corrcoef(noise[:, 0], noise[:, 10])[0, 1]
    assert abs(same_place) < 0.5


def test_levels_that_are_not_there():
    found, _ = predicted(normal, inputs(), Y)
    low, high = found.interval()
    assert (low < high).all()
    assert found.quantiles([0.5]).shape == (1, ROWS)
    with pytest.raises(ValueError, match=r"not \[0\.3\]\. Call predict\(\.\.\., levels=\[0\.3\]\)"):
        found.quantiles([0.3])
    with pytest.raises(ValueError, match=r"between 0 and 1, got \[1\.0\]"):
        found.quantiles([1.0])
    with pytest.raises(ValueError, match="prob is between 0 and 1, got 90"):
        found.interval(90)
    with pytest.raises(ValueError, match=r"levels are between 0 and 1, got \[95\]"):
        predicted(normal, inputs(), Y, levels=[95])


def test_the_spread_of_classes_is_that_of_their_probabilities():
    found, samples = predicted(bernoulli, inputs(), jnp.arange(ROWS) % 2, return_samples=True)
    ones = jax.nn.sigmoid(np.einsum("ri,si->sr", inputs(), samples["beta"]))
    np.testing.assert_allclose(found.samples[..., 1], ones, rtol=1e-4)
    np.testing.assert_allclose(found.std[:, 1], ones.std(0), rtol=1e-3)
    np.testing.assert_allclose(found.std[:, 0], found.std[:, 1], rtol=1e-3)
    expected = np.quantile(ones, 0.5, axis=0)
    np.testing.assert_allclose(found.quantiles([0.5])[0, :, 1], expected, rtol=1e-4)


def test_without_moments_in_closed_form_they_are_those_of_draws():
    def logit_normal(x, y=None):
        fn = dist.TransformedDistribution(
            dist.Normal(x @ coefficients(3), 0.5), transforms.SigmoidTransform()
        )
        numpyro.sample("y", fn, obs=y)

    y = jnp.linspace(0.1, 0.9, ROWS)
    found, _ = predicted(logit_normal, inputs(), y, num_samples=50, return_samples=True)
    np.testing.assert_allclose(found.mean, found.samples.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.std, found.samples.std(0), rtol=1e-3)
    assert (found.samples != np.asarray(y)).all()


def with_globals(x, y=None):
    beta = coefficients(3)
    numpyro.factor("ridge", -0.5 * jnp.sum(beta**2))
    numpyro.sample("total", dist.Normal(beta.sum(), 1.0), obs=jnp.array(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def only_factors(x, y):
    numpyro.factor("likelihood", -jnp.square(y - x @ coefficients(3)))


def test_sites_without_rows_do_not_count():
    found, samples = predicted(with_globals, inputs(), Y)
    expected = log_likelihood(with_globals, samples, inputs(), Y)["y"]
    expected = logsumexp(expected, 0) - jnp.log(SAMPLES)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-4)
    np.testing.assert_array_equal(found.value, Y)


def test_a_likelihood_of_factors_has_a_density_and_no_predictions():
    guide, params = fitted(only_factors, inputs(), Y)
    evaluator, key = Evaluator(only_factors, guide), jax.random.key(2)
    found = evaluator.metrics(params, {}, (inputs(), Y), key, num_samples=SAMPLES)
    samples = posterior_samples(guide, params, {}, key)["beta"]
    expected = -jnp.square(Y - samples @ inputs().T)
    expected = -jnp.mean(logsumexp(expected, 0) - jnp.log(SAMPLES))
    assert found == {"nll": pytest.approx(float(expected), rel=1e-4)}
    with pytest.raises(ValueError, match=r"is a numpyro\.factor, which has no values to predict"):
        evaluator.predict(params, {}, (inputs(), Y), key, num_samples=2)

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions.kl import kl_divergence
from scipy import integrate, stats

from bmrjax.distributions import (
    DiscreteSpikeAndSlab,
    PrunedElements,
    RelaxedSpikeAndSlab,
    StraightThroughSpikeAndSlab,
)

ODDS = st.floats(-6, 6)
LOC = st.floats(-3, 3)
SCALE = st.floats(0.05, 3)


@settings(max_examples=30, deadline=None)
@given(LOC, SCALE, ODDS, LOC, SCALE, ODDS)
def test_kl_is_that_of_the_mixed_measure(loc, scale, odds, prior_loc, prior_scale, prior_odds):
    q, p = (
        DiscreteSpikeAndSlab(loc, scale, odds),
        DiscreteSpikeAndSlab(prior_loc, prior_scale, prior_odds),
    )
    found = float(kl_divergence(q, p))
    pq, pp = 1 / (1 + np.exp(-odds)), 1 / (1 + np.exp(-prior_odds))
    ours, theirs = stats.norm(loc, scale), stats.norm(prior_loc, prior_scale)

    def integrand(x):
        log_ratio = np.log(pq) + ours.logpdf(x) - np.log(pp) - theirs.logpdf(x)
        return pq * ours.pdf(x) * log_ratio

    slab, _ = integrate.quad(integrand, loc - 10 * scale, loc + 10 * scale, limit=200)
    exact = (1 - pq) * (np.log1p(-pq) - np.log1p(-pp)) + slab
    np.testing.assert_allclose(found, exact, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("odds", [-200.0, -40.0, 40.0, 200.0])
def test_extreme_odds_stay_finite(odds):
    def kl(q_odds, p_odds):
        return kl_divergence(
            DiscreteSpikeAndSlab(0.1, 0.2, q_odds), DiscreteSpikeAndSlab(0.0, 1.0, p_odds)
        )

    for arguments in [(odds, 0.3), (0.3, odds), (odds, odds)]:
        value, grads = jax.value_and_grad(kl, argnums=(0, 1))(*arguments)
        assert np.isfinite(value)
        assert np.isfinite(grads).all()
        assert value > -1e-4


def test_draws_and_moments():
    fn = DiscreteSpikeAndSlab(1.0, 0.5, 0.7)
    draws = np.asarray(fn.sample(jax.random.key(1), (20000,)))
    np.testing.assert_allclose((draws != 0).mean(), fn.inclusion_prob, atol=0.015)
    np.testing.assert_allclose(draws.mean(), fn.mean, atol=0.02)
    np.testing.assert_allclose(draws.var(), fn.variance, atol=0.02)
    assert stats.kstest(draws[draws != 0], stats.norm(1.0, 0.5).cdf).pvalue > 0.01


def test_density_of_the_mixed_measure_has_mass_one():
    fn = DiscreteSpikeAndSlab(0.4, 0.7, -0.3)
    slab, _ = integrate.quad(lambda x: float(jnp.exp(fn.log_prob(x))), -5, 6, points=[0.4])
    assert slab + float(jnp.exp(fn.log_prob(0.0))) == pytest.approx(1.0, abs=1e-4)


def test_the_relaxation_becomes_exact_as_it_cools():
    def mean(odds, temperature):
        fn = RelaxedSpikeAndSlab(2.0, 0.1, odds, temperature)
        return fn.sample(jax.random.key(0), (20000,)).mean()

    exact = DiscreteSpikeAndSlab(2.0, 0.1, 0.5).mean
    errors = [abs(float(mean(0.5, t) - exact)) for t in (2.0, 0.5, 0.05)]
    assert errors[0] > errors[2]
    assert errors[2] < 0.02
    # Draws are differentiable in the odds: d/do [2 sigmoid(o)] = 2 sigmoid'(o).
    slope = 2 * jax.nn.sigmoid(0.5) * (1 - jax.nn.sigmoid(0.5))
    np.testing.assert_allclose(jax.grad(mean)(0.5, 0.05), slope, rtol=0.15)


def test_the_kl_of_the_relaxed_variable_is_the_exact_one():
    relaxed, exact = RelaxedSpikeAndSlab(0.3, 0.2, 1.0, 0.5), DiscreteSpikeAndSlab(0.3, 0.2, 1.0)
    prior = DiscreteSpikeAndSlab(0.0, 1.0, -1.0)
    assert kl_divergence(relaxed, prior) == kl_divergence(exact, prior)


def test_removed_elements_cost_nothing():
    keep = jnp.array([True, False])
    q = PrunedElements(RelaxedSpikeAndSlab(jnp.ones(2), 0.2, 1.0, 0.5), keep)
    p = PrunedElements(DiscreteSpikeAndSlab(jnp.zeros(2), 1.0, -1.0), keep)
    kl = kl_divergence(q, p)
    assert kl[1] == 0
    assert kl[0] > 0
    assert q.sample(jax.random.key(0))[1] == 0


def test_the_temperature_is_traced():
    fn = jax.jit(lambda t: RelaxedSpikeAndSlab(0.0, 1.0, jnp.zeros(3), t))(0.3)
    assert fn.temperature == np.float32(0.3)
    assert fn.batch_shape == (3,)
    independent = dist.Independent(fn, 1)
    assert independent.sample(jax.random.key(0)).shape == (3,)


def test_straight_through_draws_are_the_exact_ones_with_gradients_of_relaxed_ones():
    logits = jnp.linspace(-3.0, 3.0, 500)

    def draws(make, logits):
        return make(1.0, 0.5, logits).sample(jax.random.key(1), (200,))

    def straight(logits):
        return draws(lambda *args: StraightThroughSpikeAndSlab(*args, temperature=0.5), logits)

    exact = draws(DiscreteSpikeAndSlab, logits)
    np.testing.assert_array_equal(straight(logits) == 0, exact == 0)
    np.testing.assert_allclose(straight(logits), exact, rtol=1e-6)
    # E[z] = σ(logits) loc; the gradient is biased, and of the right sign and size.
    slope = jax.grad(lambda logits: straight(logits).sum())(logits) / 200
    expected = jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)
    np.testing.assert_allclose(slope.mean(), expected.mean(), rtol=0.1)
    assert not np.any(jax.grad(lambda logits: draws(DiscreteSpikeAndSlab, logits).sum())(logits))

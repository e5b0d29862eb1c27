import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions.kl import kl_divergence
from scipy import integrate, stats

from bmrjax.distributions import LogGamma


@pytest.mark.parametrize(("shape", "rate"), [(0.5, 1.0), (2.0, 6.0), (30.0, 0.1)])
class TestAgainstTheGamma:
    def test_density(self, shape, rate):
        x = np.linspace(-8, 8, 17)
        exact = stats.gamma(shape, scale=1 / rate).logpdf(np.exp(x)) + x
        np.testing.assert_allclose(LogGamma(shape, rate).log_prob(x), exact, rtol=2e-5, atol=2e-5)

    def test_draws(self, shape, rate):
        draws = LogGamma(shape, rate).sample(jax.random.key(0), (4000,))
        assert stats.kstest(np.exp(draws), stats.gamma(shape, scale=1 / rate).cdf).pvalue > 0.01

    def test_moments(self, shape, rate):
        fn = LogGamma(shape, rate)
        draws = np.asarray(fn.sample(jax.random.key(1), (20000,)))
        assert abs(draws.mean() - fn.mean) < 5 * np.sqrt(fn.variance / 20000)
        np.testing.assert_allclose(draws.var(), fn.variance, rtol=0.1)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(-3, 3), st.floats(0.05, 1.5), st.sampled_from([0.5, 2.0, 7.0]), st.floats(0.2, 5.0)
)
def test_kl_from_a_normal(loc, scale, shape, rate):
    found = kl_divergence(dist.Normal(loc, scale), LogGamma(shape, rate))
    normal, gamma = stats.norm(loc, scale), stats.gamma(shape, scale=1 / rate)

    def integrand(x):
        return normal.pdf(x) * (normal.logpdf(x) - gamma.logpdf(np.exp(x)) - x)

    exact, _ = integrate.quad(integrand, loc - 12 * scale, loc + 12 * scale, limit=200)
    np.testing.assert_allclose(found, exact, rtol=2e-4, atol=2e-4)


def test_tiny_draws_stay_finite():
    """Gamma(0.01) underflows float32 in most draws; its logarithm does not."""
    draws = LogGamma(0.01).sample(jax.random.key(0), (1000,))
    assert np.exp(np.float32(draws)).min() == 0
    assert np.isfinite(draws).all()
    assert np.isfinite(LogGamma(0.01).log_prob(draws)).all()
    assert np.isfinite(jax.grad(lambda x: LogGamma(0.5).log_prob(x))(-200.0))


def test_parameters_pass_through_jit_and_vmap():
    fn = jax.jit(lambda c: LogGamma(c, 2.0))(jnp.array([0.5, 2.0]))
    values = jax.vmap(lambda c: LogGamma(c, 2.0).log_prob(0.3))(jnp.array([0.5, 2.0]))
    np.testing.assert_allclose(fn.log_prob(0.3), values, rtol=1e-6)

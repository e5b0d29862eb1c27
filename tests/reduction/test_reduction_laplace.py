"""Laplace priors of normal posteriors, and Laplace posteriors: against quadrature, limits and draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from bmrjax import reduction
from bmrjax.reduction import Laplace, Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")


def cases(num, seed=0):
    """Random posterior, prior and reduced scale in float64, no scale of which is 1."""
    rng = np.random.default_rng(seed)
    posterior = Normal(rng.normal(0, 1.5, num), rng.uniform(0.05, 1.5, num))
    prior = Laplace(rng.normal(0, 0.7, num), rng.uniform(0.2, 2.5, num))
    return posterior, prior, Normal(rng.normal(0, 0.7, num), rng.uniform(0.03, 2.0, num))


def integral(function, cuts):
    """The integral of a function between its kinks, in small pieces."""
    total = 0.0
    for a, b in itertools.pairwise(np.unique(cuts)):
        for pair in itertools.pairwise(np.linspace(a, b, 120)):
            total += integrate.fixed_quad(function, *pair, n=20)[0]
    return total


def log_expectation(q, p, r, reduced=stats.norm):
    """ln E_q[p_reduced / p] by quadrature, split where the densities have a kink."""

    def log_integrand(z):
        logs = stats.norm.logpdf(z, q.loc, q.scale) + reduced.logpdf(z, r.loc, r.scale)
        return logs - stats.laplace.logpdf(z, p.loc, p.scale)

    top = log_integrand(np.linspace(-20, 20, 8001)).max()
    cuts = [-40.0, float(p.loc), float(q.loc), float(r.loc), 40.0]
    return top + np.log(integral(lambda z: np.exp(log_integrand(z) - top), cuts))


def element(x, i):
    return jax.tree.map(lambda a: a[i], x)


@pytest.mark.parametrize("i", range(4))
def test_agrees_with_quadrature(x64, i):
    q, p, r = (element(x, i) for x in cases(4))
    found = reduction.laplace(q, p, r)
    np.testing.assert_allclose(found, log_expectation(q, p, r), rtol=1e-10, atol=1e-10)
    narrow = Laplace(p.loc, r.scale)  # wider than the prior in some cases
    found = reduction.laplace(q, p, narrow)
    expected = log_expectation(q, p, narrow, stats.laplace)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_an_unchanged_prior_changes_nothing_and_another_place_is_refused(x64):
    q, p, _ = cases(20, seed=1)
    np.testing.assert_allclose(reduction.laplace(q, p, p), 0.0, atol=1e-13)
    assert np.isnan(reduction.laplace(q, p, Laplace(p.loc + 0.1, p.scale))).all()


def test_a_point_mass_is_the_savage_dickey_ratio_and_the_limit(x64):
    q, p, _ = cases(20, seed=2)
    exact = stats.norm.logpdf(0, q.loc, q.scale) - stats.laplace.logpdf(0, p.loc, p.scale)
    np.testing.assert_allclose(reduction.delta_f_each(q, p), exact, rtol=1e-12)
    tiny = Normal(np.zeros(20), np.full(20, 1e-8))
    np.testing.assert_allclose(reduction.delta_f_under(p, q, tiny), exact, rtol=1e-5, atol=1e-5)


def test_agrees_with_draws(x64):
    q, p = Normal(0.4, 0.6), Laplace(0.1, 0.8)
    r = Normal(0.0, 0.3)
    z = np.random.default_rng(3).normal(q.loc, q.scale, 1_000_000)
    weights = stats.norm.pdf(z, r.loc, r.scale) / stats.laplace.pdf(z, p.loc, p.scale)
    error = 5 * weights.std() / weights.mean() / 1000
    found = reduction.laplace(*(jax.tree.map(jnp.asarray, x) for x in (q, p, r)))
    np.testing.assert_allclose(found, np.log(weights.mean()), atol=error)


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1.0])
@pytest.mark.parametrize("loc", [0.0, 1e-3, 30.0])
def test_float32_holds_at_extreme_scales(loc, scale):
    numbers = [(b, e) for b in (1e-4, 0.1, 10.0) for e in (0.0, 1e-8, 1e-2, 3.0)]
    prior_scale, reduced_scale = np.array(numbers, np.float32).T
    zeros = np.zeros(len(numbers), np.float32)
    q = Normal(zeros + np.float32(loc), zeros + np.float32(scale))
    p, r = Laplace(zeros, prior_scale), Normal(zeros, reduced_scale)
    found = reduction.laplace(*(jax.tree.map(jnp.asarray, x) for x in (q, p, r)))
    assert found.dtype == jnp.float32
    assert np.isfinite(found).all()
    with jax.enable_x64(new_val=True):
        wide = [jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), x) for x in (q, p, r)]
        exact = reduction.laplace(*wide)
    np.testing.assert_allclose(found, np.asarray(exact), rtol=2e-5, atol=2e-5)


class TestDivergence:
    @pytest.mark.parametrize("kind", [Normal, Laplace])
    def test_agrees_with_quadrature(self, x64, kind):
        q, p, _ = cases(4, seed=4)
        law = stats.norm if kind is Normal else stats.laplace
        for i in range(4):
            ours, theirs = element(q, i), element(p, i)

            def integrand(z, ours=ours, theirs=theirs):
                log_q = law.logpdf(z, ours.loc, ours.scale)
                return np.exp(log_q) * (log_q - stats.laplace.logpdf(z, theirs.loc, theirs.scale))

            exact = integral(integrand, [-40.0, float(ours.loc), float(theirs.loc), 40.0])
            found = reduction.laplace_divergence(kind(ours.loc, ours.scale), theirs)
            np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-10)

    def test_is_zero_for_the_prior_itself(self):
        p = Laplace(jnp.array([0.5]), jnp.array([2.0]))
        np.testing.assert_allclose(reduction.laplace_divergence(p, p), 0.0, atol=1e-6)


def test_a_laplace_posterior_has_its_own_ratio(x64):
    q = Laplace(jnp.array([0.3, -2.0]), jnp.array([0.2, 0.5]))
    at_zero = stats.laplace.logpdf(0, q.loc, q.scale)
    for p, law in ((Laplace(jnp.zeros(2), jnp.full(2, 1.7)), stats.laplace),
                   (Normal(jnp.array([0.1, 0.2]), jnp.full(2, 1.7)), stats.norm)):  # fmt: skip
        exact = at_zero - law.logpdf(0, p.loc, p.scale)
        np.testing.assert_allclose(reduction.delta_f_each(q, p), exact, rtol=1e-12)
    np.testing.assert_allclose(q.snr, np.abs(q.loc) / stats.laplace.std(q.loc, q.scale), rtol=1e-12)
    log_uniform = reduction.ImproperLogUniform(jnp.ones(2))
    with pytest.raises(TypeError, match="no closed form for a Laplace posterior under a prior"):
        reduction.delta_f_each(q, log_uniform)
    with pytest.raises(TypeError, match="no closed form for a normal posterior under a prior"):
        reduction.delta_f_each(
            Normal(q.loc, q.scale), reduction.ZeroOrNormal(q.loc, q.scale, q.loc)
        )

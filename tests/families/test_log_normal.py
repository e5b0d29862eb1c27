"""Truncated log-normal posteriors: statistics, draws and reductions, against mpmath."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro
import pytest
from numpyro.distributions import kl_divergence
from scipy import stats

from bmrjax import reduction
from bmrjax.distributions import TruncatedLogNormal, TruncatedLogUniform
from bmrjax.reduction.log_normal import divergence as divergence_of

LOW, HIGH = -20.0, 0.0
PRIOR = reduction.LogUniform(jnp.float32(LOW), jnp.float32(HIGH))
# The range that training may reach: far outside of the bounds, and from a point to flat.
GRID = [g.ravel() for g in np.meshgrid(np.linspace(-25, 5, 7), np.linspace(-20, 5, 21))]
LOCS, SCALES = GRID[0].astype(np.float32), np.exp(GRID[1].astype(np.float32))


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(60):
        yield


def mass(low, high):
    """P(low < t < high), t standard normal."""
    low, high = (low, high) if low < 0 else (-high, -low)
    return (mp.erfc(-high / mp.sqrt(2)) - mp.erfc(-low / mp.sqrt(2))) / 2


def posterior(locs: Any = LOCS, scales: Any = SCALES):
    return reduction.LogNormal(jnp.asarray(locs), jnp.asarray(scales), PRIOR.low, PRIOR.high)


def exact(function):
    """Apply to each posterior of the grid, with its standardised bounds."""
    found = []
    for loc, scale in zip(LOCS, SCALES, strict=True):
        m, s = mp.mpf(float(loc)), mp.mpf(float(scale))
        found.append([float(v) for v in function(m, s, (LOW - m) / s, (HIGH - m) / s)])
    return np.array(found).T


def statistics(m, s, a, b):
    """Divergence, mean and variance by the formulas of the paper."""
    z = mass(a, b)
    density = [mp.exp(-t * t / 2) / mp.sqrt(2 * mp.pi) for t in (a, b)]
    divergence = mp.log((HIGH - LOW) / mp.sqrt(2 * mp.pi * mp.e * s * s)) - mp.log(z)
    divergence -= (a * density[0] - b * density[1]) / (2 * z)
    mean, square = (
        mp.exp(k * m + k * k * s * s / 2) / z * mass(a - k * s, b - k * s) for k in (1, 2)
    )
    return divergence, mean, square - mean**2, mean / mp.sqrt(square - mean**2)


def test_statistics_are_exact_in_float32_over_the_whole_range():
    q = posterior()
    divergence, mean, variance, snr = exact(statistics)
    np.testing.assert_allclose(divergence_of(q, PRIOR), divergence, rtol=1e-6, atol=3e-7)
    np.testing.assert_allclose(q.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(q.snr, snr, rtol=1e-5)
    # What a float32 cannot hold is zero.
    np.testing.assert_allclose(q.variance, variance, rtol=2e-5, atol=1e-37)


def test_the_value_that_the_paper_misprints():
    q = posterior(-1.0, 0.8)
    np.testing.assert_allclose(q.snr, 1.6728, atol=1e-4)


def test_gradients_of_the_divergence_are_exact_and_finite():
    def divergence(loc, log_scale):
        return divergence_of(posterior(loc, jnp.exp(log_scale)), PRIOR)

    locs, logs = jnp.asarray(LOCS), jnp.log(jnp.asarray(SCALES))
    found = jax.jit(jax.vmap(jax.grad(divergence, (0, 1))))(locs, logs)
    assert all(np.isfinite(part).all() for part in found)

    def at(m, s):
        return statistics(m, s, (LOW - m) / s, (HIGH - m) / s)[0]

    for i in range(0, len(LOCS), 11):
        m, s = mp.mpf(float(LOCS[i])), mp.mpf(float(SCALES[i]))
        wanted = mp.diff(lambda x, s=s: at(x, s), m), s * mp.diff(lambda x, m=m: at(m, x), s)
        for part, value in zip(found, wanted, strict=True):
            np.testing.assert_allclose(part[i], float(value), rtol=1e-4, atol=1e-5)


# --- the distribution ---------------------------------------------------------------------

CASES = [
    (-1, 0.8),
    (5, 0.3),
    (-25, 0.2),
    (-25, 10.0),
    (5, 0.7),
    (-10, 1.0),
    (0, 100.0),
    (-23, 0.37),
]


def truncated(loc, scale, low=LOW, high=HIGH) -> Any:
    return stats.truncnorm((low - loc) / scale, (high - loc) / scale, loc=loc, scale=scale)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
@jax.grad
def derivatives(parameters, prob):
    return jnp.log(TruncatedLogNormal(*parameters).icdf(prob))


@pytest.mark.first_cases(4)
@pytest.mark.parametrize(("loc", "scale"), CASES)
def test_draws_and_their_derivatives(loc, scale):
    q = TruncatedLogNormal(loc, scale)
    draws = q.sample(jax.random.key(0), (100_000,))
    assert stats.kstest(np.log(np.asarray(draws, float)), truncated(loc, scale).cdf).pvalue > 1e-3
    probs = np.array([0.01, 0.3, 0.7, 0.99])

    at = np.array([loc, scale, LOW, HIGH])
    found = derivatives(jnp.asarray(at, float), jnp.asarray(probs))
    for i in range(4):
        step = 1e-5 * max(1.0, abs(at[i])) * np.eye(4)[i]
        low, high = (truncated(*(at + side * step)).ppf(probs) for side in (-1, 1))
        wanted = (high - low) / (2 * step[i])
        # Where the posterior is far out, the quantile is an expansion.
        np.testing.assert_allclose(found[:, i], wanted, rtol=2e-2, atol=2e-3 * max(1, abs(loc)))
    np.testing.assert_allclose(q.log_prob(draws[:50]), _log_density(draws[:50], loc, scale), 1e-3)


def _log_density(draws, loc, scale):
    log = np.log(np.asarray(draws, float))
    known: Any = truncated(loc, scale)
    return known.logpdf(log) - log


@pytest.mark.parametrize("prob", [1e-7, 0.5, 1 - 1e-7])
def test_draws_and_gradients_are_finite_wherever_training_goes(prob):
    def quantile(loc, log_scale):
        return TruncatedLogNormal(loc, jnp.exp(log_scale)).icdf(prob)

    logs = jnp.log(jnp.asarray(SCALES))
    values = jax.jit(jax.vmap(quantile))(LOCS, logs)
    assert np.all((values >= np.float32(np.exp(LOW)) * 0.999) & (values <= 1))
    gradients = jax.jit(jax.vmap(jax.grad(quantile, (0, 1))))(LOCS, logs)
    assert all(np.isfinite(part).all() for part in gradients)
    q = TruncatedLogNormal(LOCS, SCALES)
    assert np.isfinite(q.log_prob(values)).all()


def test_divergence_is_registered_and_log_uniform_is_the_limit():
    q, p = TruncatedLogNormal(jnp.array([-1.0, -9.0]), 0.8), TruncatedLogUniform()
    wanted = divergence_of(q.posterior, PRIOR)
    np.testing.assert_allclose(kl_divergence(q, p), wanted)
    wide = TruncatedLogNormal(3.0, 1e4)
    np.testing.assert_allclose(kl_divergence(wide, p), 0.0, atol=1e-6)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(getattr(wide, name), getattr(p, name), rtol=1e-4)
    assert kl_divergence(q, TruncatedLogUniform(-5.0, 0.0)).tolist() == [np.inf, np.inf]


def test_log_uniform_agrees_with_scipy():
    p = TruncatedLogUniform(-20.0, -1.0)
    known: Any = stats.loguniform(np.exp(-20), np.exp(-1))
    x = jnp.array([1e-8, 1e-3, 0.2])
    np.testing.assert_allclose(p.log_prob(x), known.logpdf(np.asarray(x, float)), rtol=1e-5)
    np.testing.assert_allclose(p.cdf(x), known.cdf(np.asarray(x, float)), rtol=1e-5)
    np.testing.assert_allclose(p.mean, known.mean(), rtol=1e-5)
    np.testing.assert_allclose(p.variance, known.var(), rtol=1e-5)
    draws = np.asarray(p.sample(jax.random.key(0), (50_000,)), float)
    assert stats.kstest(draws, known.cdf).pvalue > 1e-3


def test_the_derivative_by_the_probability_is_one_over_the_density():
    prob = jnp.array([0.01, 0.4, 0.99])
    slope = jax.vmap(jax.grad(TruncatedLogNormal(-1.0, 0.8).icdf))(prob)
    q = TruncatedLogNormal(-1.0, 0.8)
    np.testing.assert_allclose(slope, jnp.exp(-q.log_prob(q.icdf(prob))), rtol=1e-4)


@pytest.mark.parametrize("kind", [TruncatedLogUniform, lambda *b: TruncatedLogNormal(0.0, 1.0, *b)])
@pytest.mark.parametrize("bounds", [(0.0, -20.0), (np.array([-20.0, 1.0]), 0.0), (np.nan, 0.0)])
def test_bounds_in_the_wrong_order_are_refused(kind, bounds):
    with pytest.raises(ValueError, match="low < high"):
        kind(*bounds)


def test_numpyro_checks_the_support():
    with numpyro.validation_enabled(), pytest.warns(UserWarning, match="Out-of-support"):
        TruncatedLogNormal(-1.0, 0.5).log_prob(2.0)


# --- reductions ---------------------------------------------------------------------------


def test_a_narrower_log_uniform_prior():
    low, high = -15.9, -5.5
    reduced = reduction.LogUniform(jnp.float32(low), jnp.float32(high))

    def wanted(m, s, a, b):
        part = mass((mp.mpf(float(reduced.low)) - m) / s, (mp.mpf(float(reduced.high)) - m) / s)
        width = mp.mpf(float(reduced.high)) - mp.mpf(float(reduced.low))
        return [mp.log((HIGH - LOW) / width) + mp.log(part) - mp.log(mass(a, b))]

    found = reduction.log_normal(posterior(), PRIOR, reduced)
    (delta_f,) = exact(wanted)
    np.testing.assert_allclose(found.delta_f, delta_f, rtol=2e-5, atol=1e-4)
    assert (found.delta_f > 0).any()
    assert (found.delta_f < 0).any()
    np.testing.assert_array_equal(found.reduced.high, reduced.high)
    same = reduction.log_normal(posterior(), PRIOR, PRIOR)
    np.testing.assert_allclose(same.delta_f, 0.0, atol=1e-6)
    apart = reduction.LogNormal(jnp.float32(-1), jnp.float32(1), jnp.float32(-2), jnp.float32(0))
    assert reduction.log_normal(apart, PRIOR, reduced).delta_f == -jnp.inf


@pytest.mark.parametrize(("loc", "scale"), [(LOW, 1e-6), (-12.0, 0.5), (LOW, 3.0), (-30.0, 0.1)])
def test_a_log_normal_reduced_prior(loc, scale):
    reduced_prior = reduction.LogNormal(jnp.float32(loc), jnp.float32(scale), PRIOR.low, PRIOR.high)
    n, r = mp.mpf(float(reduced_prior.loc)), mp.mpf(float(reduced_prior.scale))

    def wanted(m, s, a, b):
        # Equation 8 with logarithmic bounds, and the quadratic terms as one square.
        total = s * s + r * r
        new = (m * r * r + n * s * s) / total, s * r / mp.sqrt(total)
        log_mass = mp.log(mass((LOW - new[0]) / new[1], (HIGH - new[0]) / new[1]))
        log_mass -= mp.log(mass(a, b)) + mp.log(mass((LOW - n) / r, (HIGH - n) / r))
        density = -((m - n) ** 2) / (2 * total) - mp.log(2 * mp.pi * total) / 2
        return mp.log(HIGH - LOW) + log_mass + density, *new

    found = reduction.log_normal(posterior(), PRIOR, reduced_prior)
    delta_f, new_loc, new_scale = exact(wanted)
    np.testing.assert_allclose(found.delta_f, delta_f, rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(found.reduced.loc, new_loc, rtol=1e-5)
    np.testing.assert_allclose(found.reduced.scale, new_scale, rtol=1e-5)


def test_the_expectation_by_quadrature():
    """The definition itself, not the formula."""
    q, p = (
        posterior(-6.0, 1.5),
        reduction.LogNormal(jnp.float32(-9), jnp.float32(2), *map(jnp.float32, (LOW, HIGH))),
    )
    z = np.linspace(LOW, HIGH, 200_001)
    ratio = truncated(-6.0, 1.5).pdf(z) * truncated(-9.0, 2.0).pdf(z) * (HIGH - LOW)
    wanted = np.log(np.trapezoid(ratio, z))
    np.testing.assert_allclose(reduction.log_normal(q, PRIOR, p).delta_f, wanted, rtol=1e-5)

"""Evidence of posteriors with longer tails than those of their joint normal."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.trust.normal_check import study
from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.normality import normal_draws, tail_shape, weighted_draws
from bmrjax.fitted.verification import _measure

COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])


def whole(loc, covariance):
    return Whole(
        np.asarray(loc, float), np.asarray(covariance, float), lambda vector: {"z": vector}
    )


@pytest.mark.parametrize("count", [2000, 2001])
def test_the_density_of_both_kinds_of_draws_is_that_of_their_mixture(count):
    loc = np.array([1.0, -2.0])
    found = normal_draws(whole(loc, COVARIANCE), np.random.default_rng(0), count, heavy=True)
    points, log_density = found
    assert points.shape == (count, 2)
    share = (count // 2) / count
    mixture = (1 - share) * stats.multivariate_normal(loc, COVARIANCE).pdf(points)
    mixture += share * stats.multivariate_t(loc, 2.25 * COVARIANCE, df=7).pdf(points)
    np.testing.assert_allclose(log_density, np.log(mixture), rtol=1e-4, atol=1e-4)
    # The draws are from it: distances have the quantiles of the mixture.
    standard = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (points - loc).T)
    square = (standard**2).sum(0)
    for radius in (0.5, 1.5, 6.0, 12.0):
        exact = (1 - share) * stats.chi2(2).cdf(radius) + share * stats.f(2, 7).cdf(radius / 4.5)
        assert (square < radius).mean() == pytest.approx(exact, abs=0.03)


def test_a_posterior_with_a_long_tail_has_a_reliable_evidence():
    # Normal on the left, and falling by 0.4 nats per unit on the right.
    def density(points):
        z = np.asarray(points, float)[:, 0]
        return np.where(z < 0, -0.5 * z**2, -0.4 * z)

    exact = math.log(math.sqrt(math.pi / 2) + 2.5)
    narrow = whole([1.4], [[3.5]])
    rng = np.random.default_rng(1)
    assert tail_shape(weighted_draws(narrow, density, rng).log_weights) > 0.7
    for seed in range(10):
        found = _measure(narrow, density, np.random.default_rng(seed))
        assert found.trusted
        assert found.log_evidence == pytest.approx(exact, abs=4 * found.error)
        assert found.error < 0.05


def test_a_normal_posterior_is_measured_exactly():
    def density(points):
        return -0.5 * np.asarray(points, float)[:, 0] ** 2

    found = _measure(whole([0.0], [[1.0]]), density, np.random.default_rng(0))
    assert found.log_evidence == pytest.approx(0.5 * math.log(2 * math.pi), abs=1e-5)
    assert found.pareto_k == 0.0


@pytest.mark.filterwarnings("ignore::bmrjax.FitWarning")
def test_a_posterior_that_its_normal_does_not_cover_is_measured_by_default():
    # A Poisson regression with 15 rows, beside enumeration.
    row = study("poisson", 15, 10)
    assert "not-normal" in row["findings"]
    assert row["error"] > 0.05
    assert row["error_reported"] < 0.02

"""Smoothed weights of many sets, beside ArviZ's of one set at a time."""

import numpy as np
import pytest
from scipy import stats

from bmrjax.fitted.pareto_smoothing import smooth_tails

array_stats = pytest.importorskip("arviz_stats.base.array").array_stats


@pytest.mark.parametrize("draws", [100, 400, 2000])
def test_weights_and_shapes_are_those_of_arviz(draws):
    rng = np.random.default_rng(draws)
    spread = np.linspace(0.05, 4, 40)[:, None]
    log_weights = np.concatenate(
        [spread * rng.normal(size=(40, draws)), spread * rng.standard_t(3, (40, draws))]
    )
    before = log_weights.copy()
    found, shapes = smooth_tails(log_weights)
    expected, expected_shapes = array_stats.psislw(-log_weights)
    np.testing.assert_allclose(shapes, expected_shapes, atol=1e-6)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(log_weights, before)


def test_the_shape_of_a_pareto_tail_is_found():
    rng = np.random.default_rng(0)
    for shape in (0.2, 0.5, 0.9):
        weights = stats.genpareto.rvs(shape, size=(100, 4000), random_state=rng)
        _, shapes = smooth_tails(np.log(weights + 1e-12))
        assert shapes.mean() == pytest.approx(shape, abs=0.05)


def test_the_mean_under_smoothed_weights_is_right():
    rng = np.random.default_rng(1)
    z = 1.3 * rng.normal(size=(200, 1000))
    log_weights = stats.norm.logpdf(z, 0.3) - stats.norm.logpdf(z, scale=1.3)
    found, shapes = smooth_tails(log_weights)
    means = np.sum(np.exp(found) * z, axis=1)
    assert np.abs(means.mean() - 0.3) < 4 * means.std() / 200**0.5
    assert shapes.max() < 0.7


def test_a_tail_without_spread_stays():
    found, shapes = smooth_tails(np.zeros((2, 100)))
    np.testing.assert_allclose(found, -np.log(100), atol=1e-12)
    assert np.isinf(shapes).all()

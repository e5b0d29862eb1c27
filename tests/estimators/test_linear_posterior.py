"""Linear regression by singular values, and columns that follow from others."""

import itertools
import time

import numpy as np
import pytest
from scipy import stats

import bmrjax as bmr
from bmrjax.estimators.linear_posterior import LinearPosterior
from bmrjax.estimators.standardised import INTERCEPT_SCALE


def _standard(x, y):
    design = np.column_stack([np.ones(len(x)), (x - x.mean(0)) / x.std(0)])
    scale = np.array([INTERCEPT_SCALE, *[0.5] * x.shape[1]])
    return LinearPosterior(design, (y - y.mean()) / y.std(), scale)


@pytest.mark.parametrize("shape", [(20, 4), (5, 5), (6, 11), (20, 0)])
def test_evidence_and_posterior_are_those_of_the_covariance_of_the_rows(shape):
    rng = np.random.default_rng(0)
    design, target = rng.normal(size=shape), rng.normal(size=shape[0])
    prior_scale = rng.uniform(0.3, 2, size=shape[1])
    for noise in (0.05, 0.7):
        model = LinearPosterior(design, target, prior_scale)
        across = design * prior_scale**2
        rows = across @ design.T + noise**2 * np.eye(len(target))
        exact = stats.multivariate_normal(cov=rows).logpdf(target)
        assert model.log_evidence(noise) == pytest.approx(exact, rel=1e-10)
        loc, covariance, precision = model.posterior(noise)
        np.testing.assert_allclose(loc, across.T @ np.linalg.solve(rows, target), atol=1e-10)
        exact = np.diag(prior_scale**2) - across.T @ np.linalg.solve(rows, across)
        np.testing.assert_allclose(covariance, exact, atol=1e-10)
        np.testing.assert_allclose(precision @ covariance, np.eye(shape[1]), atol=1e-9)


def test_the_noise_has_the_largest_evidence():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3))
    model = _standard(x, x[:, 0] + 0.4 * rng.normal(size=40))
    best = model.noise()
    assert model.log_evidence(best) > max(model.log_evidence(best * f) for f in (0.98, 1.02))


def _factor(rows, noise, kind):
    """Two columns and a factor of three levels: all its levels, one left out, or a column twice."""
    rng = np.random.default_rng(0)
    x, levels = rng.normal(size=(rows, 2)), np.eye(3)[rng.integers(0, 3, rows)]
    y = x @ [1.0, -0.5] + levels @ [0, 0.3, -0.2] + noise * rng.normal(size=rows)
    further = {"all": [levels], "dropped": [levels[:, 1:]], "twice": [levels[:, 1:], x[:, :1]]}
    return np.hstack([x, *further[kind]]), y


@pytest.mark.parametrize("kind", ["all", "twice"])
@pytest.mark.parametrize(("rows", "noise"), [(300, 1e-3), (1000, 0.01), (10_000, 0.01)])
def test_columns_that_follow_from_others_add_no_noise(kind, rows, noise):
    x, y = _factor(rows, noise, kind)
    fit = bmr.SparseRegressor().fit(x, y)
    alone = bmr.SparseRegressor().fit(*_factor(rows, noise, "dropped"))
    assert fit.noise_scale_ == pytest.approx(alone.noise_scale_, rel=1e-5)
    np.testing.assert_allclose(
        fit.predict(x), alone.predict(_factor(rows, noise, "dropped")[0]), atol=1e-4
    )
    if rows > 1000:
        return
    # Which of them are in is as probable as their own evidence says.
    full, scale = _standard(x, y), fit.noise_scale_ / y.std()
    masks = np.array(list(itertools.product([False, True], repeat=5)))
    log_prob = [full.of_columns(np.array([True, *m])).log_evidence(scale) for m in masks]
    log_prob += fit.reduction_._prior.log_prob(masks)
    weight = np.exp(log_prob - max(log_prob))
    np.testing.assert_allclose(fit.inclusion_prob_, weight @ masks / weight.sum(), atol=1e-4)


def test_a_target_that_its_columns_give_exactly():
    for kind in ("all", "twice"):
        x, y = _factor(300, 0.0, kind)
        fit = bmr.SparseRegressor().fit(x, y)
        assert fit.noise_scale_ < 3e-4 * y.std()
        np.testing.assert_allclose(fit.predict(x), y, atol=1e-4)
        assert fit.inclusion_prob_[1] > 0.999


def test_many_rows_take_no_matrix_of_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 5))
    start = time.process_time()
    value = _standard(x, x[:, 0] + rng.normal(size=len(x))).log_evidence(0.5)
    assert np.isfinite(value)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (6, 3), (4, 6), (50, 3)])
def test_a_constant_target_has_no_effects(rows, columns):
    x = np.random.default_rng(0).normal(size=(rows, columns))
    fit = bmr.SparseRegressor().fit(x, np.ones(rows))
    assert not fit.selected_.any()
    assert (fit.inclusion_prob_ < 0.01).all()
    np.testing.assert_allclose(fit.predict(x), 1.0)
    assert 0 < fit.noise_scale_ < 1e-3

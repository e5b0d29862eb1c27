"""Selections of candidates, against all selections of a small model."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax import reduction
from bmrjax.fitted.select_candidates import largest_expected_f1, within_false_discoveries


def expected_f1(weight, sets, selection):
    size = selection.sum() + sets.sum(1)
    score = np.where(size > 0, 2 * (sets & selection).sum(1) / np.maximum(size, 1), 1.0)
    return float(weight @ score)


@pytest.mark.parametrize("seed", range(4))
def test_no_selection_has_a_larger_expected_f1(seed):
    rng = np.random.default_rng(seed)
    sets = rng.random((40, 6)) < rng.random(6) * 0.7
    weight = rng.dirichlet(np.full(40, 0.3))
    found = largest_expected_f1(weight, sets)
    every = np.array(list(itertools.product([False, True], repeat=6)))
    best = max(expected_f1(weight, sets, one) for one in every)
    assert expected_f1(weight, sets, found) == pytest.approx(best, abs=1e-12)


def test_nothing_is_selected_where_probably_nothing_has_an_effect():
    sets = np.array([[False, False], [True, False]])
    assert not largest_expected_f1(np.array([0.6, 0.4]), sets).any()
    assert largest_expected_f1(np.array([0.4, 0.6]), sets).tolist() == [True, False]


def test_the_share_of_false_ones_is_at_most_the_rate():
    prob = np.array([0.3, 0.99, 0.85, 0.9])
    assert within_false_discoveries(prob, 0.05).tolist() == [False, True, False, False]
    assert within_false_discoveries(prob, 0.1).tolist() == [False, True, True, True]
    assert within_false_discoveries(prob, 0.5).all()
    assert not within_false_discoveries(prob, 0.005).any()


def copies(forced=()):
    """Return the reduction of four columns: two copies with one effect, a certain effect, and none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    x[:, 1] = x[:, 0]
    y = 1.0 * x[:, 0] + 1.5 * x[:, 2] + rng.normal(size=60)
    covariance = np.linalg.inv(x.T @ x + np.eye(4))
    return bmr.reduce_fit(
        loc=covariance @ x.T @ y,
        covariance=covariance,
        prior=reduction.Normal(jnp.zeros(4), jnp.ones(4)),
        names=["dose", "dose_again", "age", "height"],
        forced=forced,
    )


def test_an_effect_that_two_copies_share_is_selected():
    found = copies()
    assert found.inclusion_prob["z"][:2].max() < 0.7
    # Either copy, or both: two of three true ones rather than one of two.
    assert found.select()["z"][:3].sum() >= 2
    assert not found.select()["z"][3]
    strict = found.select(false_discovery_rate=0.01)["z"]
    assert strict.tolist() == [False, False, True, False]


def test_forced_elements_are_selected_and_a_rate_out_of_range_is_refused():
    found = copies(forced=["height"])
    assert found.select()["z"][3]
    with pytest.raises(ValueError, match="above 0 and below 1"):
        found.select(false_discovery_rate=1.0)

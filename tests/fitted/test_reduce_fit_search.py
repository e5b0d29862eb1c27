"""The search over submodels, against enumeration; groups, forced effects and prior odds."""

import functools
import time

import numpy as np
import pytest
from exact_regression import Linear, log_prior

import bmrjax as bmr
from bmrjax.fitted import search

# --- search -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_greedy_search_finds_what_enumeration_finds(seed, monkeypatch):
    exact = Linear(12, seed=20 + seed, rows=40)
    every = bmr.reduce_fit(**exact.arrays)
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", 0)
    found = bmr.reduce_fit(**exact.arrays)
    np.testing.assert_array_equal(found.chosen["z"], every.chosen["z"])
    # 1,000 sweeps: the largest Monte Carlo error of a probability is near .01.
    np.testing.assert_allclose(found.inclusion_prob["z"], every.inclusion_prob["z"], atol=0.04)
    np.testing.assert_allclose(found.sd["z"], every.sd["z"], atol=0.01)
    first, same = (each.models()["prob"][0] for each in (found, every))
    assert first == pytest.approx(same, rel=0.3)


@pytest.mark.parametrize("seed", range(3))
def test_thirty_candidates(seed):
    exact = Linear(30, seed=seed, rows=200, effects=(0.9, -0.6, 0.5, 0.0, 0.7))
    found = bmr.reduce_fit(**exact.arrays, expected=3)
    np.testing.assert_array_equal(found.chosen["z"], exact.beta != 0)


def test_a_swap_is_found_between_copies_of_a_column(monkeypatch):
    exact = Linear(6, seed=2, effects=(0.0, 0.9))
    exact.x[:, 0] = exact.x[:, 1] + 0.05 * exact.x[:, 5]
    exact = _refit(exact)
    inclusion, chosen = exact.enumerated()
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", 0)
    found = bmr.reduce_fit(**exact.arrays)
    np.testing.assert_array_equal(found.chosen["z"], chosen)
    np.testing.assert_allclose(found.inclusion_prob["z"], inclusion, atol=0.04)


def _refit(exact: Linear) -> Linear:
    size = exact.x.shape[1]
    precision = exact.x.T @ exact.x / exact.noise_scale**2 + np.eye(size) / exact.prior_scale**2
    exact.covariance = np.linalg.inv(precision)
    exact.loc = exact.covariance @ exact.x.T @ exact.y / exact.noise_scale**2
    return exact


def test_fifty_coefficients_take_seconds():
    exact = Linear(50, seed=0, rows=300)
    draws = exact.draws()
    fit = functools.partial(bmr.reduce_fit, draws, model=exact.model, data=exact.data)
    fit()
    start = time.process_time()
    found = fit()
    seconds = time.process_time() - start
    print(f"50 coefficients from 4,000 draws: {seconds:.2f} s")
    assert seconds < 10  # of the CPU: the machine may be busy
    assert found.chosen["beta"][:2].all()


# --- groups, forced effects and prior odds --------------------------------------------------


def test_groups_go_together():
    exact = Linear(6, seed=6)
    groups = {"colour": [2, 3], "shape": ["4", "5"]}
    found = bmr.reduce_fit(**exact.arrays, groups=groups)
    assert found.candidates == ("0", "1", "colour", "shape")
    masks, evidence = exact.submodels
    together = (masks[:, 2] == masks[:, 3]) & (masks[:, 4] == masks[:, 5])
    # A group counts once in the size of a submodel.
    of_prior = log_prior(masks[together][:, [0, 1, 2, 4]])
    weight = np.exp(evidence[together] + of_prior - evidence.max())
    expected = weight @ masks[together] / weight.sum()
    np.testing.assert_allclose(found.inclusion_prob["z"], expected, atol=1e-6)
    assert found.delta_f["z"][2] == found.delta_f["z"][3]
    gone = np.array([True, True, False, False, True, True])
    actual = exact.log_evidence(gone) - exact.log_evidence(np.ones(6, bool))
    assert found.delta_f["z"][2] == pytest.approx(actual, abs=1e-5)


def test_groups_go_together_in_the_sampler(monkeypatch):
    exact = Linear(6, seed=6)
    every = bmr.reduce_fit(**exact.arrays, groups={"colour": [2, 3]})
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", 0)
    found = bmr.reduce_fit(**exact.arrays, groups={"colour": [2, 3]})
    np.testing.assert_array_equal(found.chosen["z"], every.chosen["z"])
    np.testing.assert_allclose(found.inclusion_prob["z"], every.inclusion_prob["z"], atol=0.04)


def test_forced_elements_stay():
    exact = Linear(6, seed=7)
    names = list("abcdef")
    found = bmr.reduce_fit(**exact.arrays, names=names, forced=["f"])
    masks, evidence = exact.submodels
    # What is forced does not count in the size of a submodel.
    weight = np.exp(evidence + log_prior(masks[:, :5]) - evidence.max()) * masks[:, 5]
    expected = weight @ masks / weight.sum()
    np.testing.assert_allclose(found.inclusion_prob["z"], expected, atol=1e-6)
    assert found.inclusion_prob["z"][5] == 1
    assert np.isnan(found.delta_f["z"][5])
    assert found.candidates == tuple("abcde")


@pytest.mark.parametrize("expected", [0.5, 2.0, 7.0])
def test_the_expected_number_shifts_the_posterior_by_its_odds(expected):
    exact = Linear(8, seed=8)
    found = bmr.reduce_fit(**exact.arrays, expected=expected)
    inclusion, chosen = exact.enumerated(expected)
    np.testing.assert_allclose(found.inclusion_prob["z"], inclusion, atol=1e-6)
    np.testing.assert_array_equal(found.chosen["z"], chosen)

"""Moves of a swept matrix, against the evidence computed afresh."""

import numpy as np
import pytest
from scipy import special

from bmrjax.fitted.greedy import climb
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.log_sum_exp import log_sum_exp
from bmrjax.fitted.model_prior import SharedProbability
from bmrjax.fitted.swept import Precision, Swept

SIZE = 9
SINGLE = [np.array([i]) for i in range(SIZE)]
GROUPED = [np.array([0, 3]), *(np.array([i]) for i in (1, 2, 4, 5)), np.array([6, 8])]


def _precision(units, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, SIZE)) + 1.5 * rng.normal(size=(40, 1))
    y = x[:, 1] - 0.7 * x[:, 4] + rng.normal(size=40)
    covariance = np.linalg.inv(x.T @ x + np.eye(SIZE) / 0.9**2)
    loc = covariance @ x.T @ y
    return Precision(JointNormal(loc, covariance, np.full(SIZE, 0.1), np.full(SIZE, 0.9)), units)


@pytest.mark.parametrize("units", [SINGLE, GROUPED], ids=["single", "grouped"])
@pytest.mark.parametrize("start", [True, False], ids=["full", "empty"])
def test_many_moves_end_where_a_new_start_does(units, start):
    precision, rng = _precision(units), np.random.default_rng(1)
    swept = Swept(precision, np.full(len(units), start))
    for unit in rng.integers(0, len(units), 200):
        twin = swept.copy()
        swept.flip(unit)
        afresh = Swept(precision, swept.mask)
        np.testing.assert_allclose(swept.log_bayes_factors(), afresh.log_bayes_factors(), rtol=1e-9)
        np.testing.assert_allclose(swept.moments(), afresh.moments(), rtol=1e-9, atol=1e-12)
        assert swept.delta_f() == pytest.approx(afresh.delta_f(), abs=1e-9)
        # What is copied stays as it was.
        assert twin.delta_f() == pytest.approx(Swept(precision, twin.mask).delta_f(), abs=1e-9)


def test_a_swap_gains_the_difference_of_two_evidences():
    precision, rng = _precision(SINGLE), np.random.default_rng(2)
    for _ in range(10):
        mask = rng.random(SIZE) < 0.5
        mask[:2] = True, False
        swept = Swept(precision, mask)
        incoming, outgoing = np.flatnonzero(~mask), np.flatnonzero(mask)
        gains = swept.swap_gains(incoming, outgoing)
        for row, i in zip(gains, incoming, strict=True):
            for gain, o in zip(row, outgoing, strict=True):
                other = mask.copy()
                other[[i, o]] = True, False
                exact = Swept(precision, other).delta_f() - swept.delta_f()
                assert gain == pytest.approx(exact, abs=1e-9)
                assert swept.swap_gain(i, o) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_climb_ends_where_no_exchange_helps(seed):
    precision, prior = _precision(SINGLE, seed), SharedProbability(SIZE)
    for start in (np.ones(SIZE, bool), np.zeros(SIZE, bool)):
        mask = climb(precision, start, prior)
        here = Swept(precision, mask).delta_f() + prior.log_prob(mask)
        for i in np.flatnonzero(~mask):
            for o in np.flatnonzero(mask):
                other = mask.copy()
                other[[i, o]] = True, False
                there = Swept(precision, other).delta_f() + prior.log_prob(other)
                assert there <= here + 1e-8


def test_sums_of_exponentials_neither_overflow_nor_vanish():
    terms = np.array([-1000.0, 800.0, 801.0, -np.inf])
    assert log_sum_exp(terms) == pytest.approx(float(special.logsumexp(terms)), rel=1e-15)
    assert log_sum_exp(np.full(3, -np.inf)) == -np.inf

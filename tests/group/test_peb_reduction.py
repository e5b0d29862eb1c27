"""Reduction of the second level of group studies, against one big Gaussian and over seeds."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from group_study import NAMES, Study, fixed
from scipy import stats
from scipy.special import logsumexp

import bmrjax as bmr
from bmrjax import reduction
from bmrjax.fitted.verification import Verification
from bmrjax.group.reduce_effects import _off

# --- reduction of the second level --------------------------------------------------------


def test_the_evidence_of_submodels_is_that_of_the_big_gaussian():
    study = Study()
    reduced = fixed(study).reduce()
    models = reduced.models()
    full = study.whole(0.2)[0]
    for _, row in models.head(10).iterrows():
        free = row[list(reduced.candidates)].to_numpy(bool)
        expected = study.whole(0.2, free)[0] - full
        # Given the variances, the posterior is normal, and the prediction exact as well.
        assert row["delta_f"] == pytest.approx(expected, abs=1e-3)
        assert row["measured"] == pytest.approx(expected, abs=1e-3)
    assert reduced.candidates[:2] == ("mean[gain]", "mean[decay]")
    np.testing.assert_array_equal(reduced.chosen["mean"], [True, False, True])
    np.testing.assert_array_equal(reduced.chosen["age"], [False, True, False])


def test_a_mean_is_removed_at_zero_and_not_at_the_priors_mean():
    study = Study(count=6, effects=((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), tau=0.05)
    arrays = study.arrays
    shift = np.array([0.7, 0.0, -0.4])
    # The same likelihoods under a prior with another mean.
    weight = np.einsum("inm,m->in", arrays["covariance"], shift / study.prior_scale**2)
    arrays["loc"] = arrays["loc"] + weight
    arrays["prior"] = reduction.Normal(jnp.asarray(shift), jnp.asarray(study.prior_scale))
    found = bmr.peb(between_scale=0.2, between_spread=1e-6, names=NAMES, **arrays)
    reduced = found.reduce()
    matrix, y = study.stacked
    matrix, offset = matrix[:, :3], np.concatenate([x @ shift for x in study.x])

    def evidence(free):
        at = np.where(free, shift, 0.0)
        used = matrix[:, free]
        covariance = study.noise_scale**2 * np.eye(len(y)) + used @ used.T
        for i, x in enumerate(study.x):
            block = slice(i * study.rows, (i + 1) * study.rows)
            own = x * study.prior_scale * 0.2
            covariance[block, block] += own @ own.T
        mean = np.concatenate([x @ at for x in study.x])
        return stats.multivariate_normal(cov=covariance).logpdf(y - mean)

    assert np.abs(offset).max() > 0
    full = evidence(np.ones(3, bool))
    for _, row in reduced.models().iterrows():
        free = row[NAMES].to_numpy(bool)
        assert row["delta_f"] == pytest.approx(evidence(free) - full, abs=1e-3)
        assert row["measured"] == pytest.approx(evidence(free) - full, abs=1e-3)
    np.testing.assert_array_equal(reduced.chosen["mean"], [False, False, False])


@pytest.mark.slow
def test_measured_inclusion_is_that_of_all_submodels_when_subjects_are_few():
    study = Study(count=5, tau=0.3, effects=((0.5, 0.0, -0.6), (0.0, 0.25, 0.0)))
    found = bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays)
    reduced = found.reduce(expected=3)
    exact = np.zeros(6)
    total = 0.0
    components = found._components
    masks = reduced.models()[list(reduced.candidates)].to_numpy(bool)
    assert len(masks) == 64
    grid = np.linspace(-5, 5, 15)
    points = np.stack([a.ravel() for a in np.meshgrid(grid, grid, grid)], 1)
    log_prior = stats.norm.logpdf(points).sum(1)
    for mask in masks:
        level = found._level.reduced(mask, np.zeros(6))
        weight = np.exp(logsumexp(level.at(components.log_scale(points)).log_evidence + log_prior))
        exact += weight * mask
        total += weight
    measured = np.concatenate(list(reduced.inclusion_prob.values()))
    np.testing.assert_allclose(measured, exact / total, atol=0.02)


def test_a_prediction_that_few_subjects_do_not_bear_is_a_finding():
    study = Study(count=8, seed=0, tau=0.3)
    found = bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays)
    with pytest.warns(
        bmr.FitWarning, match="GroupFit.reduce: evidence-off: .* the measured evidence"
    ):
        reduced = found.reduce(forced=["mean"])
    assert [finding.code for finding in reduced.findings] == ["evidence-off"]
    assert "evidence-off" in repr(reduced)
    assert found.reduce(forced=["mean"], verify=False).findings == ()


@pytest.mark.parametrize("trusted", [True, False])
def test_evidence_that_is_not_reliable_is_said_not_to_be_used(trusted):
    verification = Verification(
        np.array([0.0, -1.0]),
        np.array([-5.0, -1.0]),
        np.full(2, 0.01),
        np.zeros(2),
        np.full(2, trusted),
    )
    (finding,) = _off(verification, SimpleNamespace(prob=np.array([0.6, 0.4])))
    assert ("by the measured evidence" in finding.advice) == trusted
    assert ("as predicted" in finding.advice) != trusted


@pytest.mark.slow
def test_effects_come_back_over_seeds():
    right, false, missed = 0, 0, 0
    for seed in range(20):
        study = Study(count=16, seed=100 + seed)
        found = bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays)
        probability = found.reduce(forced=["mean"], verify=False).inclusion_prob["age"]
        right += bool(probability[1] > 0.5)
        false += int((probability[[0, 2]] > 0.5).sum())
        missed += int(probability[1] < 0.5)
    assert right == 20
    assert missed == 0
    assert false <= 2


@pytest.mark.slow
def test_intervals_cover_the_truth():
    inside = []
    for seed in range(25):
        study = Study(count=8, seed=200 + seed)
        found = bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays)
        truth = np.array([0.8, 0.0, -1.0])
        inside += list((found.lower["mean"] < truth) & (truth < found.upper["mean"]))
        slope = np.array([0.0, 0.5, 0.0]) / study.age.std()
        inside += list((found.lower["age"] < slope) & (slope < found.upper["age"]))
    # 150 intervals at 95 %; at .9 or above with probability .99.
    assert np.mean(inside) >= 0.9

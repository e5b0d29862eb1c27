"""Averages over submodels follow the evidence that was measured."""

import numpy as np
import pytest
from scipy.special import ndtr

from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.measured_average import by_measured_evidence
from bmrjax.fitted.model_average import average
from bmrjax.fitted.model_prior import model_prior
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.search import search
from bmrjax.fitted.swept import Precision
from bmrjax.fitted.verification import Verification


def _nodes(count, size=4):
    """Return joint normals of a regression at several values of its noise, with their weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, size)) + rng.normal(size=(30, 1))
    y = x @ np.linspace(0.6, 0.0, size) + rng.normal(size=30)
    precisions = []
    for noise in np.linspace(0.8, 1.4, count):
        covariance = np.linalg.inv(x.T @ x / noise**2 + np.eye(size) / 0.7**2)
        loc = covariance @ x.T @ y / noise**2
        normal = JointNormal(loc, covariance, np.zeros(size), np.full(size, 0.7))
        precisions.append(Precision(normal, [np.array([i]) for i in range(size)]))
    log_weight = np.log(np.full(count, 1 / count))
    return Nodes(precisions, log_weight)


def _verified(found, shift):
    nothing = np.zeros(len(shift))
    predicted = found.delta_f[: len(shift)]
    return Verification(predicted, predicted + shift, nothing, nothing)


@pytest.mark.parametrize("count", [1, 3])
def test_averages_are_those_of_submodels_by_their_measured_evidence(count):
    nodes, rng = _nodes(count), np.random.default_rng(3)
    found = search(nodes, model_prior(2.0, 4), rng)
    after = by_measured_evidence(found, _verified(found, 2 * rng.normal(size=16)), nodes)
    # All sixteen submodels, one by one, without the terms of the prediction.
    assert not np.array_equal(np.argsort(-after.prob), np.arange(16))
    terms = [nodes.terms(mask) for mask in found.masks]
    mean = sum(p * share @ loc for p, (share, loc, _) in zip(after.prob, terms, strict=True))
    square = sum(
        p * share @ (variance + loc**2)
        for p, (share, loc, variance) in zip(after.prob, terms, strict=True)
    )
    shown = average(after.found)
    np.testing.assert_allclose(shown.inclusion_prob, after.prob @ found.masks, atol=1e-12)
    np.testing.assert_allclose(shown.mean, mean, atol=1e-12)
    np.testing.assert_allclose(shown.sd, np.sqrt(square - mean**2), atol=1e-12)
    assert after.chosen.tolist() == found.masks[np.argmax(after.prob)].tolist()
    draws = _below(terms, after.prob, found.masks, shown.upper)
    np.testing.assert_allclose(draws[shown.upper != 0], 0.975, atol=1e-9)


def _below(terms, prob, masks, x):
    """Return the probability of each element to be below a value."""
    total = np.zeros(len(x))
    for p, mask, (share, loc, variance) in zip(prob, masks, terms, strict=True):
        scale = np.sqrt(np.where(mask, variance, 1.0))
        inside = np.where(mask, ndtr((x - loc) / scale), x >= 0)
        total += p * share @ inside
    return total


def test_evidence_as_predicted_changes_nothing():
    nodes = _nodes(2)
    found = search(nodes, model_prior(None, 4), np.random.default_rng(0))
    for check in (None, _verified(found, np.zeros(16))):
        after = by_measured_evidence(found, check, nodes)
        assert after.best == 0
        np.testing.assert_allclose(average(after.found).mean, average(found).mean, atol=1e-12)


def test_a_sampler_s_averages_move_with_the_submodels_that_were_measured():
    nodes, rng = _nodes(1, size=14), np.random.default_rng(2)
    found = search(nodes, model_prior(None, 14), rng)
    shift = np.zeros(10)
    shift[3] = 3.0
    after = by_measured_evidence(found, _verified(found, shift), nodes)
    before, shown = average(found), average(after.found)
    assert after.best == 3
    moved = (after.prob - found.prob) @ found.masks
    np.testing.assert_allclose(shown.inclusion_prob - before.inclusion_prob, moved, atol=1e-9)
    loc = np.stack([nodes.terms(mask)[1][0] for mask in found.masks])
    np.testing.assert_allclose(shown.mean - before.mean, (after.prob - found.prob) @ loc, atol=1e-9)


@pytest.mark.parametrize("shift", [[-np.inf] * 4, [np.inf, 0, 0, 0], [np.nan, 0, 0, 0]])
def test_evidence_that_is_no_number_moves_nothing_and_is_not_reliable(shift):
    nodes = _nodes(1)
    found = search(nodes, model_prior(2.0, 4), np.random.default_rng(3))
    verification = _verified(found, np.array(shift))
    assert not verification.reliable(found)
    np.testing.assert_array_equal(verification.prob(found.prob[:4]), found.prob[:4])


def test_a_submodel_without_evidence_loses_its_probability():
    nodes = _nodes(1)
    found = search(nodes, model_prior(2.0, 4), np.random.default_rng(3))
    verification = _verified(found, np.array([-np.inf, 0, 0, 0]))
    assert verification.reliable(found)
    prob = verification.prob(found.prob[:4])
    assert prob[0] == 0
    np.testing.assert_allclose(prob.sum(), found.prob[:4].sum())

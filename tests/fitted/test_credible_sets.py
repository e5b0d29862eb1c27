"""Credible sets and families of submodels, against enumeration."""

import itertools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from exact_regression import log_prior
from scipy import stats

import bmrjax as bmr
from bmrjax import reduction
from bmrjax.fitted import search
from bmrjax.fitted.credible_sets import find_credible_sets

NOISE, PRIOR = 0.8, 1.4


def regression(x, y):
    """Return the exact posterior of a linear regression as arguments of `reduce_fit`."""
    size = x.shape[1]
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(size) / PRIOR**2)
    return {
        "loc": covariance @ x.T @ y / NOISE**2,
        "covariance": covariance,
        "prior": reduction.Normal(jnp.zeros(size), jnp.full(size, PRIOR)),
    }


def copies(seed=0, rows=60):
    """Return eight columns of which the first three are copies, and the fourth is close to the fifth."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    x[:, 1] = x[:, 2] = x[:, 0]
    x[:, 4] = x[:, 3] + 0.2 * rng.normal(size=rows)
    y = 0.8 * x[:, 0] - 0.6 * x[:, 3] + 1.5 * x[:, 7] + NOISE * rng.normal(size=rows)
    return x, y


NAMES = ["a", "a2", "a3", "b", "b2", "c", "d", "e"]


def enumerate_submodels(x, y, expected=None):
    masks = np.array(list(itertools.product([True, False], repeat=x.shape[1])))
    log_prob = [
        stats.multivariate_normal(
            cov=PRIOR**2 * x[:, m] @ x[:, m].T + NOISE**2 * np.eye(len(y))
        ).logpdf(y)
        + log_prior(m, expected)
        for m in masks
    ]
    weight = np.exp(log_prob - np.max(log_prob))
    return masks, weight / weight.sum()


def test_copies_are_in_one_set_with_the_probability_of_enumeration():
    x, y = copies()
    found = bmr.reduce_fit(**regression(x, y), names=NAMES)
    sets = found.credible_sets()
    assert [set(one.names) for one in sets[:1]] == [{"e"}]
    by_name = {frozenset(one.names): one for one in sets}
    together = next(one for names, one in by_name.items() if "a" in names or "a2" in names)
    assert set(together.names) <= {"a", "a2", "a3"}
    assert len(together.names) > 1
    near = next(one for names, one in by_name.items() if names & {"b", "b2"})
    assert set(near.names) <= {"b", "b2"}
    masks, weight = enumerate_submodels(x, y)
    for one in sets:
        at = [NAMES.index(name) for name in one.names]
        assert one.prob == pytest.approx(weight @ masks[:, at].any(1), abs=1e-6)
        assert one.prob >= 0.95
        assert one.expected_effects == pytest.approx((weight @ masks)[at].sum(), abs=1e-6)
        columns = np.abs(np.corrcoef(x[:, at].T)) if len(at) > 1 else np.ones((1, 1))
        # Correlations in the likelihood are those of columns that are not centred.
        assert one.correlation == pytest.approx(columns.min(), abs=0.05)
    assert not any({"c", "d"} & set(one.names) for one in sets)


def test_a_set_has_no_member_that_it_does_not_need():
    x, y = copies()
    found = bmr.reduce_fit(**regression(x, y), names=NAMES)
    masks, weight = enumerate_submodels(x, y)
    for coverage in (0.5, 0.8, 0.99):
        for one in found.credible_sets(coverage):
            at = [NAMES.index(name) for name in one.names]
            for out in at if len(at) > 1 else []:
                rest = [i for i in at if i != out]
                assert weight @ masks[:, rest].any(1) < coverage


def test_sets_are_disjoint_and_larger_with_coverage():
    x, y = copies(1)
    found = bmr.reduce_fit(**regression(x, y), names=NAMES)
    for coverage in (0.6, 0.95, 0.999):
        names = [name for one in found.credible_sets(coverage) for name in one.names]
        assert len(names) == len(set(names))
    assert all(one.prob >= 0.999 for one in found.credible_sets(0.999))


def test_unrelated_columns_do_not_share_a_set():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(60, 6))
    y = 0.3 * x[:, 0] + 0.3 * x[:, 1] + NOISE * rng.normal(size=60)
    found = bmr.reduce_fit(**regression(x, y), expected=3)
    weak = found.inclusion_prob["z"][:2]
    assert weak.max() < 0.8
    assert found.credible_sets(0.8) == ()
    # Without the condition on correlations, they do.
    (mixed,) = found.credible_sets(0.8, least_correlation=0.0)
    assert mixed.names == ("0", "1")


def test_the_sampler_gives_the_sets_of_enumeration(monkeypatch):
    x, y = copies(3)
    exact = bmr.reduce_fit(**regression(x, y), names=NAMES)
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", 3)
    sampled = bmr.reduce_fit(**regression(x, y), names=NAMES)
    assert "Gibbs" in repr(sampled)
    exact_e, sampled_e = (
        next(one for one in found.credible_sets() if "e" in one.names) for found in (exact, sampled)
    )
    assert exact_e.names == sampled_e.names
    masks, weight = enumerate_submodels(x, y)
    for one in sampled.credible_sets():
        at = [NAMES.index(name) for name in one.names]
        assert one.prob == pytest.approx(weight @ masks[:, at].any(1), abs=0.03)


def test_groups_are_members_of_sets():
    x, y = copies()
    found = bmr.reduce_fit(
        **regression(x, y), names=NAMES, groups={"first": ["a", "c"], "second": ["a2", "d"]}
    )
    sets = found.credible_sets(0.95)
    with_copies = next(one for one in sets if {"first", "second", "a3"} & set(one.names))
    assert set(with_copies.names) <= {"first", "second", "a3"}
    assert with_copies.correlation > 0.99


def test_verified_probabilities_are_used():
    x, y = copies()
    found = bmr.reduce_fit(**regression(x, y), names=NAMES)
    weight, sets = found._terms()
    assert weight.sum() == pytest.approx(1.0)
    moved = bmr.reduce_fit(
        {"beta": np.random.default_rng(0).multivariate_normal(*_moments(x, y), 3000)},
        model=_model,
        data=(np.float32(x), np.float32(y)),
        names=NAMES,
        verify=True,
    )
    weight, sets = moved._terms()
    assert weight.sum() == pytest.approx(1.0, abs=1e-9)
    inclusion = weight @ sets
    np.testing.assert_allclose(inclusion, moved.inclusion_prob["beta"], atol=1e-9)


def _moments(x, y):
    exact = regression(x, y)
    return exact["loc"], exact["covariance"]


def _model(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def test_ten_copies_make_one_set():
    weight = np.full(10, 0.1)
    found = find_credible_sets(
        weight,
        np.eye(10, dtype=bool),
        np.ones((10, 10)),
        [f"x{i}" for i in range(10)],
        coverage=0.85,
        least_correlation=0.5,
    )
    assert [len(one.names) for one in found] == [9]
    assert found[0].prob == pytest.approx(0.9)


def test_sets_are_printed_where_something_stands_in():
    x, y = copies()
    found = bmr.reduce_fit(**regression(x, y), names=NAMES)
    assert "credible sets, with an effect in each at 95 %:\n  {e}: probability 1.000" in repr(found)
    apart = bmr.reduce_fit(**regression(x[:, 3:8:2], y))
    assert "credible sets" not in repr(apart)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 1.0}, "coverage is above 0 and below 1, got 1.0"),
        ({"coverage": 95}, "coverage is above 0 and below 1, got 95"),
        ({"least_correlation": 1.5}, "least_correlation is between 0 and 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    found = bmr.reduce_fit(**regression(*copies()))
    with pytest.raises(ValueError, match=message):
        found.credible_sets(**options)


# --- families -----------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [None, 2])
def test_families_are_those_of_enumeration(expected):
    x, y = copies()
    found = bmr.reduce_fit(**regression(x, y), names=NAMES, expected=expected)
    table = found.families({"noise": ["c", "d"], "b": ["b", "b2"]})
    masks, weight = enumerate_submodels(x, y, expected)
    noise, b = masks[:, [5, 6]].any(1), masks[:, [3, 4]].any(1)
    prior = np.exp(log_prior(masks, expected))
    prior /= prior.sum()
    ratio = {}
    for _, row in table.iterrows():
        inside = (noise == row["noise"]) & (b == row["b"])
        assert row["prob"] == pytest.approx(weight[inside].sum(), abs=1e-6)
        assert row["prior"] == pytest.approx(prior[inside].sum(), abs=1e-9)
        ratio[row["noise"], row["b"]] = weight[inside].sum() / prior[inside].sum()
    for _, row in table.iterrows():
        expected_share = ratio[row["noise"], row["b"]] / sum(ratio.values())
        assert row["prob_equal"] == pytest.approx(expected_share, abs=1e-6)
    assert table["prob"].sum() == pytest.approx(1.0)
    assert table["prob"].is_monotonic_decreasing


def test_families_of_a_second_level_are_named_by_covariate():
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 8)
    loc = rng.normal([0.5, 0.0], 0.15, (16, 2)) + np.outer(group, [0.0, 0.5])
    study = bmr.peb(
        design={"group": group},
        loc=loc,
        covariance=np.stack([0.05**2 * np.eye(2)] * 16),
        prior=reduction.Normal(0.0, 1.0),
        names=["gain", "decay"],
    )
    table = study.reduce(forced=["mean"]).families({"any": ["group"]})
    assert bool(table["any"][0])
    assert table["prob"][0] > 0.99
    # Of two candidates, zero, one and two are equally probable.
    assert table["prior"][0] == pytest.approx(5 / 12)


@pytest.mark.parametrize(
    ("sets", "error", "message"),
    [
        ({}, ValueError, "at least one set"),
        ({"one": "a"}, TypeError, r"\['a'\]"),
        ({"one": []}, ValueError, "'one' is empty"),
        ({"one": ["nothing"]}, ValueError, "there is no candidate 'nothing'"),
        ({"one": ["a"], "two": ["a", "b"]}, ValueError, "'one' and 'two' overlap"),
        ({n: [n] for n in NAMES}, ValueError, "at most 6"),
    ],
)
def test_bad_families_are_refused(sets, error, message):
    found = bmr.reduce_fit(**regression(*copies()), names=NAMES)
    with pytest.raises(error, match=message):
        found.families(sets)

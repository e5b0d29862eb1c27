"""Priors on submodels: their laws, and what the search makes of them."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

import bmrjax as bmr
from bmrjax.fitted import search
from bmrjax.fitted.compare_families import compare_families
from bmrjax.fitted.heredity import Heredity, heredity_of
from bmrjax.fitted.model_prior import Independent, SharedProbability, model_prior

NAMES = ["a", "b", "c", "a b", "a^2", "a b c", "b c", "d"]
UNITS = len(NAMES)
RULES = {
    "none": Heredity.none(UNITS),
    "strong": heredity_of(NAMES, option=True),
    "weak": heredity_of(NAMES, option="weak"),
}
every_rule = pytest.mark.parametrize("rule", RULES)
every_prior = pytest.mark.parametrize("expected", [None, 2.0])


def _allowed(rule):
    masks = np.array(list(itertools.product([False, True], repeat=UNITS)))
    return masks[RULES[rule].allows(masks)]


# --- laws ---------------------------------------------------------------------------------


@every_rule
def test_the_prior_adds_up_to_one(rule):
    prob = np.exp(SharedProbability(UNITS, RULES[rule]).log_prob(_allowed(rule)))
    assert prob.sum() == pytest.approx(1.0, abs=1e-12)


def test_no_candidate_is_more_probable_in_than_out():
    prior = SharedProbability(UNITS)
    for mask in _allowed("none"):
        assert (prior.log_odds(mask) < 0).all()


def test_few_among_many_have_the_odds_of_the_beta_binomial_prior():
    prior = SharedProbability(1000)
    for k in (0, 1, 5):
        odds = np.exp(prior.log_odds(np.arange(1000) < k))[-1]
        assert odds == pytest.approx((k + 1) / (1000 - k), rel=1e-9)
    # All of many are in: nothing underflows, and the odds are at most one.
    assert -0.1 < prior.log_odds(np.ones(1000, bool))[0] < 0


@every_rule
def test_the_prior_is_an_integral_over_the_probability_of_a_candidate(rule):
    """Of a candidate whose parents allow it, as the definition of heredity says candidate by candidate."""
    of_rule = RULES[rule]
    for mask in _allowed(rule)[::7]:
        out = 0
        for unit in np.flatnonzero(~mask):
            parents = np.flatnonzero(of_rule.parents[unit])
            enough = any if of_rule.weak and len(parents) else all
            out += enough(mask[p] for p in parents)
        size = int(mask.sum())
        area = 2 * integrate.quad(lambda p, k=size, m=out: p**k * (1 - p) ** m, 0, 0.5)[0]
        assert np.exp(SharedProbability(UNITS, of_rule).log_prob(mask)) == pytest.approx(
            area, rel=1e-9
        )


@every_rule
@every_prior
def test_odds_are_ratios_of_probabilities(rule, expected):
    prior = model_prior(expected, UNITS, RULES[rule])
    for mask in _allowed(rule):
        odds = prior.log_odds(mask)
        for unit in np.flatnonzero(RULES[rule].free(mask)):
            with_it, without = mask.copy(), mask.copy()
            with_it[unit], without[unit] = True, False
            ratio = prior.log_prob(with_it) - prior.log_prob(without)
            assert odds[unit] == pytest.approx(ratio, abs=1e-12)


@every_rule
@every_prior
def test_draws_are_from_the_prior(rule, expected):
    prior = model_prior(expected, UNITS, RULES[rule])
    masks = _allowed(rule)
    prob = np.exp(prior.log_prob(masks))
    prob /= prob.sum()
    drawn = prior.draw(20_000, np.random.default_rng(0))
    assert RULES[rule].allows(drawn).all()
    sizes = np.bincount(masks.sum(1), prob, UNITS + 1)
    np.testing.assert_allclose(drawn.mean(0), prob @ masks, atol=4 * 0.5 / np.sqrt(20_000))
    found = np.bincount(drawn.sum(1), minlength=UNITS + 1) / len(drawn)
    np.testing.assert_allclose(found, sizes, atol=4 * 0.5 / np.sqrt(20_000))


@every_prior
@pytest.mark.parametrize("units", [1, 2, 7, 40])
def test_the_mixture_is_the_prior(expected, units):
    prior = model_prior(None if expected is None else 0.4, units)
    weights, prob = prior.mixture()
    assert weights.sum() == pytest.approx(1.0)
    one, other = np.zeros(units, bool), np.arange(units) < (units + 1) // 2
    ratio = np.exp(prior.log_prob(other) - prior.log_prob(one))
    of = [weights @ (prob ** m.sum() * (1 - prob) ** (~m).sum()) for m in (one, other)]
    assert of[1] / of[0] == pytest.approx(ratio, rel=1e-9)


@every_prior
def test_priors_of_families_are_sums_over_submodels(expected):
    masks = _allowed("none")
    prior = model_prior(expected, UNITS)
    prob = np.exp(prior.log_prob(masks))
    prob /= prob.sum()
    sets = {"one": [0, 3], "two": [1], "three": [2, 4, 5]}
    table = compare_families(prob, masks, sets, prior)
    for _, row in table.iterrows():
        inside = np.ones(len(masks), bool)
        for name, members in sets.items():
            inside &= masks[:, members].any(1) == row[name]
        assert row["prior"] == pytest.approx(prob[inside].sum(), rel=1e-9)
        assert row["prob_equal"] == pytest.approx(1 / 8)


@pytest.mark.slow
def test_priors_of_families_of_many_candidates_stay_exact():
    prior = model_prior(None, 2000)
    masks = np.zeros((1, 2000), bool)
    sets = {"one": [0], "most": list(range(1, 1901)), "few": list(range(1901, 1911))}
    table = compare_families(np.ones(1), masks, sets, prior)
    assert table["prior"].sum() == pytest.approx(1.0, rel=1e-10)
    none = table[~(table["one"] | table["most"] | table["few"])]
    assert none["prior"].iloc[0] == pytest.approx(2 / 1912, rel=1e-9)


@pytest.mark.parametrize("expected", [0.0, 8.0, -1.0, float("nan")])
def test_an_expected_number_out_of_range_is_refused(expected):
    with pytest.raises(ValueError, match="expected is a number of candidates between 0 and 8"):
        Independent(8, expected)


# --- what the search makes of them -----------------------------------------------------------


def _linear(columns, seed, rows=40):
    rng = np.random.default_rng([columns, seed])
    x = rng.normal(size=(rows, columns))
    x[:, 1::2] = 0.7 * x[:, : 2 * (columns // 2) : 2] + 0.7 * x[:, 1::2]
    effects = rng.normal(0, 0.6, columns) * (rng.random(columns) < 0.3)
    return x, x @ effects + rng.normal(size=rows)


def _reduced(x, y, **options):
    covariance = np.linalg.inv(x.T @ x + np.eye(x.shape[1]) / 0.8**2)
    prior = bmr.reduction.Normal(0.0, 0.8)
    return bmr.reduce_fit(loc=covariance @ x.T @ y, covariance=covariance, prior=prior, **options)


def _evidence(x, y, masks):
    eye = np.eye(len(y))
    covariances = (0.8**2 * x[:, m] @ x[:, m].T + eye for m in masks)
    return np.array([stats.multivariate_normal(cov=c).logpdf(y) for c in covariances])


@pytest.mark.parametrize("columns", [3, 7, 10])
def test_probabilities_are_those_of_enumeration(columns):
    x, y = _linear(columns, 0)
    masks = np.array(list(itertools.product([False, True], repeat=columns)))
    weight = np.exp(_evidence(x, y, masks) + SharedProbability(columns).log_prob(masks))
    inclusion = weight @ masks / weight.sum()
    np.testing.assert_allclose(_reduced(x, y).inclusion_prob["z"], inclusion, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
@every_prior
def test_the_sampler_has_the_probabilities_of_all_submodels(seed, expected, monkeypatch):
    x, y = _linear(11, seed)
    every = _reduced(x, y, expected=expected)
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", 0)
    found = _reduced(x, y, expected=expected)
    # 1,000 sweeps: the largest Monte Carlo error of a probability is near .01.
    np.testing.assert_allclose(found.inclusion_prob["z"], every.inclusion_prob["z"], atol=0.04)
    np.testing.assert_array_equal(found.chosen["z"], every.chosen["z"])
    np.testing.assert_allclose(found.mean["z"], every.mean["z"], atol=0.02)


@pytest.mark.parametrize("option", [True, "weak"])
def test_the_sampler_has_the_probabilities_of_all_submodels_that_heredity_allows(
    option, monkeypatch
):
    rng = np.random.default_rng(3)
    main = rng.normal(size=(50, 4))
    pairs = list(itertools.combinations(range(4), 2))
    x = np.column_stack([main, *(main[:, i] * main[:, j] for i, j in pairs)])
    y = 0.5 * x[:, 0] + 0.4 * x[:, 1] + 0.4 * x[:, 4] + rng.normal(size=50)
    letters = "abcd"
    names = [*letters, *(f"{letters[i]}:{letters[j]}" for i, j in pairs)]
    every = _reduced(x, y, names=names, heredity=option)
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", 0)
    found = _reduced(x, y, names=names, heredity=option)
    np.testing.assert_allclose(found.inclusion_prob["z"], every.inclusion_prob["z"], atol=0.05)
    np.testing.assert_array_equal(found.chosen["z"], every.chosen["z"])


@pytest.mark.slow
def test_more_candidates_without_effect_do_not_bring_more_false_ones():
    """The probability that none of the noise is in does not go to zero with its amount."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(100, 60))
    y = x[:, 0] - x[:, 1] + rng.normal(size=100)
    false = {
        (count, expected): _reduced(
            x[:, :count], y, expected=None if expected is None else count * expected
        )
        .inclusion_prob["z"][2:]
        .sum()
        for count in (20, 60)
        for expected in (None, 0.5)
    }
    assert false[60, 0.5] > 1.5 * false[20, 0.5]
    assert false[60, None] < 1.5 * max(false[20, None], 0.2)
    assert false[60, None] < 0.3 * false[60, 0.5]

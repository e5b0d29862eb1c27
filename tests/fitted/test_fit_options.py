"""Heredity, sizes against predictions, draws, trees and plots of the reduction of a finished fit."""

import functools
import itertools

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import special, stats

import bmrjax as bmr
from bmrjax import plot
from bmrjax.fitted import search
from bmrjax.fitted.greedy import best_by_size, climb
from bmrjax.fitted.heredity import heredity_of
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.model_prior import Independent
from bmrjax.fitted.reduction_page import reduction_page
from bmrjax.fitted.swept import Precision

PRIOR_SCALE, NOISE = 1.3, 0.7
NAMES = ["a", "b", "c", "a:b", "a:c", "b:c"]


@functools.cache
def _data():
    rng = np.random.default_rng(0)
    main = rng.normal(size=(40, 3))
    x = np.column_stack([main, *(main[:, i] * main[:, j] for i, j in ((0, 1), (0, 2), (1, 2)))])
    return x, x @ np.array([0.15, 0.4, 0, 0.3, 0, 0]) + NOISE * rng.normal(size=40)


def _exact(x, y):
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(x.shape[1]) / PRIOR_SCALE**2)
    return covariance @ x.T @ y / NOISE**2, covariance


def _model(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SCALE).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


@functools.cache
def _found():
    loc, covariance = _exact(*_data())
    draws = np.random.default_rng(1).multivariate_normal(loc, covariance, 8000)
    data = tuple(np.float32(part) for part in _data())
    return bmr.reduce_fit({"beta": draws}, model=_model, data=data, names=NAMES)


def _arrays(**options):
    loc, covariance = _exact(*_data())
    prior = bmr.reduction.Normal(0.0, PRIOR_SCALE)
    return bmr.reduce_fit(loc=loc, covariance=covariance, prior=prior, names=NAMES, **options)


@functools.cache
def _enumerated():
    """Return the submodels that heredity allows with their evidences, from the covariance of the data."""
    x, y = _data()
    masks = np.array(list(itertools.product([False, True], repeat=6)))
    parents = {3: (0, 1), 4: (0, 2), 5: (1, 2)}
    allowed = [all(m[p] for u, of in parents.items() if m[u] for p in of) for m in masks]
    masks = masks[allowed]
    cov = [PRIOR_SCALE**2 * x[:, m] @ x[:, m].T + NOISE**2 * np.eye(40) for m in masks]
    return masks, np.array([stats.multivariate_normal(cov=c).logpdf(y) for c in cov])


def _log_prior(masks, expected, enough):
    """Return ln of the prior: in proportion to odds, or of a probability that is shared, up to ½.

    Args:
        masks: Submodels that are allowed.
        expected: Expected number of effects, or None.
        enough: `all` if all parents have to be in, `any` if one is enough.
    """
    size = masks.sum(1)
    if expected is not None:
        return np.log(expected / (6 - expected)) * size
    parents = {3: (0, 1), 4: (0, 2), 5: (1, 2)}
    may = np.array([[u < 3 or enough(m[p] for p in parents[u]) for u in range(6)] for m in masks])
    out = (may & ~masks).sum(1)
    inside = special.betainc(size + 1, out + 1, 0.5)
    return np.log(2 * inside) + special.betaln(size + 1, out + 1)


# --- heredity -----------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [None, 1.5])
@pytest.mark.parametrize("exhaustive", [12, 0])
def test_heredity_gives_what_enumeration_of_the_allowed_submodels_gives(
    expected, exhaustive, monkeypatch
):
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", exhaustive)
    masks, evidence = _enumerated()
    log_prior = _log_prior(masks, expected, all)
    weight = np.exp(evidence + log_prior - evidence.max())
    weight /= weight.sum()
    found = _arrays(heredity=True, expected=expected)
    # The sampler has 1,000 sweeps.
    atol = 1e-6 if exhaustive else 0.05
    np.testing.assert_allclose(found.inclusion_prob["z"], weight @ masks, atol=atol)
    np.testing.assert_array_equal(found.chosen["z"], masks[np.argmax(weight)])
    listed = found.models()[NAMES].to_numpy()
    assert not (listed[:, 3] & ~(listed[:, 0] & listed[:, 1])).any()
    table = found.families({"interactions": ["a:b", "a:c", "b:c"]}).set_index("interactions")
    prior = np.exp(log_prior)
    with_one = masks[:, 3:].any(1)
    assert table.loc[True, "prior"] == pytest.approx(prior[with_one].sum() / prior.sum())
    assert table.loc[True, "prob"] == pytest.approx(weight[with_one].sum(), abs=atol)


@pytest.mark.parametrize("exhaustive", [12, 0])
def test_weak_heredity_gives_what_enumeration_of_the_allowed_submodels_gives(
    exhaustive, monkeypatch
):
    monkeypatch.setattr(search, "EXHAUSTIVE_UNITS", exhaustive)
    x, y = _data()
    masks = np.array(list(itertools.product([False, True], repeat=6)))
    parents = {3: (0, 1), 4: (0, 2), 5: (1, 2)}
    masks = masks[[all(m[a] or m[b] for u, (a, b) in parents.items() if m[u]) for m in masks]]
    cov = [PRIOR_SCALE**2 * x[:, m] @ x[:, m].T + NOISE**2 * np.eye(40) for m in masks]
    evidence = np.array([stats.multivariate_normal(cov=c).logpdf(y) for c in cov])
    prior = np.exp(_log_prior(masks, None, any))
    assert prior.sum() == pytest.approx(1.0)
    weight = np.exp(evidence - evidence.max()) * prior
    weight /= weight.sum()
    found = _arrays(heredity="weak")
    # The sampler has 1,000 sweeps.
    atol = 1e-6 if exhaustive else 0.05
    np.testing.assert_allclose(found.inclusion_prob["z"], weight @ masks, atol=atol)
    np.testing.assert_array_equal(found.chosen["z"], masks[np.argmax(weight)])
    assert len(masks) > len(_enumerated()[0])
    table = found.families({"interactions": ["a:b", "a:c", "b:c"]}).set_index("interactions")
    with_one = masks[:, 3:].any(1)
    assert table.loc[True, "prior"] == pytest.approx(prior[with_one].sum())


@pytest.mark.parametrize("option", [True, "weak"])
def test_what_is_free_is_what_leaves_a_submodel_allowed(option):
    names = ["a", "b", "c", "a b", "a^2", "a b c", "b c"]
    rule = heredity_of(names, option=option)
    masks = np.array(list(itertools.product([False, True], repeat=7)))
    allowed = masks[rule.allows(masks)]
    for unit in range(7):
        flipped = allowed.copy()
        flipped[:, unit] ^= True
        np.testing.assert_array_equal(rule.is_free(unit, allowed), rule.allows(flipped))
    for mask in allowed:
        by_one = [rule.is_free(unit, mask[None])[0] for unit in range(7)]
        np.testing.assert_array_equal(rule.free(mask), by_one)
        for unit in np.flatnonzero(~mask & ~rule.free(mask)):
            for way in rule.ways_in(int(unit), mask):
                larger = mask.copy()
                larger[way] = True
                assert larger[unit]
                assert rule.allows(larger)


def test_one_parent_is_enough_and_a_forced_one_as_well():
    names = ["a", "b", "a:b", "b:c", "a:b:c"]
    rule = heredity_of(names, option="weak")
    parents = [[n for n, p in zip(names, row, strict=True) if p] for row in rule.parents]
    assert parents == [[], [], ["a", "b"], ["b"], ["a:b", "b:c"]]
    rule = heredity_of(names[1:], option="weak", forced=["a"])
    assert rule.parents.sum(1).tolist() == [0, 0, 1, 2]


def test_an_interaction_comes_in_with_its_main_effects():
    # Neither main effect is worth it alone, and the interaction is worth both.
    loc, covariance = np.array([0.02, 0.02, 1.0]), 0.01 * np.eye(3)
    prior = bmr.reduction.Normal(0.0, 0.5)
    options = {"names": ["a", "b", "a:b"], "heredity": True, "expected": 0.3}
    found = bmr.reduce_fit(loc=loc, covariance=covariance, prior=prior, **options)
    assert found.chosen["z"].all()
    normal = JointNormal(loc, covariance, np.zeros(3), np.full(3, 0.5))
    precision = Precision(normal, [np.array([i]) for i in range(3)])
    rule = heredity_of(["a", "b", "a:b"], option=True)
    assert climb(precision, np.zeros(3, bool), Independent(3, 0.3, rule)).all()
    by_one = heredity_of(["a", "b", "a:b"], option="weak")
    assert climb(precision, np.zeros(3, bool), Independent(3, 0.3, by_one)).sum() == 2
    sizes = best_by_size(precision, np.ones(3, bool), Independent(3, 0.3, rule), 3)
    assert sizes.sum(1).tolist() == [0, 1, 2, 3]
    assert rule.allows(sizes).all()


def test_powers_and_products_of_products_have_all_their_parts_as_parents():
    names = ["a", "b", "a^2", "a b", "a^2 b", "c:d"]
    rule = heredity_of(names, option=True)
    parents = {
        name: [n for n, p in zip(names, row, strict=True) if p]
        for name, row in zip(names, rule.parents, strict=True)
    }
    assert parents["a^2"] == ["a"]
    assert parents["a b"] == ["a", "b"]
    assert parents["a^2 b"] == ["a", "b", "a^2", "a b"]
    assert parents["c:d"] == []  # its main effects are no candidates


def test_parents_that_are_forced_are_in():
    found = _arrays(heredity={"a:b": ["a", "b"], "b:c": ["b", "c"]}, forced=["a", "b"])
    inclusion = found.inclusion_prob["z"]
    assert inclusion[:2].tolist() == [1, 1]
    assert inclusion[3] > inclusion[5]


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"a:b": ["a", "z"]}, ValueError, r"heredity names \['z'\]"),
        ({"a:b": "a"}, TypeError, r"write \['a'\]"),
        ({"a": ["b"], "b": ["a"]}, ValueError, r"makes \['a', 'b'\] parents of themselves"),
        (3, TypeError, "got int"),
        ("both", TypeError, "got 'both'"),
    ],
)
def test_bad_heredity_is_refused(option, error, message):
    with pytest.raises(error, match=message):
        _arrays(heredity=option)


def test_heredity_without_interactions_is_refused():
    with pytest.raises(ValueError, match="reads interactions from names"):
        heredity_of(["0", "1"], option=True)


# --- sizes against predictions ------------------------------------------------------------


def test_predictions_by_size_are_those_of_leaving_each_point_out():
    x, y = _data()
    with np.errstate(all="raise"):  # weights of zero are no errors
        table = _found().path()
    assert table["size"].tolist() == list(range(7))
    for row in table.itertuples():
        columns = x[:, [NAMES.index(name) for name in row.candidates]]
        exact = 0.0
        for i in range(40):
            rest = np.arange(40) != i
            loc, covariance = _exact(columns[rest], y[rest])
            variance = NOISE**2 + columns[i] @ covariance @ columns[i]
            exact += stats.norm.logpdf(y[i], columns[i] @ loc, np.sqrt(variance))
        # The Monte Carlo error of 2,000 draws; larger where the report says that it is not reliable.
        assert row.elpd == pytest.approx(exact, abs=0.15 if row.pareto_k < 0.7 else 0.6)
    assert (table["pareto_k"][:3] < 0.7).all()
    assert table["difference"].max() == 0
    np.testing.assert_allclose(table["difference"], table["elpd"] - table["elpd"].max(), atol=1e-9)


def _weighted(x, y, weight, observed):
    beta = numpyro.sample("beta", dist.Normal(0, 2.0).expand([2]).to_event(1))
    shares, counted = numpyro.handlers.scale(scale=weight), numpyro.handlers.mask(mask=observed)
    with numpyro.plate("rows", len(y)), shares, counted:
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def test_rows_with_a_weight_leave_with_all_of_it_and_masked_rows_do_not_count():
    rng = np.random.default_rng(5)
    x, weight = rng.normal(size=(30, 2)), rng.choice([0.5, 1.0, 3.0], 30)
    y = x @ [1.0, 0.4] + rng.normal(size=30)
    observed = np.arange(30) % 5 > 0

    def exact(columns, rows):
        design, of = columns[rows], weight[rows]
        precision = design.T @ (of[:, None] * design) + np.eye(columns.shape[1]) / 4
        covariance = np.linalg.inv(precision)
        return covariance @ design.T @ (of * y[rows]), covariance

    full = exact(x, np.flatnonzero(observed))
    draws = {"beta": rng.multivariate_normal(*full, size=20_000)}
    data = (x, y, weight, observed)
    found = bmr.reduce_fit(draws, model=_weighted, data=data, names=["0", "1"])
    for row in found.path().itertuples():
        columns = x[:, [int(name) for name in row.candidates]]
        each = []
        for i in np.flatnonzero(observed):
            loc, covariance = exact(columns, np.flatnonzero(observed & (np.arange(30) != i)))
            variance = 1 + columns[i] @ covariance @ columns[i]
            each.append(stats.norm.logpdf(y[i], columns[i] @ loc, np.sqrt(variance)))
        assert row.elpd == pytest.approx(sum(each), abs=0.15)
        assert row.elpd_error == pytest.approx(np.std(each) * len(each) ** 0.5, rel=0.03)


def test_a_path_of_masked_rows_alone_is_refused():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    draws = {"beta": rng.normal(scale=2.0, size=(2000, 2))}
    data = (x, y, np.ones(30), np.zeros(30, bool))
    with pytest.raises(ValueError, match="the program masks every data point"):
        bmr.reduce_fit(draws, model=_weighted, data=data).path()


def test_a_path_needs_a_program():
    with pytest.raises(ValueError, match=r"path needs the joint posterior of a program: arrays"):
        _arrays().path()


# --- what comes out -----------------------------------------------------------------------


def test_candidates_may_have_the_names_of_columns():
    found, plain = (
        bmr.reduce_fit(
            loc=np.array([0.8, 0.1]),
            covariance=0.02 * np.eye(2),
            prior=bmr.reduction.Normal(0.0, 1.0),
            names=names,
        )
        for names in (["size", "prob"], ["dose", "age"])
    )
    renamed = {"dose": "size (candidate)", "age": "prob (candidate)"}
    pd.testing.assert_frame_equal(found.models(), plain.models().rename(columns=renamed))
    page = reduction_page(found, title="", command="")
    (section,) = (section for section in page.sections if section.name == "submodels")
    assert [row[0] for row in section.blocks[0].rows] == ["size", "size, prob", "nothing", "prob"]
    with pytest.raises(ValueError, match=r"\['prob'\] are columns of the table"):
        found.families({"prob": ["size"]})


def test_draws_are_those_of_the_average():
    found = _found()
    draws = found.draws(20_000)["beta"]
    # Four standard errors of 20,000 draws.
    np.testing.assert_allclose((draws != 0).mean(0), found.inclusion_prob["beta"], atol=0.015)
    np.testing.assert_allclose(draws.mean(0), found.mean["beta"], atol=0.006)
    np.testing.assert_allclose(draws.std(0), found.sd["beta"], atol=0.006)
    with pytest.raises(ValueError, match="num_draws is at least 1"):
        found.draws(0)


def test_a_tree_has_the_names_of_the_elements():
    pytest.importorskip("xarray")
    tree = _found().to_arviz(100)
    assert tree["posterior"]["beta"].dims == ("chain", "draw", "beta_dim_0")
    assert tree["posterior"]["beta"].shape == (1, 100, 6)
    of_interaction = tree["reduction"]["beta_inclusion_prob"].sel(beta_dim_0="a:b")
    assert float(of_interaction) == _found().inclusion_prob["beta"][3]


def test_plots_show_probabilities_by_name_and_predictions_by_size():
    pytest.importorskip("matplotlib")
    found = _found()
    left, right = plot.inclusion(found, most=4).axes
    shown = [label.get_text() for label in left.get_yticklabels()]
    table = found.table().set_index("element")
    assert set(shown) == set(table["inclusion_prob"].nlargest(4).index)
    np.testing.assert_allclose(
        [bar.get_width() for bar in left.patches], table["inclusion_prob"][shown]
    )
    assert "of 6 in the chosen submodel" in left.get_title(loc="left")
    np.testing.assert_allclose(right.collections[-1].get_offsets()[:, 0], table["mean"][shown])
    axes = plot.sizes(found).axes[0]
    line = axes.lines[1]
    np.testing.assert_array_equal(line.get_xdata(), range(7))
    assert max(line.get_ydata()) == 0
    assert axes.get_legend().get_texts()[0].get_text() == f"chosen: {found.chosen['beta'].sum()}"


def test_probabilities_of_zero_are_no_errors_where_numpy_raises():
    """As under ``numpy.seterr(all="raise")``, which some set to find errors of their own."""
    z = np.random.default_rng(0).normal(size=(40, 4))
    covariance = np.linalg.inv(z.T @ z + np.eye(4))
    given = {"covariance": covariance, "prior": bmr.reduction.Normal(0.0, 1.0)}
    loc = covariance @ z.T @ (50 * z[:, 0])
    expected = bmr.reduce_fit(loc=loc, **given).inclusion_prob
    with np.errstate(all="raise"):
        found = bmr.reduce_fit(loc=loc, **given).inclusion_prob
        bmr.compact(bmr.zoo.MLP(4, (2,), 2, key=jax.random.key(0)), np.ones(4))
    np.testing.assert_equal(found, expected)

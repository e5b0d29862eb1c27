"""The estimators for scikit-learn, by its own checks and against exact answers."""

import importlib
import itertools
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

import bmrjax as bmr
from bmrjax.estimators.logistic import Logistic
from bmrjax.estimators.standardised import INTERCEPT_SCALE
from bmrjax.fitted import search


@parametrize_with_checks([bmr.SparseRegressor(), bmr.SparseClassifier()])
def test_the_interface_is_that_of_scikit_learn(estimator, check):
    check(estimator)


def _regression(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)) * [1, 10, 0.1, 1, 1] + [0, 5, 0, 0, -3]
    y = 4 + 0.8 * x[:, 0] - 0.03 * x[:, 1] + rng.normal(size=rows)
    return x, y


def test_inclusion_probabilities_are_those_of_enumeration():
    x, y = _regression()
    fit = bmr.SparseRegressor(expected=2).fit(x, y)
    z, t = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    noise = fit.noise_scale_ / y.std()
    masks = np.array(list(itertools.product([False, True], repeat=5)))
    evidence = []
    for mask in masks:
        cov = 0.25 * z[:, mask] @ z[:, mask].T + 100 + noise**2 * np.eye(len(t))
        log_prior = mask.sum() * np.log(2 / 3)
        evidence.append(stats.multivariate_normal(cov=cov).logpdf(t) + log_prior)
    weight = np.exp(np.array(evidence) - max(evidence))
    weight /= weight.sum()
    np.testing.assert_allclose(fit.inclusion_prob_, weight @ masks, atol=1e-6)
    np.testing.assert_array_equal(fit.selected_, masks[np.argmax(weight)])
    assert ((fit.coef_ != 0) == fit.selected_).all()
    assert 0.7 < fit.noise_scale_ < 1.3


def test_an_average_predicts_between_its_submodels_with_its_uncertainty():
    x, y = _regression(rows=300)
    one, average = (bmr.SparseRegressor(average=a).fit(x[:60], y[:60]) for a in (False, True))
    assert (average.coef_ != 0).all()
    for fit in (one, average):
        mean, sd = fit.predict(x[60:], return_std=True)
        np.testing.assert_allclose(mean, x[60:] @ fit.coef_ + fit.intercept_)
        assert (sd > fit.noise_scale_).all()
        # The standard error of a share of 240 is 0.014 at 0.95.
        assert np.mean(np.abs(y[60:] - mean) < 1.96 * sd) == pytest.approx(0.95, abs=0.05)


def test_columns_have_names_and_interactions_their_parents():
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    x = x[["bmi", "bp", "s5", "age"]]
    fit = bmr.SparseRegressor(heredity=True)
    terms = PolynomialFeatures(2, include_bias=False).set_output(transform="pandas")
    pipeline = make_pipeline(terms, fit).fit(x, y)
    names = list(fit.feature_names_in_)
    selected = {name for name, is_in in zip(names, fit.selected_, strict=True) if is_in}
    assert {"bmi", "bp", "s5"} <= selected
    for name in selected:
        assert set(name.replace("^2", "").split()) <= selected
    assert pipeline.score(x, y) > 0.45
    assert "bmi bp" in fit.reduction_.candidates


def test_a_group_is_in_or_out_as_a_whole():
    rng = np.random.default_rng(0)
    x = pd.get_dummies(pd.Series(rng.choice(list("abcd"), 120)), dtype=float)
    x["z"] = rng.normal(size=120)
    y = np.asarray(x @ [1.0, 0, 0, -1, 0]) + 0.5 * rng.normal(size=120)
    fit = bmr.SparseRegressor(groups={"level": list("abcd")}).fit(x, y)
    assert fit.selected_.tolist() == [True, True, True, True, False]
    assert len(set(fit.inclusion_prob_[:4])) == 1
    with pytest.raises(ValueError, match=r"groups: 'level'.*\['e'\] are none of the columns"):
        bmr.SparseRegressor(groups={"level": ["e"]}).fit(x, y)
    with pytest.raises(
        ValueError, match="groups: 'a' is also a column, which is not in that group"
    ):
        bmr.SparseRegressor(groups={"a": ["b", "c"]}).fit(x, y)
    for groups in ({"one": ["a", "b"], "other": ["b", "c"]}, {"one": ["b", "b"]}):
        with pytest.raises(ValueError, match=r"groups: \['b'\] are named more than once"):
            bmr.SparseRegressor(groups=groups).fit(x, y)


@pytest.mark.parametrize("kind", [bmr.SparseRegressor, bmr.SparseClassifier])
def test_a_column_may_have_the_name_of_the_intercept(kind):
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(60, 2)), columns=["intercept", "z"])
    y = x["intercept"] + 0.2 * rng.normal(size=60)
    fit = kind().fit(x, y if kind is bmr.SparseRegressor else y > 0)
    assert fit.selected_.tolist() == [True, False]


def test_the_mode_of_a_softmax_is_that_of_scikit_learn():
    x, y = load_iris(return_X_y=True)
    design = np.column_stack([np.ones(len(x)), (x - x.mean(0)) / x.std(0)])
    posterior = Logistic(design, y, np.full(5, 1.5), 3)
    ours, covariance = posterior.normal_at(posterior.mode())
    theirs = LogisticRegression(C=1.5**2, fit_intercept=False, tol=1e-10, max_iter=5000)
    np.testing.assert_allclose(ours.reshape(3, 5), theirs.fit(design, y).coef_, atol=1e-4)
    assert np.linalg.eigvalsh(covariance).min() > 0


def _two_of(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    odds = 2 * x[:, 3] - 1.5 * x[:, 1]
    return x, (rng.uniform(size=rows) < 1 / (1 + np.exp(-odds))).astype(int)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_classifier_has_the_submodel_of_largest_evidence(seed):
    x, y = _two_of(50, 6, seed)
    fit = bmr.SparseClassifier().fit(x, y)
    design = np.column_stack([np.ones(len(x)), (x - x.mean(0)) / x.std(0)])
    whole = Logistic(design, y, np.array([INTERCEPT_SCALE, *[1.5] * 6]), 1)
    masks = np.array(list(itertools.product([False, True], repeat=6)))
    evidence = []
    for mask in masks:
        one = whole.of_columns(np.array([True, *mask]))
        evidence.append(one.log_evidence(one.mode()))
    best = np.argmax(evidence + fit.reduction_._prior.log_prob(masks))
    np.testing.assert_array_equal(fit.selected_, masks[best])


@pytest.mark.slow
def test_more_columns_than_the_full_model_has_rows_for():
    x, y = _two_of(100, 60)
    found = set(np.flatnonzero(bmr.SparseClassifier().fit(x, y).selected_).tolist())
    assert {1, 3} <= found
    assert len(found) <= 3
    rng = np.random.default_rng(1)
    x = rng.normal(size=(25, 40))
    for target, columns in (
        (2 * x[:, 3] + 0.3 * rng.normal(size=25), [3]),
        (2 * x[:, 3], [3]),
        (rng.normal(size=25), []),
    ):
        fit = bmr.SparseRegressor().fit(x, target)
        assert np.flatnonzero(fit.selected_).tolist() == columns


def test_dates_are_refused_by_name():
    table = pd.DataFrame({"age": np.arange(9.0), "visit": pd.date_range("2020", periods=9)})
    with pytest.raises(ValueError, match=r"columns \['visit'\] hold dates or durations"):
        bmr.SparseRegressor().fit(table, np.arange(9.0))


def test_classes_have_names_and_probabilities_are_those_of_the_classes():
    data = load_iris(as_frame=True)
    labels = data.target_names[data.target]
    for average in (False, True):
        fit = bmr.SparseClassifier(average=average).fit(data.data, labels)
        prob = fit.predict_proba(data.data)
        np.testing.assert_allclose(prob.sum(1), 1.0)
        assert fit.coef_.shape == (3, 4)
        assert fit.score(data.data, labels) > 0.95
        assert np.mean(fit.classes_[prob.argmax(1)] == labels) > 0.95
        assert fit.inclusion_prob_[2:].min() > 0.9  # petals tell them apart
        if not average:
            assert ((fit.coef_ != 0).all(0) == fit.selected_).all()


def test_probabilities_of_an_uncertain_classifier_are_calibrated():
    x, y = load_breast_cancer(return_X_y=True)
    x = x[:, :8]
    fit = bmr.SparseClassifier(expected=4).fit(x[:100], y[:100])
    plain = 1 / (1 + np.exp(-(x[100:] @ fit.coef_[0] + fit.intercept_[0])))
    prob = fit.predict_proba(x[100:])[:, 1]

    def nll(p):
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return -np.mean(np.where(y[100:] == 1, np.log(p), np.log1p(-p)))

    assert nll(prob) < nll(plain)
    assert fit.selected_.sum() < 8


def test_options_are_searched_and_refused():
    x, y = _regression()
    search = GridSearchCV(bmr.SparseRegressor(), {"prior_scale": [0.2, 1.0]}, cv=2).fit(x, y)
    assert search.best_params_["prior_scale"] in (0.2, 1.0)
    with pytest.raises(
        ValueError, match="prior_scale must be a positive, finite standard deviation, got -1"
    ):
        bmr.SparseRegressor(prior_scale=-1).fit(x, y)
    with pytest.raises(ValueError, match="only one"):
        bmr.SparseClassifier().fit(x, np.zeros(len(x)))


def test_a_column_that_does_not_vary_has_no_effect():
    x, y = _regression()
    x[:, 3] = 7.0
    fit = bmr.SparseRegressor().fit(x, y)
    assert fit.coef_[3] == fit.inclusion_prob_[3] == 0
    alone = bmr.SparseRegressor().fit(x[:, [3]], y)
    assert alone.intercept_ == pytest.approx(y.mean())


def test_without_scikit_learn_there_is_one_line(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("bmrjax.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    message = r"need scikit-learn. Install it by pip install 'bmrjax\[sklearn\]'"
    with pytest.raises(ImportError, match=message):
        importlib.import_module("bmrjax.estimators.regressor")


@pytest.mark.slow
def test_more_columns_than_rows_do_not_explain_the_noise_away():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 50))
    true = [3, 17, 42]
    y = x[:, true] @ [1.5, -2.0, 2.5] + rng.normal(size=40)
    fit = bmr.SparseRegressor().fit(x, y)
    chosen = np.flatnonzero(fit.selected_)
    assert set(true) <= set(chosen)
    assert len(chosen) <= 6
    assert 0.6 < fit.noise_scale_ < 1.5


@pytest.mark.parametrize("kind", [bmr.SparseRegressor, bmr.SparseClassifier])
def test_columns_of_text_are_named(kind):
    table = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "clinic": ["a", "b", "a", "b"]})
    table["ward"] = table["clinic"].astype("category")
    with pytest.raises(ValueError, match=r"\['clinic', 'ward'\] hold text.*get_dummies"):
        kind().fit(table, [0, 1, 0, 1])


@pytest.mark.parametrize("kind", [bmr.SparseRegressor, bmr.SparseClassifier])
def test_masked_entries_are_refused(kind):
    x, y = np.arange(20.0).reshape(10, 2) % 7, np.arange(10) % 2
    with pytest.raises(ValueError, match=f"{kind.__name__}: X is a masked array, with 2 of 20"):
        kind().fit(np.ma.masked_greater(x, 5.5), y)
    with pytest.raises(ValueError, match=f"{kind.__name__}: y is a masked array, with 5 of 10"):
        kind().fit(x, np.ma.masked_less(y, 1))


def test_the_sampler_runs_once_the_noise_has_settled(monkeypatch):
    runs = []
    sampled = search.sample_submodels

    def counted(*arguments, **options):
        runs.append(0)
        return sampled(*arguments, **options)

    monkeypatch.setattr(search, "sample_submodels", counted)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 60))
    x = np.column_stack([x, x[:, 3]])
    y = 1.5 * x[:, 3] - 2 * x[:, 10] + 0.5 * rng.normal(size=40)
    fit = bmr.SparseRegressor().fit(x, y)
    assert fit.selected_[10]
    assert fit.selected_[[3, 60]].sum() == 1
    assert not np.delete(fit.selected_, [3, 10, 60]).any()
    np.testing.assert_array_equal(fit.selected_, fit.reduction_.chosen["z"][1:])
    # Two chains each: at the noise of the greedy search, and at most once more.
    assert 2 <= len(runs) <= 4

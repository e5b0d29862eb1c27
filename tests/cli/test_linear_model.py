"""A linear model beside a run on a table."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.linear_model import LassoCV, LogisticRegression, Ridge

import bmrjax as bmr
from bmrjax.cli import linear_model as module
from bmrjax.cli.linear_model import LinearModel, linear_model, worse_than_linear


def numbers(rows=300, noise=0.5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    return pd.DataFrame(x, columns=list("abc")).assign(
        y=2 * x[:, 0] - x[:, 1] + noise * rng.normal(size=rows)
    )


def test_a_ridge_regression_has_the_density_of_its_errors():
    found = bmr.data.from_frame(numbers(), target="y", held_out=0.3)
    model = linear_model(found)

    # Standardised: the noise has .5 of a target whose spread is sqrt(4 + 1 + .25).
    noise = 0.5 / float(np.ravel(found.target_scale)[0])
    assert model.metrics["rmse"] == pytest.approx(noise, rel=0.15)
    expected = 0.5 * np.log(2 * np.pi * noise**2) + 0.5
    assert model.metrics["nll"] == pytest.approx(expected, abs=0.15)
    weights = Ridge(1.0).fit(*found.train).predict(found.test[0])
    gap = np.sqrt(np.mean((weights - found.test[1].ravel()) ** 2))
    assert model.metrics["rmse"] == pytest.approx(gap, rel=0.02)


def test_several_targets_count_together():
    table = numbers().assign(z=lambda t: t.a + t.c)
    found = bmr.data.from_frame(table, target=["y", "z"])
    model = linear_model(found)
    one = linear_model(bmr.data.from_frame(table.drop(columns="z"), target="y"))
    assert model.log_prob.shape == (len(found.test[0]),)
    assert model.metrics["nll"] < one.metrics["nll"] - 1  # z has no noise


def test_a_logistic_regression_predicts_classes():
    table = numbers()
    kinds = np.array(["low", "middle", "high"])[np.digitize(table.y, [-1, 1])]
    found = bmr.data.from_frame(table.assign(y=kinds), target="y", held_out=0.3)
    model = linear_model(found)
    other = LogisticRegression().fit(*found.train)
    assert model.name == "a logistic regression"
    assert model.metrics["accuracy"] == pytest.approx(other.score(*found.test), abs=0.05)
    np.testing.assert_allclose(-model.log_prob.mean(), model.metrics["nll"])


def test_there_is_none_for_images_large_tables_and_without_scikit_learn(monkeypatch):
    found = bmr.data.from_frame(numbers(60), target="y")
    assert linear_model(found) is not None
    assert linear_model(bmr.data.load_dataset("digits")) is None
    monkeypatch.setattr(module, "MOST_INPUTS", 10)
    assert linear_model(found) is None
    monkeypatch.undo()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert linear_model(found) is None


def test_a_class_of_one_row_is_left_to_the_run():
    kinds = ["a"] * 30 + ["b"] * 29 + ["c"]
    found = bmr.data.from_frame(numbers(60).assign(y=kinds), target="y")
    assert linear_model(found) is None


@pytest.mark.parametrize(("gap", "says"), [(0.5, True), (0.01, False), (-0.5, False)])
def test_it_is_said_if_the_linear_model_is_clearly_better(gap, says):
    rng = np.random.default_rng(0)
    log_prob = rng.normal(size=80)
    other = log_prob + gap + 0.1 * rng.normal(size=80)
    linear = LinearModel("a ridge regression", {"rmse": 1.0, "nll": float(-other.mean())}, other)
    finding = worse_than_linear(linear, log_prob)
    assert (finding is not None) == says
    if finding:
        assert finding.code == "worse-than-linear"
        assert "A ridge regression on all inputs" in finding.message
    assert worse_than_linear(linear, log_prob + 20 * rng.normal(size=80)) is None


def test_a_run_shows_it(tmp_path, capsys):
    from bmrjax.cli import main

    numbers(200).to_csv(tmp_path / "table.csv", index=False)
    words = ["sparsify", "--data", str(tmp_path / "table.csv"), "--out", str(tmp_path / "run")]
    words += "--method map --num-epochs 1 --steps-per-epoch 2 --no-progress --hidden 4".split()
    main(words)

    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert f"a ridge regression          RMSE {document['linear']['rmse']:.4g}, NLL" in printed
    assert "worse-than-linear" in [finding["code"] for finding in document["findings"]]


def test_public_tables_are_predicted_as_scikit_learn_does():
    wine = datasets.load_wine(as_frame=True).frame
    found = bmr.data.from_frame(wine.assign(target=wine.target.astype(str)), target="target")
    assert linear_model(found).metrics["accuracy"] >= 0.9
    found = bmr.data.from_frame(datasets.load_diabetes(as_frame=True).frame, target="target")
    by_lasso = LassoCV().fit(found.train[0], found.train[1].ravel()).predict(found.test[0])
    other = np.sqrt(np.mean((by_lasso - found.test[1].ravel()) ** 2))
    assert linear_model(found).metrics["rmse"] == pytest.approx(other, rel=0.05)


def test_nothing_is_said_of_densities_that_are_not_finite():
    log_prob = np.zeros(30)
    linear = LinearModel("a ridge regression", {"rmse": 1.0, "nll": 0.0}, log_prob)
    assert worse_than_linear(linear, np.where(np.arange(30) == 3, -np.inf, -1.0)) is None

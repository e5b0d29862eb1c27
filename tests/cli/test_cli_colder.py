"""A second fit of a table at a lower temperature, where a point estimate predicts better."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bmrjax import cli, zoo
from bmrjax.cli import colder
from bmrjax.cli.point_estimate import best_point_estimate
from bmrjax.cli.run_folder import REFITS
from bmrjax.cli.run_html_report import of_temperatures
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.run.choose_point import ChosenPoint
from bmrjax.run.sparsest import NoFiniteScoreError

ROWS = 60


def choice(nll, kept):
    noise = np.random.default_rng(0).normal(size=ROWS)
    return ChosenPoint(SimpleNamespace(num_kept=kept, timing={"seconds": 1.0}), -nll + 0.1 * noise)


ALL = ["slow-warm-up", "colder", "warmer-0.5", "warmer-1"]
# What each of them goes on from.
FROM = {"warmer-0.5": "colder", "warmer-1": "warmer-0.5"}


@pytest.mark.parametrize(
    ("point", "nlls", "made", "taken"),
    [
        (1.2, [], [], ""),  # a point estimate is worse: no further fit
        (0.97, [], [], ""),  # better by 2 nats in all, which may be chance
        (0.5, [0.5], ALL[:1], "slow-warm-up"),  # all that there is to learn
        (0.5, [0.6, 45.0], ALL[:2], "slow-warm-up"),  # the colder one has learned the noise
        (0.5, [45.0, 45.0], ALL[:2], ""),
        (0.5, [None, None], ALL[:2], ""),  # they fail
        (0.5, [1.0, 1.0], ALL[:2], ""),  # no better
        (0.5, [0.97, 0.97], ALL[:2], ""),
        # As good, and a posterior of the program itself.
        (0.5, [1.0, 0.4, 0.4, 0.4], ALL, "warmer-1"),
        (0.5, [0.7, 0.4, 0.4, 0.6], ALL, "warmer-0.5"),
        (0.5, [None, 0.4, 0.6, 0.6], ALL, "colder"),
        (0.5, [1.0, 0.4, 0.6, 0.4], ALL, "warmer-1"),
        (0.5, [1.0, 0.4, None], ALL[:3], "colder"),
        (0.5, [0.6, 0.4, 0.4, 0.4], ALL, "warmer-1"),
    ],
)
def test_fits_are_made_and_taken_only_where_they_predict_better(
    tmp_path, monkeypatch, capsys, point, nlls, made, taken
):
    rows = np.random.default_rng(1).normal(size=ROWS)
    monkeypatch.setattr(colder, "best_point_estimate", lambda *_: -point + 0.1 * rows)
    asked, waiting = [], list(nlls)
    kept = {"": 19} | {name: 200 + i for i, name in enumerate(ALL)}

    def fit(refit, start):
        asked.append(refit.folder)
        nll = waiting.pop(0)
        if nll is None:
            raise NoFiniteScoreError("No point of the path has a finite score.")
        before = FROM.get(refit.folder)
        assert before is None if start is None else start.num_kept == kept[before]
        return choice(nll, kept[refit.folder])

    options = SparsifyOptions(data="f.csv", out=tmp_path, hidden=(5,), progress=False)
    data = np.zeros((ROWS, 2)), np.zeros(ROWS)
    found, document = colder.fit_colder(choice(1.0, 19), fit, options, None, data, data, None)
    assert asked == made
    assert found.result.num_kept == kept[taken]
    there = [name for name, nll in zip(made, nlls, strict=True) if nll is not None]
    compared = document["temperatures"]
    assert compared["taken"] == ["", *there].index(taken)
    temperatures = {refit.folder: refit.temperature for refit in REFITS}
    for name, each in zip(there, compared["fits"][1:], strict=True):
        assert each["temperature"] == temperatures[name]
        assert each.get("start") == temperatures.get(FROM.get(name))
        assert each.get("slow_warm_up", False) == (name == "slow-warm-up")
        assert each["kept"] == kept[name]
    printed = capsys.readouterr().out
    assert ("fitting once more" in printed) == bool(made)
    assert ("going on from it" in printed) == (len(made) > 2)
    assert ("that fit failed" in printed) == (None in nlls)
    note, *more = of_temperatures(document)
    assert (f"Fit {compared['taken'] + 1} of these was taken" in note) == bool(there)
    assert ("by this fit, " in note) == (not there)
    # The point estimate may still be better.
    assert compared["underfits"] == (point < -found.log_prob.mean() - 0.05)
    assert len(more) == compared["underfits"]


def test_a_warm_up_that_was_asked_for_is_every_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(colder, "best_point_estimate", lambda *_: np.full(ROWS, -0.5))
    asked = []

    def fit(refit, start):
        asked.append(refit)
        return choice(1.0, 9)

    options = SparsifyOptions(data="f.csv", out=tmp_path, hidden=(5,), progress=False)
    data = np.zeros((ROWS, 2)), np.zeros(ROWS)
    first = choice(1.0, 19)
    colder.fit_colder(first, fit, options, None, data, data, None, slowly=False)
    assert [refit.folder for refit in asked] == ["colder"]
    assert not any(refit.slowly for refit in asked)


def test_what_is_asked_for_is_not_compared(tmp_path):
    def compared(shape=(5,), rows=400, **given):
        given = {"validation": 0.15, "within": 1.0} | given
        options = SparsifyOptions(data="f.csv", out=tmp_path, **given)
        return colder.may_be_colder(options, rows, shape)

    assert compared()
    assert not compared(temperature=1.0)
    assert not compared(validation=0.0)
    assert not compared(within=0.0)
    assert not compared((1, 8, 8))
    assert not compared((401,))
    assert not compared(rows=120)  # 18 rows to compare by
    assert not compared(method="map")
    assert not compared(prior="regularized-horseshoe")
    assert not compared(schedule="every")


def test_the_point_estimate_learns_what_there_is():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = np.stack([x[:, 0] * x[:, 1], x[:, 0]], 1) + 0.1 * rng.normal(size=(300, 2))
    y = y.astype(np.float32)
    split = (x[:200], y[:200]), (x[200:], y[200:])
    network = zoo.MLP(2, (20,), 2, key=jax.random.key(1))
    rows = best_point_estimate(network, *split, None, jax.random.key(0))
    assert rows.shape == (100,)
    # Two targets with noise of .1, whose entropy is -.88 nats each.
    assert -1.9 < -rows.mean() < -1.0
    labels = (x[:, 0] > 0).astype(np.int32)
    split = (x[:200], labels[:200]), (x[200:], labels[200:])
    rows = best_point_estimate(network, *split, 2, jax.random.key(0))
    assert np.all(rows <= 0)
    assert -rows.mean() < 0.2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on a wave that a posterior at temperature 1 does not learn in so few epochs.

    With a warm-up of its own, or else the slow one would learn enough.
    """
    folder = tmp_path_factory.mktemp("colder")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 300)
    y = np.sin(6 * x) + 0.02 * rng.normal(size=300)
    table = "\n".join(["x,y", *(f"{a:.5f},{b:.5f}" for a, b in zip(x, y, strict=True))])
    (folder / "wave.csv").write_text(table)
    words = ["sparsify", "--data", str(folder / "wave.csv"), "--out", str(folder / "run")]
    words += ["--num-epochs", "20", "--hidden", "20", "--no-progress"]
    cli.main([*words, "--kl-warmup-epochs", "4"])
    return folder, words


@pytest.mark.slow
def test_the_colder_fit_is_taken_reported_and_checked(finished, capsys):
    folder, _ = finished
    document = json.loads((folder / "run" / "results.json").read_text())
    compared = document["temperatures"]
    assert [fit["temperature"] for fit in compared["fits"]] == [1.0, 0.25, 0.5, 1.0]
    taken = compared["fits"][compared["taken"]]
    assert compared["taken"] > 0
    assert taken["nll"] < compared["fits"][0]["nll"]
    assert document["kept"] == taken["kept"] <= compared["fits"][1]["kept"]
    assert document["temperature"] == taken["temperature"]
    assert document["seconds"] == pytest.approx(sum(fit["seconds"] for fit in compared["fits"]))
    cli.main(["info", str(folder / "run")])
    printed = capsys.readouterr().out
    assert "at temperature 0.25, " in printed
    assert "at temperature 0.5 from 0.25, " in printed

    cli.main(["check", str(folder / "run")])
    printed = capsys.readouterr().out
    assert all((refit.folder in printed) != refit.slowly for refit in REFITS)
    note, *_ = of_temperatures(document)
    assert "at temperature 0.5 from 0.25" in note
    assert f"Fit {compared['taken'] + 1} of these was taken" in note


@pytest.mark.slow
def test_a_run_that_stopped_in_between_ends_as_if_it_had_not(finished, tmp_path):
    folder, words = finished
    before = json.loads((folder / "run" / "results.json").read_text())
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    for name in ("model", "warmer-0.5", "warmer-1"):
        shutil.rmtree(copy / name)
    (copy / "results.json").unlink()
    # The warm-up given before is that of the run, and none is tried beside it.
    cli.main([str(copy) if word == str(folder / "run") else word for word in words] + ["--resume"])
    after = json.loads((copy / "results.json").read_text())
    for fit in (*before["temperatures"]["fits"], *after["temperatures"]["fits"]):
        fit.pop("seconds")
    for name in ("rmse", "nll", "kept", "temperatures", "vfe_per_datum"):
        assert after[name] == before[name]


@pytest.mark.slow
def test_a_slow_warm_up_is_tried_before_a_colder_fit(finished, tmp_path, capsys):
    _, words = finished
    out = tmp_path / "run"
    words = [str(out) if word.endswith("run") else word for word in words]
    cli.main(words)
    document = json.loads((out / "results.json").read_text())
    compared = document["temperatures"]
    assert [fit.get("slow_warm_up", False) for fit in compared["fits"][:3]] == [False, True, False]
    assert compared["taken"] == 1
    assert document["temperature"] == 1
    assert compared["fits"][1]["nll"] < compared["fits"][0]["nll"] - 0.3
    cli.main(["info", str(out)])
    assert "at temperature 1 with a slow warm-up, " in capsys.readouterr().out
    cli.main(["check", str(out)])
    assert "slow-warm-up" in capsys.readouterr().out
    # Goes on from what is there, with the options that were given before.
    before = compared
    shutil.rmtree(out / "model")
    (out / "results.json").unlink()
    cli.main([*words, "--resume"])
    after = json.loads((out / "results.json").read_text())["temperatures"]
    for fit in (*before["fits"], *after["fits"]):
        fit.pop("seconds")
    assert after == before

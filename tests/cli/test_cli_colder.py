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
from bmrjax.cli.run_html_report import of_temperatures
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.run.choose_point import ChosenPoint

ROWS = 60


def choice(nll, kept):
    noise = np.random.default_rng(0).normal(size=ROWS)
    return ChosenPoint(SimpleNamespace(num_kept=kept, timing={"seconds": 1.0}), -nll + 0.1 * noise)


@pytest.mark.parametrize(
    ("point", "cold", "taken"),
    [
        (1.2, None, 1.0),  # a point estimate is worse: no second fit
        (0.5, 0.4, 0.25),
        (0.5, 45.0, 1.0),  # it has learned the noise
        (0.5, None, 1.0),  # it fails
        (0.5, 1.0, 1.0),  # no better
        (0.97, None, 1.0),  # better by 2 nats in all, which may be chance
        (0.5, 0.97, 1.0),
    ],
)
def test_a_second_fit_is_made_and_taken_only_where_it_predicts_better(
    tmp_path, monkeypatch, capsys, point, cold, taken
):
    rows = np.random.default_rng(1).normal(size=ROWS)
    monkeypatch.setattr(colder, "best_point_estimate", lambda *_: -point + 0.1 * rows)
    made = []

    def fit(temperature):
        made.append(temperature)
        if cold is None:
            raise ValueError("No point of the path has a finite negative log likelihood.")
        return choice(cold, 200)

    options = SparsifyOptions(data="f.csv", out=tmp_path, hidden=(5,), progress=False)
    data = np.zeros((ROWS, 2)), np.zeros(ROWS)
    found, document = colder.fit_colder(choice(1.0, 19), fit, options, None, data, data, None)
    assert made == ([0.25] if point < 0.9 else [])
    compared = document["temperatures"]
    assert compared["fits"][compared["taken"]]["temperature"] == taken
    assert found.result.num_kept == (200 if taken == 0.25 else 19)
    printed = capsys.readouterr().out
    assert ("fitting once more" in printed) == bool(made)
    assert ("that fit failed" in printed) == (bool(made) and cold is None)
    assert len(compared["fits"]) == 1 + (cold is not None)
    notes = of_temperatures(document)
    assert len(notes) == (cold is not None)
    assert all(f"The fit at temperature {taken:g} was taken" in note for note in notes)


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
    """A run on a wave that a posterior at temperature 1 does not learn in so few epochs."""
    folder = tmp_path_factory.mktemp("colder")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 300)
    y = np.sin(6 * x) + 0.02 * rng.normal(size=300)
    table = "\n".join(["x,y", *(f"{a:.5f},{b:.5f}" for a, b in zip(x, y, strict=True))])
    (folder / "wave.csv").write_text(table)
    words = ["sparsify", "--data", str(folder / "wave.csv"), "--out", str(folder / "run")]
    words += ["--num-epochs", "20", "--hidden", "20", "--no-progress"]
    cli.main(words)
    return folder, words


@pytest.mark.slow
def test_the_colder_fit_is_taken_reported_and_checked(finished, capsys):
    folder, _ = finished
    document = json.loads((folder / "run" / "results.json").read_text())
    compared = document["temperatures"]
    assert [fit["temperature"] for fit in compared["fits"]] == [1.0, 0.25]
    assert compared["taken"] == 1
    assert compared["fits"][1]["nll"] < compared["fits"][0]["nll"]
    assert document["kept"] == compared["fits"][1]["kept"]
    assert document["temperature"] == 0.25
    assert document["seconds"] == pytest.approx(sum(fit["seconds"] for fit in compared["fits"]))
    cli.main(["info", str(folder / "run")])
    printed = capsys.readouterr().out
    assert "at temperature 0.25, " in printed
    assert "VFE at temperature 0.25" in printed
    cli.main(["check", str(folder / "run")])
    assert "colder" in capsys.readouterr().out
    (note,) = of_temperatures(document)
    assert "at temperature 0.25" in note
    assert "was taken" in note


@pytest.mark.slow
def test_a_run_that_stopped_in_between_ends_as_if_it_had_not(finished, tmp_path):
    folder, words = finished
    before = json.loads((folder / "run" / "results.json").read_text())
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    for name in ("model", "colder"):
        shutil.rmtree(copy / name)
    (copy / "results.json").unlink()
    cli.main([str(copy) if word == str(folder / "run") else word for word in words] + ["--resume"])
    after = json.loads((copy / "results.json").read_text())
    for fit in (*before["temperatures"]["fits"], *after["temperatures"]["fits"]):
        fit.pop("seconds")
    for name in ("rmse", "nll", "kept", "temperatures", "vfe_per_datum"):
        assert after[name] == before[name]

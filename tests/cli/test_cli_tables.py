"""The command line on tables: settings in proportion, the chosen point, what is printed."""

import json

import numpy as np
import pytest
from failing import fails

from bmrjax import cli, priors
from bmrjax.cli.build import build_prior
from bmrjax.cli.colder import may_be_colder
from bmrjax.cli.proportion import in_proportion, proportion_line
from bmrjax.cli.run_folder import resumed
from bmrjax.cli.run_report import used_inputs
from bmrjax.cli.run_sparsify import FIRST_LAYER
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.data import load_dataset
from bmrjax.run.choose_point import constant_by_evidence, without_inputs
from bmrjax.run.result import Point
from bmrjax.run.sparsest import excess, sparsest_within


def test_settings_are_in_proportion_to_the_data(tmp_path):
    given = SparsifyOptions(data="f.csv", out=tmp_path)
    small = in_proportion(given, 400, (13,))
    assert (small.hidden, small.num_epochs, small.steps_per_epoch) == ((50,), 200, 100)
    assert (small.criterion, small.stop_early, small.tolerance) == ("shrinkage", True, 1.0)
    assert (small.validation, small.within, small.batch_size) == (0.15, 1.0, 128)
    assert small.kl_warmup_epochs == 20
    assert in_proportion(given, 100, (101,)).criterion == "spike-and-slab"
    large = in_proportion(given, 9000, (13,))
    assert (large.hidden, large.steps_per_epoch) == ((50, 50), 200)
    digits = in_proportion(given, 1438, (1, 8, 8))
    assert (digits.hidden, digits.validation, digits.within) == ((100, 100), 0.15, 0.0)
    images = in_proportion(given, 60_000, (1, 28, 28))
    assert (images.hidden, images.num_epochs, images.steps_per_epoch) == ((400,) * 5, 50, None)
    assert (images.validation, images.criterion) == (0.0, "spike-and-slab")
    line = proportion_line(given, small, 400)
    assert line.startswith("400 training rows; in proportion: --hidden 50 --num-epochs 200")
    assert line.endswith("--stop-early True --tolerance 1.0")
    assert "--stop-early" not in proportion_line(given, images, 60_000)


def test_other_methods_priors_and_schedules_keep_what_suits_them(tmp_path):
    def filled(**given):
        return in_proportion(SparsifyOptions(data="f.csv", out=tmp_path, **given), 400, (13,))

    assert (filled(method="map").num_epochs, filled(method="map").stop_early) == (100, None)
    horseshoe = filled(prior="regularized-horseshoe")
    assert (horseshoe.criterion, horseshoe.stop_early) == ("spike-and-slab", True)
    assert filled(prior="regularized-horseshoe", criterion="shrinkage").criterion == "shrinkage"
    collapsed = filled(prior="collapsed-flat")
    assert (collapsed.criterion, collapsed.prior_scale) == ("shrinkage", filled().prior_scale)
    assert build_prior(collapsed) == priors.Flat(collapsed.prior_scale, collapsed=True)
    assert may_be_colder(collapsed, 400, (13,))
    assert not may_be_colder(horseshoe, 400, (13,))
    for given in ({"prior": "log-uniform"}, {"schedule": "every"}):
        assert not filled(**given).stop_early


def test_what_is_given_is_never_in_proportion(tmp_path):
    given = SparsifyOptions(
        data="f.csv",
        out=tmp_path,
        hidden=(7, 3),
        num_epochs=5,
        validation=0.0,
        criterion="regularized-horseshoe",
    )
    found = in_proportion(given, 400, (13,))
    assert (found.hidden, found.num_epochs, found.validation) == ((7, 3), 5, 0.0)
    assert found.kl_warmup_epochs == 1
    assert found.criterion == "regularized-horseshoe"
    assert "--hidden" not in proportion_line(given, found, 400)
    # Only bmr has a path from which validation data could choose.
    assert (
        in_proportion(SparsifyOptions(data="f", out=tmp_path, method="map"), 400, (13,)).validation
        == 0
    )


def test_a_run_that_goes_on_keeps_what_was_in_proportion(tmp_path):
    before = {"hidden": [9, 4], "num_epochs": 3, "steps_per_epoch": 2, "validation": 0.2}
    (tmp_path / "run.json").write_text(json.dumps(before))
    found = resumed(SparsifyOptions(data="f.csv", out=tmp_path, resume=True, num_epochs=8))
    assert (found.hidden, found.num_epochs, found.validation) == ((9, 4), 8, 0.2)


def test_the_sparsest_point_within_one_standard_error_is_chosen():
    rng = np.random.default_rng(0)
    best = rng.normal(-1.0, 0.5, 50)
    # Paired: a loss of .1 with a spread of .01 is many standard errors, one with a spread of 1 is none.
    clear, unclear = best - 0.1 + 0.01 * rng.normal(size=50), best - rng.normal(0.1, 1.0, 50)
    log_probs = np.stack([best, unclear, clear])
    gap = best - unclear
    assert 0 < gap.mean() < gap.std(ddof=1) / np.sqrt(50)
    assert sparsest_within(log_probs, [90, 20, 5], within=1.0) == 1
    assert sparsest_within(log_probs, [90, 20, 5], within=0.0) == 0
    assert sparsest_within(log_probs, [90, 20, 5], within=1000.0) == 2
    with pytest.raises(ValueError, match="No point of the path has a finite negative log likel"):
        sparsest_within(np.full((2, 3), np.nan), [2, 1], within=1.0)


def test_a_constant_is_the_answer_where_the_evidence_does_not_rule_it_out():
    constant, network = np.full(40, -1.4), np.full(40, -1.3)
    # Four nats better on the validation rows, by chance: of no use where 99 were lost on the training rows.
    log_probs = np.stack([constant, network])
    assert constant_by_evidence(log_probs, [200.0, 299.0], [0]) == 0
    assert constant_by_evidence(log_probs, [200.0, 202.0], [0]) == 0
    assert constant_by_evidence(log_probs, [200.0, 200.0], [0]) is None
    # The better one of two constants, and none that is not finite.
    assert constant_by_evidence(log_probs, [200.0, 200.0], [0, 1]) == 1
    assert constant_by_evidence(log_probs * [[np.nan], [1.0]], [200.0, 200.0], [0]) is None
    assert constant_by_evidence(log_probs, [np.nan, 200.0], [0]) is None


def test_a_rare_class_does_not_end_in_a_constant():
    """Four validation rows of 120 are positive: no score of theirs is two standard errors from another."""
    rare = np.zeros(120)
    rare[:4] = -5.0
    network = np.where(rare < 0, [*np.linspace(-4.0, -0.1, 4), *np.zeros(116)], -0.02)
    log_probs = np.stack([network, rare])
    assert excess(network, rare) < 2
    assert constant_by_evidence(log_probs, [53.0, 126.0], [1]) is None


def test_inputs_are_kept_only_if_they_lead_to_an_output():
    class Pruned:
        keep = {
            "net.layers.0.weight": np.array([[1, 0, 0], [0, 1, 0]], bool),
            "net.layers.0.bias": np.array([1, 1], bool),
            "net.layers.1.weight": np.array([[1, 0]], bool),
        }

    assert used_inputs(Pruned(), ("a", "b", "c")) == ["a"]
    assert used_inputs(Pruned(), None) is None


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A finished run on a CSV file with names, text and a constant column."""
    folder = tmp_path_factory.mktemp("table")
    lines = ["age,place,unit,score"]
    lines += [f"{i},{('Oslo', 'Rome')[i % 2]},7,{3.0 * (i % 2) + 0.1 * i}" for i in range(80)]
    (folder / "people.csv").write_text("\n".join(lines))
    words = (
        "--hidden 8 --num-epochs 10 --steps-per-epoch 40 --no-progress --num-samples 3 --refit 1"
    )
    data = ["--data", str(folder / "people.csv")]
    with pytest.MonkeyPatch.context() as patch:  # tests/cli/test_cli.py looks at plots
        patch.setattr("bmrjax.cli.run_sparsify.write_plots", lambda *_: None)
        cli.main(["sparsify", *data, "--out", str(folder / "run"), *words.split()])
    return folder, json.loads((folder / "run" / "results.json").read_text())


def test_a_table_reports_its_names_and_what_is_reached_without_inputs(table, capsys):
    folder, found = table
    assert found["columns"] == ["age", "place=Rome"]
    assert (found["target_names"], found["class_names"]) == (["score"], None)
    assert set(found["inputs_kept"]) <= set(found["columns"])
    assert found["config"]["validation"] == 0.15
    assert (found["test_rows"], found["validation_rows"]) == (8, 11)
    assert 0 <= found["fit_kept"] <= found["total"]
    assert (
        found["config"]["criterion"]
        == in_proportion(SparsifyOptions(data="f", out=folder), 72, (2,)).criterion
    )
    y = load_dataset(str(folder / "people.csv")).test[1]
    np.testing.assert_allclose(found["trivial"]["rmse"], np.sqrt(np.mean(y**2)), rtol=1e-5)
    cli.main(["info", str(folder / "run")])
    printed = capsys.readouterr().out
    assert f"({found['trivial']['rmse']:.4g} by the targets' mean)" in printed
    assert f"({len(found['inputs_kept'])} of 2)" in printed
    assert "of 11 validation rows" in printed
    unit = found["rmse"] * found["target_scale"][0]
    assert f"{'in the unit of score':<26}{unit:.4g}" in printed


def test_predict_reads_a_table_by_the_names_of_its_columns(table, tmp_path, capsys):
    folder, _ = table
    (tmp_path / "new.csv").write_text("place,extra,age\nOslo,x,10\nRome,y,11\nRome,z,50\n")
    words = ["predict", str(folder / "run"), "--data", str(tmp_path / "new.csv")]
    cli.main([*words, "--out", str(tmp_path / "p.csv")])
    cli.main([*words, "--out", str(tmp_path / "p.npy")])
    values = np.load(tmp_path / "p.npy")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "score"
    np.testing.assert_allclose([float(line) for line in lines[1:]], values, rtol=1e-5)
    # Without the target nothing is scored, with it the RMSE is.
    assert "RMSE" not in capsys.readouterr().out
    cli.main(["predict", str(folder / "run"), "--data", str(folder / "people.csv")])
    assert "in the unit of score, on 80 data points" in capsys.readouterr().out
    # The target may be written as it may be for training; rows without one are said.
    (tmp_path / "money.csv").write_text('place,age,score\nOslo,10,"$1,250.50"\nRome,11,$3\n')
    cli.main(["predict", str(folder / "run"), "--data", str(tmp_path / "money.csv")])
    assert "in the unit of score, on 2 data points" in capsys.readouterr().out
    (tmp_path / "blank.csv").write_text("place,age,score\nOslo,10,1250.50\nRome,11,\n")
    cli.main(["predict", str(folder / "run"), "--data", str(tmp_path / "blank.csv")])
    printed = capsys.readouterr().out
    assert "RMSE" not in printed
    assert "note: predictions are not scored: 1 of 2 rows have no target." in printed
    (tmp_path / "bad.csv").write_text("place,height\nOslo,10\n")
    line = fails(capsys, "predict", folder / "run", "--data", tmp_path / "bad.csv")
    assert "bad.csv lacks 'age', which the network reads; it has 'place', 'height'" in line


def test_the_point_without_inputs_keeps_the_rest():
    keep = {
        "net.layers.0.weight": np.array([[1, 0], [1, 1], [0, 0]], bool),
        "net.layers.0.bias": np.ones(3, bool),
        "net.layers.1.weight": np.ones((1, 3), bool),
    }
    dense = Point(3, 10.0, 9, 12, {"nll": 1.0}, {"scale": np.ones(2)}, keep)
    gone = Point(9, 8.0, 2, 12, {}, {"scale": np.zeros(2)}, keep, taken_back=True)
    point = without_inputs([dense, gone], FIRST_LAYER)
    assert (point.kept, point.total, point.epoch, point.metrics) == (6, 12, 3, {})
    assert [int(mask.sum()) for mask in point.keep.values()] == [0, 3, 3]
    assert np.isnan(point.vfe)
    # The point itself is as it was.
    assert dense.keep["net.layers.0.weight"].sum() == 3
    assert without_inputs([point], FIRST_LAYER) is None
    recurrent = Point(3, 1.0, 6, 6, {}, {}, {"cell.weight": np.ones(6, bool)})
    assert without_inputs([recurrent], FIRST_LAYER) is None


@pytest.mark.slow
def test_a_constant_is_the_answer_for_noise_and_has_a_status_of_its_own(tmp_path, capsys):
    values = np.random.default_rng(0).normal(size=(60, 3))
    np.savetxt(tmp_path / "noise.csv", values, delimiter=",", header="a,b,y", comments="")
    words = "--hidden 2 --num-epochs 12 --steps-per-epoch 100 --refit 1 --wait 3 --cooldown 2 --num-samples 3"
    data = ["--data", str(tmp_path / "noise.csv"), "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="3"):
        cli.main(["sparsify", *data, *words.split(), "--no-progress"])
    printed = capsys.readouterr().out
    assert "constant: The predictions do not depend on the inputs." in printed
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert "constant" in [finding["code"] for finding in found["findings"]]
    assert np.isfinite(found["vfe_per_datum"])
    # What is written can be read: far apart as they are, the predictions are nearly the same.
    np.save(tmp_path / "x.npy", np.array([[0.0, 0.0], [5.0, -5.0]]))
    words = [
        "predict",
        str(tmp_path / "run"),
        "--data",
        str(tmp_path / "x.npy"),
        "--num-samples",
        "3",
    ]
    cli.main([*words, "--out", str(tmp_path / "p.npy")])
    first, second = np.load(tmp_path / "p.npy")
    assert first == pytest.approx(second, abs=0.05)

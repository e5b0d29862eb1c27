"""Options from a file, and the file that a run writes."""

import json
import tomllib

import numpy as np
import pytest
from failing import fails
from hypothesis import given
from hypothesis import strategies as st

from bmrjax import cli
from bmrjax.cli.config_file import _toml, config_path, read_config
from bmrjax.cli.sparsify_options import SparsifyOptions

# Under the default prior scale, so short a fit is a constant.
TABLE = (
    "--method map --learning-rate 0.03 --prior-scale 1 --hidden 3 --num-epochs 20 --steps-per-epoch 50 "
    "--no-progress"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(folder / "xy.npz", x=rows, y=np.stack([100 * rows[:, 0], rows[:, 1] / 100], 1))
    words = ["--data", str(folder / "xy.npz"), "--out", str(folder / "run"), *TABLE.split()]
    cli.main(["sparsify", *words])
    return folder, json.loads((folder / "run" / "results.json").read_text())


def test_a_run_writes_the_options_that_it_was_given(finished):
    folder, _ = finished
    text = (folder / "run" / "run.toml").read_text()
    expected = {"data": str(folder / "xy.npz"), "hidden": [3], "num_epochs": 20, "method": "map"}
    expected |= {"steps_per_epoch": 50, "learning_rate": 0.03, "prior_scale": 1.0}
    assert tomllib.loads(text) == expected
    # What followed from the data stands there too, to be read and changed.
    commented = text.partition("unless given:\n")[2].replace("# ", "")
    assert tomllib.loads(commented)["batch_size"] == 128


def test_a_file_gives_the_same_run_and_the_command_line_wins(finished, capsys):
    folder, first = finished
    config = ["--config", str(folder / "run" / "run.toml"), "--no-progress"]
    cli.main(["sparsify", *config, "--out", str(folder / "again")])
    again = json.loads((folder / "again" / "results.json").read_text())
    assert (again["vfe_per_datum"], again["rmse"]) == (first["vfe_per_datum"], first["rmse"])
    assert again["config"] | {"out": 0, "config": 0} == first["config"] | {"out": 0, "config": 0}
    other = str(folder / "other")
    cli.main(["sparsify", *config, "--out", other, "--num-epochs", "10", "--seed", "3"])
    found = json.loads((folder / "other" / "results.json").read_text())["config"]
    assert (found["num_epochs"], found["seed"], found["steps_per_epoch"]) == (10, 3, 50)
    # One that goes on has the same file, but for what changed.
    cli.main(["sparsify", *config, "--out", other, "--resume", "--seed", "3"])
    kept = read_config(folder / "other" / "run.toml")
    assert (kept["num_epochs"], kept["seed"], kept["steps_per_epoch"]) == (20, 3, 50)


def test_errors_are_told_in_the_units_of_the_targets(finished, capsys):
    folder, found = finished
    scale = np.ravel(found["target_scale"])
    errors, trivial = (np.array(found[k]) for k in ("rmse_by_target", "trivial_rmse_by_target"))
    # The standardised error is over both targets.
    together = np.sqrt(np.mean(np.square(errors / scale)))
    np.testing.assert_allclose(together, found["rmse"], rtol=1e-4)
    np.testing.assert_allclose(
        np.sqrt(np.mean(np.square(trivial / scale))), found["trivial"]["rmse"], rtol=1e-6
    )
    np.testing.assert_allclose(
        found["nll_in_target_units"], found["nll"] + np.log(scale).sum(), rtol=1e-6
    )
    cli.main(["info", str(folder / "run")])
    printed = capsys.readouterr().out
    assert f"{'in the unit of target 0':<26}{errors[0]:.4g}" in printed
    assert f"({trivial[1]:.4g} by the targets' mean)" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_epoch = 3", "has num_epoch, which is no option of sparsify. Is it num_epochs?"),
        ("num_epochs = 'many'", "num_epochs = 'many': Input should be a valid integer"),
        ("criterion = 'snr'", "criterion = 'snr': Input should be 'spike-and-slab'"),
        ("num_epochs = ", "is not TOML"),
        ("config = 'other.toml'", "has config, which is no option"),
        ("[sparsify]\nnum_epochs = 3", "has sparsify, which is no option"),
    ],
)
def test_files_that_cannot_be_are_refused(tmp_path, capsys, text, message):
    (tmp_path / "bad.toml").write_text(text)
    line = fails(capsys, "sparsify", "--config", tmp_path / "bad.toml", "--data", "digits")
    assert message in line
    line = fails(capsys, "sparsify", f"--config={tmp_path / 'none.toml'}")
    assert "there is no file" in line


@pytest.mark.slow
@given(st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.lists(st.text()))
def test_values_survive_being_written(value):
    assert tomllib.loads(f"a = {_toml(value)}") == {"a": value}


@given(st.floats())
def test_numbers_survive_being_written(value):
    np.testing.assert_equal(tomllib.loads(f"a = {_toml(value)}")["a"], value)


def test_the_last_file_named_is_read(tmp_path):
    words = ["sparsify", "--config", "a.toml", "--data", "d", "--config=b.toml"]
    assert str(config_path(words)) == "b.toml"
    assert config_path(words[:1]) is None
    (tmp_path / "c.toml").write_text("batch-size = 7\ncategories = ['a']")
    options = SparsifyOptions(data="d", out=tmp_path, **read_config(tmp_path / "c.toml"))
    assert (options.batch_size, options.categories) == (7, ("a",))

"""`bmrjax export`: a saved run's network in a file that gives what `bmrjax predict` gives."""

import numpy as np
import pytest

from bmrjax import cli, export
from bmrjax.data.sources import load_dataset


def test_a_regression_by_a_flax_network_becomes_a_program(tmp_path):
    run = tmp_path / "run"
    few = "--epochs 1 --steps-per-epoch 5 --no-progress --samples 3"
    options = f"--data diabetes --net mlp-nnx --hidden 8 {few} --out {run} --method map"
    cli.main(["sparsify", *options.split()])
    found = load_dataset("diabetes")
    raw = (found.test[0] * found.input_scale + found.input_mean).astype(np.float32)
    np.save(tmp_path / "x.npy", raw)
    arguments = ["--data", str(tmp_path / "x.npy"), "--out", str(tmp_path / "p.npy")]
    cli.main(["predict", str(run), *arguments])
    expected = np.load(tmp_path / "p.npy")
    cli.main(["export", str(run), "--to", "stablehlo", "--out", str(tmp_path / "n")])
    outputs = export.load_stablehlo(tmp_path / "n")(raw)
    assert outputs.shape == expected.shape
    np.testing.assert_allclose(outputs, expected, rtol=1e-4)


def test_options_that_do_not_go_together_are_refused(tmp_path, capsys):
    for options, match in (
        ("--to stablehlo --int8", "needs --to onnx"),
        ("--batch 0", "at least 1"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["export", str(tmp_path), "--out", "n", *options.split()])
        assert match in capsys.readouterr().err

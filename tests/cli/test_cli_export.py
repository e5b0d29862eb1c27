"""`bmrjax export`: options, and units within the file. What it does with a run is in `test_cli.py`."""

import jax
import numpy as np
import pytest
from flax import nnx

from bmrjax import cli, export, zoo
from bmrjax.cli.run_export import EquinoxInUnits, FlaxInUnits, units_of_run


def document(outputs):
    targets = np.linspace(1.0, 2.0, outputs)
    return {
        "num_classes": None, "outputs": outputs, "input_mean": [[1.0, 2.0, 3.0]], "input_scale": 4.0,
        "target_mean": targets.tolist(), "target_scale": (3 * targets).tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("outputs", [1, 2])
def test_units_are_in_the_file(outputs, tmp_path):
    saved = document(outputs)
    units = units_of_run(saved, (3,))
    raw = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    equinox = zoo.MLP(3, (4,), outputs, key=jax.random.key(0))
    flax = zoo.NNXMLP(3, (4,), outputs, rngs=nnx.Rngs(0))
    flax.eval()
    standard = (raw - saved["input_mean"]) / saved["input_scale"]
    for network, example, values in (
        (EquinoxInUnits(equinox, units), raw[0], jax.vmap(equinox)(standard)),
        (FlaxInUnits(flax, units), raw, flax(standard)),
    ):
        export.stablehlo(network, example, tmp_path / "n", repeats=0)
        expected = np.asarray(values) * saved["target_scale"] + saved["target_mean"]
        expected = expected[:, 0] if outputs == 1 else expected
        found = export.load_stablehlo(tmp_path / "n")(raw)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_options_that_do_not_go_together_are_refused(tmp_path, capsys):
    for options, match in (
        ("--to stablehlo --int8", "needs --to onnx"),
        ("--batch 0", "at least 1"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["export", str(tmp_path), "--out", "n", *options.split()])
        assert match in capsys.readouterr().err

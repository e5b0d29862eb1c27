"""Runs of the command line with other priors, units, methods, networks and targets."""

import json

import numpy as np
import pytest
from small_runs import SMALL, run

from bmrjax import cli
from bmrjax.cli.build import build_network
from bmrjax.cli.sparsify_options import SparsifyOptions


@pytest.fixture(autouse=True)
def without_plots(monkeypatch):
    """Leave plots out of runs that a test starts itself; a module's fixtures start before this one."""
    monkeypatch.setattr("bmrjax.cli.run_sparsify.write_plots", lambda *_: None)


@pytest.mark.parametrize(
    "options",
    [
        "--prior spike-and-slab --schedule every --wait 2",
        "--criterion regularized-horseshoe --schedule every --wait 2",
        "--prior log-uniform --estimator local",
    ],
)
@pytest.mark.slow
def test_priors(tmp_path, options):
    found = run(tmp_path / "out", *options.split())
    assert found["vfe_per_datum"] > 0
    assert found["config"]["prior"] in options or found["config"]["prior"] == "flat"
    x = np.zeros((3, *found["input_shape"]), np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ["--data", str(tmp_path / "x.npy"), "--out", str(tmp_path / "p.npy")]
    cli.main(["predict", str(tmp_path / "out"), *words, "--num-samples", "3"])
    np.testing.assert_allclose(np.load(tmp_path / "p.npy").sum(1), 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (
            "--method with-noise --kl-weight 30 --wait 2 --learning-rate 0.01",
            "units kept",
        ),
        (
            # Few of these units differ from their prior by more than the margin.
            "--method with-noise --criterion bmrs-normal --margin 2 --kl-weight 30 --wait 2 "
            "--learning-rate 0.01",
            "units kept",
        ),
        ("--groups outputs --criterion shrinkage --schedule every --wait 2", "weights kept"),
    ],
)
@pytest.mark.slow
def test_whole_units_go(tmp_path, options, kept, capsys):
    found = run(
        tmp_path / "out",
        *"--hidden 48 --num-epochs 12 --steps-per-epoch 40".split(),
        *options.split(),
    )
    assert 0 < found["kept"] < found["total"]
    assert kept in capsys.readouterr().out
    cli.main(["compact", str(tmp_path / "out"), "--repeats", "0"])
    # Neurons are gone, not only weights.
    before, after = capsys.readouterr().out.split("layers.0.weight: ")[1].split()[:3:2]
    assert before == "48x64"
    assert int(after.split("x")[0]) < 48


@pytest.mark.parametrize(
    "options",
    [
        "--method map --net vit --depth 1 --width 8 --num-epochs 2",
        "--method mean-field --net nnx-mlp",
    ],
)
@pytest.mark.slow
def test_other_methods_and_networks(tmp_path, options):
    found = run(tmp_path / "out", *options.split())
    assert found["total"] == 0
    assert found["history"][-1]["vfe"] < found["history"][0]["vfe"]
    assert 0 < found["accuracy"] <= 1


def test_networks_of_blocks_are_built_to_size(tmp_path):
    for net, mlp in (("mlp-mixer", "channel_mlp"), ("vit", "mlp"), ("nnx-vit", "mlp")):
        options = SparsifyOptions(data="digits", out=tmp_path, net=net, depth=2, width=8)
        network = build_network(options, (1, 8, 8), 10)
        assert len(network.blocks) == 2
        assert getattr(network.blocks[0], mlp).hidden.out_features == 16


@pytest.mark.slow
def test_regression_reports_rmse(tmp_path):
    options = [*SMALL, "--steps-per-epoch", "50", "--learning-rate", "0.03", "--prior-scale", "1"]
    cli.main(["sparsify", "--data", "diabetes", "--out", str(tmp_path / "d"), *options])
    found = json.loads((tmp_path / "d" / "results.json").read_text())
    assert found["accuracy"] is None
    assert 0 < found["rmse"] < 0.95  # better than the mean of the targets

import dataclasses
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from failing import fails
from small_runs import SMALL, run

from bmrjax import cli, codec, export
from bmrjax.cli.compressed_network import STORED, _checked
from bmrjax.cli.run_compress import _extra
from bmrjax.cli.run_saved import _raw_data
from bmrjax.cli.run_sparsify import split_off
from bmrjax.cli.saved_options import PredictOptions
from bmrjax.cli.saved_run import loaded_run
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.data import load_dataset


@pytest.fixture(autouse=True)
def without_plots(monkeypatch):
    """Leave plots out of runs that a test starts itself; a module's fixtures start before this one."""
    monkeypatch.setattr("bmrjax.cli.run_sparsify.write_plots", lambda *_: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "bmr"
    return out, run(out, "--refit", "1")


def test_writes_results_model_and_plots(finished):
    out, found = finished
    expected = (
        "accuracy nll ece vfe_per_datum sparsity sparsity_per_layer compile_seconds step_ms seconds "
        "versions device seed history"
    )
    assert all(found[name] is not None for name in expected.split())
    assert found["kept"] == round((1 - found["sparsity"]) * found["total"])
    assert len(found["history"]) == 6
    assert set(found["sparsity_per_layer"]) == {"net.layers.0", "net.layers.1"}
    for name in ("learning_curves", "sparsity_per_layer", "path"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_predict_gives_the_predictions_of_the_run(finished, tmp_path):
    from bmrjax.data import load_dataset

    out, found = finished
    x, y = load_dataset("digits").test
    raw = load_dataset("digits")
    np.savez(tmp_path / "x.npz", x=x * raw.input_scale + raw.input_mean)
    arguments = ["--data", str(tmp_path / "x.npz"), "--out", str(tmp_path / "p.npy")]
    cli.main(["predict", str(out), *arguments, "--num-samples", "20"])
    probs = np.load(tmp_path / "p.npy")
    assert probs.shape == (len(y), 10)
    # The same posterior and other draws: the accuracies differ by sampling noise only.
    assert abs((probs.argmax(1) == y).mean() - found["accuracy"]) < 0.08


def test_a_data_set_by_name_is_split_and_standardised_as_that_of_the_run():
    found, other = (load_dataset("diabetes", seed=seed) for seed in (3, 0))
    document = {
        "config": {"split_seed": 3},
        "num_classes": None,
        **{name: getattr(found, name).tolist() for name in ("target_mean", "target_scale")},
    }
    options = PredictOptions(directory=Path("run"), data=Path("diabetes"))
    x, y = _raw_data(options, document)
    np.testing.assert_allclose(x, found.test[0] * found.input_scale + found.input_mean)
    np.testing.assert_allclose(y, found.test[1], atol=1e-5)
    _, y = _raw_data(options, document | {"config": {"split_seed": 0}})
    expected = other.test[1] * other.target_scale + other.target_mean
    np.testing.assert_allclose(y * found.target_scale + found.target_mean, expected, rtol=1e-5)
    # A file of the network remembers it, too.
    stored = dict.fromkeys(STORED, [[1.0]]) | {"input_shape": [1], "num_classes": 2}
    for seed in (3, 0):
        extra = _extra(stored | {"config": {"split_seed": seed}})
        assert _checked(extra, Path("f.bmr"))["split_seed"] == seed


def test_info_prints_what_was_reached(finished, capsys):
    out, found = finished
    cli.main(["info", str(out), "--path"])
    printed = capsys.readouterr().out
    assert f"{found['accuracy']:.4g}" in printed
    assert f"{found['kept']:,} of {found['total']:,}" in printed
    assert f"{min(p['vfe_per_datum'] for p in found['path']):.4f}" in printed


def test_report_explains_the_run_in_one_page(finished, tmp_path, capsys, monkeypatch):
    out, found = finished
    before = {path.name for path in out.iterdir()}
    page = tmp_path / "page.html"
    cli.main(["report", str(out), "--out", str(page), "--num-samples", "3", "--latency"])
    assert f"{page.stat().st_size:,} bytes in {page}" in capsys.readouterr().out
    assert page.stat().st_size < 1_000_000
    text = page.read_text()
    assert f"{found['kept']:,} of {found['total']:,} weights are kept" in text
    for word in (
        "Reliability",
        "net.layers.1",
        "Bytes of the compact network",
        "Latency",
        "--hidden",
    ):
        assert word in text
    assert f"bmrjax report {out} --out {page}" in text
    # Without the data, the figures are those of the run, and the page says why.

    def gone(*_, **__):
        raise FileNotFoundError("no such file")

    monkeypatch.setattr("bmrjax.cli.run_html_report.load_data", gone)
    cli.main(["report", str(out), "--no-costs"])
    assert "note: The held-out data could not be read" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} - before == {"report.html"}
    text = (out / "report.html").read_text()
    assert f"{found['nll']:.4g}" in text
    assert "this needs held-out data" in text
    (out / "report.html").unlink()


def test_report_measures_nothing_on_data_that_changed(finished, tmp_path, capsys, monkeypatch):
    out, _ = finished
    changed = load_dataset("digits")
    changed = dataclasses.replace(changed, input_mean=changed.input_mean + 1)
    monkeypatch.setattr("bmrjax.cli.run_html_report.load_data", lambda *_, **__: changed)
    cli.main(["report", str(out), "--out", str(tmp_path / "page.html"), "--no-costs"])
    assert "digits has changed since the run" in capsys.readouterr().out


def test_compact_writes_the_smaller_network(finished, tmp_path, capsys):
    from safetensors.numpy import load_file

    out, found = finished
    small = tmp_path / "small.safetensors"
    cli.main(["compact", str(out), "--out", str(small), "--repeats", "2", "--batch-sizes", "4"])
    printed = capsys.readouterr().out
    assert "parameters" in printed
    assert "batch of 4: " in printed
    arrays = load_file(small)
    weights = sum(a.size for name, a in arrays.items() if name != "inputs")
    assert weights <= found["total"]
    assert sum(np.count_nonzero(a) for n, a in arrays.items() if n != "inputs") <= found["kept"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["compact", str(out), "--out", str(tmp_path / "small.npz")])
    assert "must end in .safetensors" in capsys.readouterr().err


def test_validation_data_are_kept_out_and_choose_the_point(finished, tmp_path):
    _, whole = finished
    found = run(tmp_path / "out", "--refit", "1", "--validation", "0.5")
    # Half the data: another fit; and the point that they choose is one of its path.
    assert found["history"][0]["vfe"] < 0.8 * whole["history"][0]["vfe"]
    chosen = [p for p in found["path"] if p["vfe_per_datum"] == found["vfe_per_datum"]]
    assert [p["kept"] for p in chosen] == [found["kept"]]


def test_no_row_is_on_both_sides_of_the_validation_split(tmp_path):
    options = SparsifyOptions(data="digits", out=tmp_path, validation=0.3, seed=4)
    train = np.arange(10.0)[:, None], np.arange(10)
    kept, held = split_off(train, options)
    assert (len(kept[1]), len(held[1])) == (7, 3)
    assert sorted([*kept[1], *held[1]]) == list(range(10))
    for x, y in (kept, held):
        np.testing.assert_array_equal(x[:, 0], y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nonsense"], "Unknown data set 'nonsense'"),
        (["--data", "mnist", "--data-root", "nowhere"], "lacks train.parquet and test.parquet"),
        (["--data", "diabetes", "--net", "lenet5"], "lenet5 takes images"),
        (["--data", "diabetes", "--net", "vit"], "vit takes images"),
        (["--data", "diabetes", "--net", "mlp-mixer"], "mlp-mixer takes images"),
        (
            ["--data", "digits", "--net", "vit", "--width", "12"],
            "8 heads do not divide a width of 12",
        ),
        (["--data", "digits", "--net", "nnx-vit", "--depth", "0"], "--depth must be at least 1"),
        (
            ["--data", "digits", "--depth", "2"],
            "--depth is for vit, mlp-mixer and nnx-vit; mlp has none",
        ),
        (["--data", "digits", "--resume", "--overwrite"], "give one"),
        (["--data", "digits", "--num-samples", "0"], "--num-samples must be at least 1"),
        (["--data", "digits", "--hidden", "8", "0"], "--hidden: widths must be at least 1"),
        (["--data", "digits", "--learning-rate", "-1"], "--learning-rate must be positive"),
        (["--data", "digits", "--prior-scale", "0"], "--prior-scale must be positive"),
        (
            ["--data", "digits", "--prior", "regularized-horseshoe", "--method", "map"],
            "--method map takes flat",
        ),
        (
            [
                "--data",
                "digits",
                "--prior",
                "spike-and-slab",
                "--criterion",
                "regularized-horseshoe",
            ],
            "leave --criterion out",
        ),
        (
            ["--data", "digits", "--prior", "log-uniform", "--schedule", "verified"],
            "no evidence to verify",
        ),
        (["--data", "digits", "--prior", "log-uniform", "--prior-scale", "1"], "has no scale"),
        (
            ["--data", "digits", "--margin", "1"],
            "--margin is of --method with-noise --criterion bmrs-normal",
        ),
        (["--data", "digits", "--kl-weight", "5"], "--kl-weight is of --method with-noise"),
        (
            ["--data", "digits", "--criterion", "signal-to-noise"],
            "--criterion signal-to-noise does not go with --method bmr; it takes spike-and-slab",
        ),
        (
            ["--data", "digits", "--method", "map", "--criterion", "shrinkage"],
            "--criterion is of reductions, and --method map has none",
        ),
        (
            ["--data", "digits", "--method", "mean-field", "--wait", "3"],
            "--wait is of reductions, and --method mean-field has none",
        ),
        (
            ["--data", "digits", "--num-epochs", "5", "--cooldown", "50"],
            "--wait 0 and --cooldown 50 leave no epoch of 5 for a reduction",
        ),
        (
            [
                "--data",
                "digits",
                "--method",
                "with-noise",
                "--criterion",
                "bmrs-normal",
                "--margin",
                "-1",
            ],
            "--margin must not be negative, got -1.0",
        ),
        (
            ["--data", "digits", "--kl-warmup-epochs", "99"],
            "--kl-warmup-epochs must be between 0 and --num-epochs",
        ),
        (["--data", "digits", "--num-epochs", "0"], "--num-epochs must be at least 1"),
        (["--data", "digits", "--fraction", "2"], r"fraction must be in \(0, 1\]"),
        (["--data", "digits", "--schedule", "when-converged", "--wait", "3"], "takes no --wait"),
        (
            ["--data", "digits", "--schedule", "iterative", "--fraction", "0.5"],
            "takes no --fraction",
        ),
        (["--data", "digits", "--schedule", "every", "--mask-prior"], "--schedule verified"),
        (["--data", "digits", "--validation", "1.5"], "--validation must be between 0 and 1"),
        (["--data", "digits", "--validation", "1e-9"], "keeps 0 of 1438 rows out"),
        (["--data", "digits", "--validation", "0.1", "--method", "map"], "path of --method bmr"),
        (["--data", "digits", "--within", "-1"], "--within must not be negative, got -1.0"),
        (["--data", "digits", "--tolerance", "-1"], "--tolerance must not be negative, got -1.0"),
        (
            ["--data", "digits", "--method", "map", "--tolerance", "1"],
            "goes with --schedule verified, of --method bmr",
        ),
        (
            ["--data", "digits", "--schedule", "every", "--stop-early", "True"],
            "--stop-early goes with --schedule verified, of --method bmr or with-noise",
        ),
        (["--data", "f.csv", "--target", "a", "--num-targets", "2"], "give one"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["sparsify", "--out", str(tmp_path / "out"), *SMALL[:2], *arguments])
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    import re

    assert re.search(message, lines[0])


def test_an_earlier_run_is_not_overwritten(finished, capsys):
    out, _ = finished
    with pytest.raises(SystemExit, match="2"):
        run(out)
    assert "holds a run. Give --resume, --overwrite or another --out" in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing(finished):
    out, found = finished
    again = run(out, "--refit", "1", "--resume")
    for name in ("accuracy", "nll", "kept", "vfe_per_datum"):
        assert again[name] == found[name]


def test_overwrite_removes_the_run_and_nothing_else(tmp_path, capsys):
    out = tmp_path / "out"
    (out / "model").mkdir(parents=True)
    (out / "results.json").write_text("{}")
    (out / "thesis.txt").write_text("precious")
    with pytest.raises(SystemExit, match="2"):
        run(out, "--overwrite", "--data", "nonsense")
    assert (out / "results.json").exists()
    assert run(out, "--overwrite")["kept"] > 0
    assert (out / "thesis.txt").read_text() == "precious"


@pytest.mark.slow
def test_predicts_two_targets_in_their_own_unit(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3))
    y = np.stack([1000 + 50 * x[:, 0], 0.01 * x[:, 1]], 1)
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    out = tmp_path / "out"
    options = "--hidden 8 --num-epochs 20 --steps-per-epoch 50 --method map --no-progress"
    data = ["--data", str(tmp_path / "xy.npz")]
    # Under the default prior scale, so short a fit is a constant.
    options += " --learning-rate 0.03 --prior-scale 1"
    cli.main(["sparsify", *data, "--out", str(out), *options.split()])
    cli.main(["predict", str(out), *data, "--out", str(tmp_path / "p.npy")])
    found = np.load(tmp_path / "p.npy")
    assert found.shape == (60, 2)
    assert np.corrcoef(found[:, 0], y[:, 0])[0, 1] > 0.8
    assert abs(found[:, 0].mean() - 1000) < 30


def test_damaged_and_missing_runs_are_explained(tmp_path, capsys):
    for content, message in ((None, "holds no finished run"), ('{"a": ', "damaged or cut short")):
        if content:
            (tmp_path / "results.json").write_text(content)
        with pytest.raises(SystemExit, match="2"):
            cli.main(["info", str(tmp_path)])
        assert message in capsys.readouterr().err


def test_help_lists_the_options():
    command = [sys.executable, "-m", "bmrjax", "sparsify", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for option in ("--steps-per-epoch", "--data-root", "--resume", "verified"):
        assert option in printed


def test_a_reader_that_has_read_enough_is_no_error():
    command = [
        sys.executable,
        "-c",
        "from bmrjax.cli import script; script()",
        "sparsify",
        "--help",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_device_is_recorded(finished):
    assert finished[1]["device"] == jax.devices()[0].device_kind


def test_overwrite_leaves_folders_that_no_run_wrote(tmp_path, capsys):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "thesis.pt").write_text("precious")
    arguments = ("sparsify", "--data", "digits", "--out", tmp_path, *SMALL, "--overwrite")
    assert "holds checkpoints, which no run wrote" in fails(capsys, *arguments)
    assert (tmp_path / "checkpoints" / "thesis.pt").read_text() == "precious"


def test_out_that_is_a_file_is_explained(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    line = fails(capsys, "sparsify", "--data", "digits", "--out", tmp_path / "file", *SMALL)
    assert "is a file; give a folder" in line


def test_resume_refuses_other_options(finished, capsys):
    out, _ = finished
    arguments = ("sparsify", "--data", "digits", "--out", out, *SMALL, "--refit", "1", "--resume")
    line = fails(capsys, *arguments, "--learning-rate", "0.5", "--hidden", "9")
    assert "--hidden was [8]" in line
    assert "--learning-rate was None" in line


def test_a_diverging_run_leaves_its_last_good_state(tmp_path, capsys):
    from bmrjax.run.load_result import load

    out = tmp_path / "out"
    arguments = ("sparsify", "--data", "digits", "--out", out, "--hidden", "8", "--no-progress")
    line = fails(capsys, *arguments, "--num-epochs", "3", "--learning-rate", "1e30")
    assert "not finite" in line
    assert str(out / "last_good") in line
    params = load(out / "last_good").params
    assert all(np.isfinite(np.asarray(value)).all() for value in params.values())


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04 cut"), "cannot be read as .npz or .npy"),
        (lambda path: np.savez(path, a=np.ones(3)), r"holds the arrays ['a'], expected an array x"),
        (lambda path: np.savez(path, x=np.full((2, 1, 8, 8), np.nan)), "must be finite numbers"),
        (lambda path: np.savez(path, x=np.ones((2, 3))), "has inputs of shape (3,)"),
        (lambda path: None, "There is no file"),
    ],
)
def test_predict_explains_bad_inputs(finished, tmp_path, capsys, write, message):
    write(tmp_path / "x.npz")
    out = tmp_path / "p.npy"
    line = fails(capsys, "predict", finished[0], "--data", tmp_path / "x.npz", "--out", out)
    assert message in line
    assert not out.exists()


def test_predict_says_which_files_it_reads(finished, tmp_path, capsys):
    (tmp_path / "x.csv").write_text("1,2\n")
    line = fails(capsys, "predict", finished[0], "--data", tmp_path / "x.csv")
    assert "predict reads inputs from .npy or .npz" in line


def test_the_cost_of_reducing_and_the_command_are_recorded(finished):
    _, found = finished
    epochs = np.median([row["seconds"] for row in found["history"]])
    np.testing.assert_allclose(
        found["reduce_fraction"], 1e-3 * found["reduce_ms"] / epochs, rtol=1e-10
    )
    assert found["command"].startswith("bmrjax")
    assert found["config"]["prior"] == "flat"


def test_stopping_by_hand_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def stop(options):
        raise KeyboardInterrupt

    def stop_after_a_checkpoint(options):
        (options.out / "checkpoints" / "1").mkdir(parents=True)
        raise KeyboardInterrupt

    run = ["sparsify", "--data", "digits", "--out", str(tmp_path / "out")]
    for words, name, function in (
        (["info", str(tmp_path)], "run_saved.run_info", stop),
        (run, "run_sparsify.run_sparsify", stop),
        (run, "run_sparsify.run_sparsify", stop_after_a_checkpoint),
    ):
        monkeypatch.setattr(f"bmrjax.cli.{name}", function)
        with pytest.raises(SystemExit, match="130"):
            cli.main(words)
        printed = capsys.readouterr().err
        assert printed.startswith("bmrjax: stopped")
        assert ("--resume goes on" in printed) == (function is stop_after_a_checkpoint)


@pytest.fixture(scope="module")
def compressed(finished, tmp_path_factory):
    file = tmp_path_factory.mktemp("file") / "digits.bmr"
    cli.main(["compress", str(finished[0]), "--out", str(file), "--rate", "0.05"])
    return file


def test_a_run_becomes_a_file_that_predicts(finished, compressed, tmp_path, capsys):
    cli.main(["predict", str(compressed), "--data", "digits", "--out", str(tmp_path / "p.npy")])
    printed = capsys.readouterr().out
    cli.main(["predict", str(finished[0]), "--data", "digits"])
    accuracy = [float(text.split()[1]) for text in (printed, capsys.readouterr().out)]
    # The network of the posterior mean, quantised, against samples of a posterior that is wide as yet.
    assert abs(accuracy[0] - accuracy[1]) < 0.15
    probs = np.load(tmp_path / "p.npy")
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    assert f"{(probs.argmax(1) == load_dataset('digits').test[1]).mean():.4f}" in printed
    raw = load_dataset("digits")
    np.save(tmp_path / "x.npy", raw.test[0] * raw.input_scale + raw.input_mean)
    arguments = ["--data", str(tmp_path / "x.npy"), "--out", str(tmp_path / "q.npy")]
    cli.main(["predict", str(compressed), *arguments])
    np.testing.assert_allclose(np.load(tmp_path / "q.npy"), probs, atol=1e-4)


def test_a_run_becomes_a_program_of_raw_inputs(finished, tmp_path, capsys):
    found = load_dataset("digits")
    raw = np.asarray(found.test[0] * found.input_scale + found.input_mean, np.float32)
    _, result = loaded_run(*finished)
    (network,) = result.network(np.zeros((2, 64))).values()
    expected = jax.nn.softmax(jax.vmap(network)(found.test[0]))
    cli.main(["export", str(finished[0]), "--to", "stablehlo", "--out", str(tmp_path / "n")])
    assert "StableHLO" in capsys.readouterr().out
    outputs = export.load_stablehlo(tmp_path / "n")(raw)
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("jax2onnx", reason="needs the extra onnx", exc_type=ImportError)
    cli.main(["export", str(finished[0]), "--out", str(tmp_path / "n.onnx"), "--int8"])
    assert "eight bits per weight" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "n.onnx")
    np.testing.assert_allclose(session.run(None, {"x": raw})[0], expected, atol=0.05)


def test_the_report_is_of_the_file(finished, tmp_path, capsys):
    file = tmp_path / "digits.bmr"
    options = "--no-compact --quantiser k-means --clusters 4 --coder huffman --layout csr"
    cli.main(["compress", str(finished[0]), "--out", str(file), *options.split()])
    printed = capsys.readouterr().out
    size, original = file.stat().st_size, 4 * (64 * 8 + 8 + 8 * 10 + 10)
    assert f"{size:,} bytes instead of {original:,}: {original / size:,.1f}x smaller" in printed
    assert "codebook CSR" in printed
    assert codec.load_network(file).layers[0].weight.shape == (8, 64)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("--quantiser k-means --rate 1", "--rate goes with"),
        ("--coder huffman --layout bitmap", "--layout bitmap needs"),
        ("--rate -1", "rate must be a positive number"),
    ],
)
def test_options_that_do_not_fit_are_refused(finished, tmp_path, capsys, options, match):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["compress", str(finished[0]), "--out", str(tmp_path / "f"), *options.split()])
    assert match in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


def test_files_that_cannot_predict_are_refused(compressed, tmp_path, capsys):
    network = codec.load_network(compressed)
    (tmp_path / "cut.bmr").write_bytes(compressed.read_bytes()[:-3])
    codec.save_network(network, tmp_path / "bare.bmr")
    codec.save_network(network, tmp_path / "odd.bmr", extra={"input_shape": "x", "input_mean": {}})
    about = dict(codec.inspect_file(compressed.read_bytes()).extra)
    codec.save_network(network, tmp_path / "other.bmr", extra=about | {"input_shape": [8, 8]})
    for name, match in (
        ("cut", "checksum does not fit"),
        ("bare", "without its data's shape"),
        ("odd", "without its data's shape"),
        ("other", "without its data's shape"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["predict", str(tmp_path / f"{name}.bmr"), "--data", "digits"])
        assert match in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["predict", str(compressed), "--data", "nothing"])
    assert "no data set of this name" in capsys.readouterr().err


def test_a_result_is_encoded_with_its_posterior(finished):
    out, found = finished
    _, result = loaded_run(out, found)
    x = np.zeros((2, 64))
    scales = codec.posterior_scales(result, x)
    assert set(scales) == {f"layers.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")}
    posterior = result.posterior()["net.layers.0.weight"]
    # The unit of a weight is its layer's: w = 0.1 c w_hat, with c at the centre of its posterior.
    unit = scales["layers.0.weight"] / np.where(posterior.scale > 0, posterior.scale, np.nan)
    weight = np.asarray(result.network(x)["net"].layers[0].weight)
    np.testing.assert_allclose(np.nanmax(unit), np.nanmin(unit), rtol=1e-4)
    kept = np.asarray(result.keep["net.layers.0.weight"])
    np.testing.assert_allclose(
        np.nanmedian(unit) * np.asarray(posterior.loc)[kept], weight[kept], rtol=1e-3, atol=1e-6
    )
    decoded = codec.decode(
        codec.encode(result, inputs=(x,), quantiser=codec.RateDistortion(rate=1e-3))
    )
    gap = np.abs(np.asarray(decoded.layers[0].weight) - weight)[kept]
    assert (gap < 1.5 * scales["layers.0.weight"][kept]).all()
    with pytest.raises(codec.CodecError, match="needs one batch"):
        codec.encode(result)

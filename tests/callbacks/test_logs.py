"""Logs that callbacks write: JSON lines, CSV, TensorBoard, Weights & Biases, and the command line's."""

import importlib
import math
import struct
import sys

import numpy as np
import pandas as pd
import pytest
from callback_runs import EPOCHS, SIZE, lines_of

import bmrjax as bmr
from bmrjax import cli
from bmrjax.callbacks import (
    CSV,
    EpochEnd,
    JSONLines,
    RoundEnd,
    RunStart,
    TensorBoard,
    WeightsAndBiases,
)

# --- files --------------------------------------------------------------------------------


def test_json_lines_hold_every_record(logged):
    result, records, folder = logged
    path = folder / "deep" / "run.jsonl"
    assert lines_of(path) == [{"record": type(r).__name__, **r.to_dict()} for r in records]
    table = pd.read_json(path, lines=True)
    epochs = table[table["record"] == "EpochEnd"]
    np.testing.assert_allclose(epochs["vfe"], [row["vfe"] for row in result.history], rtol=1e-12)


def test_csv_has_a_row_per_epoch(logged):
    result, _, folder = logged
    table = pd.read_csv(folder / "run.csv")
    np.testing.assert_allclose(table["vfe"], [row["vfe"] for row in result.history], rtol=1e-12)
    nll = [row.get("nll", math.nan) for row in result.history]
    np.testing.assert_allclose(table["metrics/nll"], nll, rtol=1e-12)
    assert table["sparsity_per_layer/beta"].iloc[-1] == result.history[-1]["kept"] / -SIZE + 1
    assert table["kept"].dtype == int


def make_epoch(**values):
    numbers = {"vfe": 1.0, "kept": 2, "total": 4, "rate": 1.0, "steps": 3, "skipped_steps": 0}
    times = {"seconds": 0.5, "compile_seconds": 0.0}
    return EpochEnd(**{"epoch": 1, "num_epochs": 9, **numbers, **times, **values})


def test_numbers_that_are_not_finite(tmp_path):
    epoch = make_epoch(vfe=math.nan, metrics={"nll": -math.inf})
    JSONLines(tmp_path / "a.jsonl")(epoch)
    (line,) = lines_of(tmp_path / "a.jsonl")
    assert line["vfe"] is None
    assert line["metrics"] == {"nll": None}
    CSV(tmp_path / "a.csv")(epoch)
    table = pd.read_csv(tmp_path / "a.csv")
    assert math.isnan(table["vfe"][0])
    assert table["metrics/nll"][0] == -math.inf


def test_metrics_that_come_later_and_names_with_commas(tmp_path):
    path = tmp_path / "a.csv"
    log = CSV(path)
    log(make_epoch(sparsity_per_layer={'conv "1", left': 0.5}))
    before = path.read_text().splitlines()[0]
    log(make_epoch(epoch=2, metrics={"nll": 0.25}, sparsity_per_layer={'conv "1", left': 0.75}))
    log(make_epoch(epoch=3, sparsity_per_layer={'conv "1", left': 1.0}))
    assert path.read_text().splitlines()[0] == before + ",metrics/nll"
    table = pd.read_csv(path)
    np.testing.assert_array_equal(table["metrics/nll"], [math.nan, 0.25, math.nan])
    assert table['sparsity_per_layer/conv "1", left'].tolist() == [0.5, 0.75, 1.0]


@pytest.mark.parametrize("kind", [JSONLines, CSV])
def test_a_log_of_another_run_is_refused(tmp_path, kind):
    start = RunStart(epoch=0, num_epochs=9, total=4)
    path = tmp_path / "log"
    log = kind(path)
    log(start)
    log(make_epoch())
    log(start)  # The same object may log several runs.
    with pytest.raises(
        FileExistsError, match="log of an earlier run. Give checkpoints=.*resume=True"
    ):
        kind(path)(start)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not the log of a run; give another path"):
        kind(path)(RunStart(epoch=1, num_epochs=9, total=4, resumed=True))
    assert path.read_text() == "a,b\n1,2\n"


# --- other loggers ------------------------------------------------------------------------


def scalars_in(folder):
    """Read event files: records of a length, its checksum, a message and its checksum."""
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        rest = path.read_bytes()
        while rest:
            (length,) = struct.unpack("<Q", rest[:8])
            event = events.Event.FromString(rest[12 : 12 + length])
            rest = rest[16 + length :]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_files_have_the_numbers(members):
    pytest.importorskip("tensorboardX")
    results, records, folder = members
    for i, result in enumerate(results):
        found = scalars_in(folder / f"member-{i}")
        expected = [(row["epoch"], np.float32(row["vfe"])) for row in result.history]
        assert found["vfe"] == expected
        assert found["path/vfe"] == [(p.epoch, np.float32(p.vfe)) for p in result.path]
        rounds = [r for r in records.of(RoundEnd) if r.member == i]
        assert found["round/removed"] == [(r.epoch, r.removed) for r in rounds]
        assert found["result/kept"] == [(EPOCHS, result.num_kept)]


class FakeRun:
    def __init__(self):
        self.rows, self.summary, self.steps, self.exit_code = [], {}, {}, None

    def log(self, values):
        self.rows.append(values)

    def define_metric(self, name, step_metric=None, hidden=None):
        self.steps[name] = step_metric

    def finish(self, exit_code):
        self.exit_code = exit_code


def test_weights_and_biases_gets_the_numbers_over_epochs(logged):
    result, records, _ = logged
    open_run = FakeRun()
    log = WeightsAndBiases(open_run)
    for record in records:
        log(record)
    assert open_run.steps == {"epoch": None, "*": "epoch"}
    vfe = [(row["epoch"], row["vfe"]) for row in open_run.rows if "vfe" in row]
    assert vfe == [(row["epoch"], row["vfe"]) for row in result.history]
    assert open_run.summary["result/kept"] == result.num_kept
    assert open_run.summary["result/reason"] == "finished"
    assert open_run.exit_code is None  # Who opened a run closes it.
    with pytest.raises(TypeError, match="project would open a run, and one is given"):
        WeightsAndBiases(open_run, project="a")


def test_weights_and_biases_offline(members, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    opened = []
    log = WeightsAndBiases(mode="offline", dir=str(tmp_path))
    init = wandb.init
    log._open = lambda **settings: opened.append(init(**settings)) or opened[0]
    results, records, _ = members
    for record in records[:-1]:
        log(record)
    (opened,) = opened
    assert opened.summary["member-0/result/kept"] == results[0].num_kept
    for i, result in enumerate(results):
        assert opened.summary[f"member-{i}/vfe"] == result.history[-1]["vfe"]
    assert wandb.run is opened
    log(records[-1])
    assert wandb.run is None  # It is closed.
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert file.stat().st_size > 0


@pytest.mark.parametrize(
    ("make", "packages", "extra"),
    [
        (lambda: TensorBoard("a"), ("tensorboardX", "torch.utils.tensorboard"), "tensorboard"),
        (WeightsAndBiases, ("wandb",), "wandb"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, make, packages, extra):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'bmrjax\[{extra}\]'"):
        make()


# --- the command line ---------------------------------------------------------------------


def test_the_command_line_writes_a_log(tmp_path, capsys, monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0]}).to_csv(tmp_path / "t.csv", index=False)
    out, log = tmp_path / "out", tmp_path / "log.csv"
    command = ["sparsify", "--data", str(tmp_path / "t.csv"), "--out", str(out), "--hidden", "2"]

    class Reached:
        def save(self, path):
            path.mkdir(exist_ok=True)

    def failing_at_its_end(*_, callbacks, checkpoints, **settings):
        for callback in callbacks:
            callback(RunStart(epoch=0, num_epochs=1, total=4, resumed=checkpoints.resume))
            callback(make_epoch())
        raise bmr.CallbackError("CSV", None, Reached(), saved=True) from OSError("disk full")

    monkeypatch.setattr(
        importlib.import_module("bmrjax.cli.run_sparsify"), "sparsify", failing_at_its_end
    )

    def refused(*arguments):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*command, *arguments])
        return capsys.readouterr().err

    assert "must end in .jsonl or .csv" in refused("--log", str(tmp_path / "log.txt"))
    table = str(tmp_path / "t.csv")
    assert "t.csv exists already" in refused("--overwrite", "--log", table)
    assert not out.exists()
    failed = "--log: disk full. The run can go on with --resume"
    assert failed in refused("--log", str(log))
    assert (out / "last_good").is_dir()
    assert pd.read_csv(log)["epoch"].tolist() == [1]
    assert "exists already; give another file" in refused("--log", str(log))
    assert failed in refused("--log", str(log), "--resume")
    assert failed in refused("--log", str(tmp_path / "new.jsonl"), "--resume")
    assert len(lines_of(tmp_path / "new.jsonl")) == 2
    # With --overwrite, the log of the earlier run is replaced, and no other file.
    kept = log.read_text()
    assert "exists already" in refused("--log", str(log), "--overwrite")
    assert log.read_text() == kept
    assert failed in refused("--log", str(tmp_path / "new.jsonl"), "--overwrite")
    assert len(lines_of(tmp_path / "new.jsonl")) == 2

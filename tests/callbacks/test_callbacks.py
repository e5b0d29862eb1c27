"""Callbacks: what they receive, that they change nothing, and what happens if they raise."""

import dataclasses
import importlib
import json
import math
import signal
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest

import bmrjax as bmr
from bmrjax import cli
from bmrjax.callbacks import (
    CSV,
    EpochEnd,
    JSONLines,
    PointAdded,
    RoundEnd,
    RunEnd,
    RunStart,
    TensorBoard,
    WeightsAndBiases,
)
from bmrjax.run.one_run import Run
from bmrjax.run.reporter import Callbacks

SIZE, EPOCHS = 12, 15
# A prior so much for excluding that some rounds remove too much, and are taken back.
CRITERION = bmr.criteria.SpikeAndSlab(beta=1e6)
SCHEDULE = bmr.schedules.Verified(
    wait=2, refit=2, min_fraction=0.02, cooldown=3, passes=("criterion",)
)


def make_data():
    x = jax.random.normal(jax.random.key(0), (64, SIZE))
    weights = jnp.linspace(-1.0, 1.0, SIZE) ** 3
    return x, x @ weights + 0.5 * jax.random.normal(jax.random.key(1), (64,))


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


SETTINGS = {
    "num_epochs": EPOCHS,
    "batch_size": 16,
    "steps_per_epoch": 10,
    "optimizer": optax.adabelief(5e-2),
    "schedule": SCHEDULE,
    "criterion": CRITERION,
    "guide": bmr.infer.AutoMeanField(program),
    "progress": False,
}


def run(*callbacks, **options):
    data = make_data()
    held_out = bmr.HeldOut(data, every=3, samples=2, final_samples=4)
    settings = {**SETTINGS, "key": jax.random.key(2), "held_out": held_out, **options}
    return bmr.sparsify(program, data, callbacks=callbacks, **settings)


def ensemble(*callbacks, **options):
    keys = jax.random.split(jax.random.key(2), 2)
    settings = {**SETTINGS, "guide": bmr.infer.AutoMeanField, "keys": keys, **options}
    return bmr.ensemble(program, make_data(), callbacks=callbacks, **settings)


class Recorder(list):
    """A callback that keeps the records, and may raise at one of them."""

    def __init__(self, raise_at=None, error=None):
        super().__init__()
        self.raise_at, self.error = raise_at, error

    def __call__(self, record):
        self.append(record)
        if self.raise_at is not None and self.raise_at(record):
            raise OSError("disk full") if self.error is None else self.error

    def of(self, kind):
        return [record for record in self if isinstance(record, kind)]


def end_of(epoch):
    return lambda record: isinstance(record, EpochEnd) and record.epoch == epoch


def assert_same(found, expected):
    pairs = [(found.params, expected.params), (found.keep, expected.keep)]
    pairs.append(tuple([(p.params, p.keep) for p in r.path] for r in (found, expected)))
    for left, right in pairs:
        assert jax.tree.structure(left) == jax.tree.structure(right)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_array_equal(a, b)
    rows = [
        [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in r.history]
        for r in (found, expected)
    ]
    assert rows[0] == rows[1]
    assert (found.metrics, found.vfe) == (expected.metrics, expected.vfe)


def without_times(records):
    return [
        {k: v for k, v in record.items() if not k.endswith("seconds")}
        for record in records
        if record["record"] not in ("RunStart", "RunEnd")
    ]


def lines_of(path):
    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain():
    return run()


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("logged"), Recorder()
    result = run(records, JSONLines(folder / "deep" / "run.jsonl"), CSV(folder / "run.csv"))
    return result, records, folder


# --- what they receive --------------------------------------------------------------------


def test_epochs_have_the_numbers_of_the_history(logged):
    result, records, _ = logged
    epochs = records.of(EpochEnd)
    assert len(epochs) == len(result.history) == EPOCHS
    fixed = [f.name for f in dataclasses.fields(EpochEnd)]
    for record, row in zip(epochs, result.history, strict=True):
        metrics = {k: v for k, v in row.items() if k in ("nll", "rmse")}
        assert record.metrics == metrics
        same = {k: v for k, v in row.items() if k in fixed}
        assert {k: getattr(record, k) for k in same} == same
        assert len(same) == 9
        assert (record.total, record.num_epochs, record.member) == (SIZE, EPOCHS, None)
    assert any(record.metrics for record in epochs)


def test_points_have_the_numbers_of_the_path(logged):
    result, records, _ = logged
    names = ("epoch", "vfe", "kept", "total", "mask_cost", "metrics")
    found = [tuple(getattr(p, name) for name in names) for p in records.of(PointAdded)]
    assert found == [tuple(getattr(p, name) for name in names) for p in result.path]
    assert [p.index for p in records.of(PointAdded)] == list(range(len(result.path)))
    assert len(found) > 3


def test_rounds_lead_from_each_state_to_the_next(logged):
    result, records, _ = logged
    rounds, kept = records.of(RoundEnd), SIZE
    for record in rounds:
        assert record.kept_before == kept
        kept = record.kept
        assert record.removed == record.kept_before - record.kept
        assert (record.removed > 0) == (record.kind == "reduced")
    back = [r for r in rounds if r.kind == "restored"]
    assert back
    taken_back = {n for r in back for n in range(r.back_to + 1, r.epoch + 1)}
    assert taken_back == {row["epoch"] for row in result.history if row["taken_back"]}
    # A round is taken back for a VFE above that of the last point before it.
    for record in back:
        before = [p for p in result.path if p.epoch <= record.back_to][-1]
        assert record.vfe_before > before.vfe
        assert before.kept == record.kept
    measured = {(p.epoch, p.kept): p.vfe for p in result.path}
    for record in rounds:
        if record.kind == "reduced" and (record.epoch, record.kept_before) in measured:
            expected = measured[record.epoch, record.kept_before]
            assert record.vfe_before == pytest.approx(expected, rel=1e-12)  # two ways to sum


def test_the_order_is_start_rounds_epochs_end(logged):
    result, records, _ = logged
    assert records[0] == RunStart(epoch=0, num_epochs=EPOCHS, total=SIZE)
    assert records[-1] == RunEnd(
        epoch=EPOCHS,
        num_epochs=EPOCHS,
        reason="finished",
        kept=result.num_kept,
        total=SIZE,
        vfe=result.vfe,
        metrics=result.metrics,
    )
    assert records[-2].epoch == EPOCHS
    places = [record.epoch for record in records]
    assert places == sorted(places)
    for record, following in zip(records, records[1:], strict=False):
        if isinstance(following, EpochEnd):
            assert following.epoch == record.epoch + 1


def test_a_schedule_that_lets_all_come_back_is_reported():
    records = Recorder()
    schedule = bmr.schedules.Iterative(
        until=bmr.infer.Settled(window=5), regrowths=1, rates=(1.0,), fraction=0.5
    )
    result = run(records, schedule=schedule, steps_per_epoch=20, num_epochs=40)
    grown = [r for r in records.of(RoundEnd) if r.kind == "regrown"]
    assert len(grown) == 1
    assert grown[0].kept == SIZE
    assert grown[0].removed == grown[0].kept_before - SIZE < 0
    assert [(p.epoch, p.vfe) for p in records.of(PointAdded)] == [
        (p.epoch, p.vfe) for p in result.path
    ]


def test_without_a_criterion_there_are_epochs_only():
    records = Recorder()
    run(records, criterion=None, num_epochs=2, held_out=None)
    assert [type(record) for record in records] == [
        RunStart,
        EpochEnd,
        EpochEnd,
        PointAdded,
        RunEnd,
    ]
    assert (records[1].kept, records[1].total) == (0, 0)


# --- that they change nothing -------------------------------------------------------------


def test_the_result_is_the_same_with_and_without(plain, logged):
    assert_same(logged[0], plain)


def test_records_cannot_be_changed(logged):
    records = logged[1]
    for kind in (RunStart, EpochEnd, RoundEnd, PointAdded, RunEnd):
        record = records.of(kind)[0]
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'epoch'"):
            record.epoch = 7
    with pytest.raises(TypeError, match="does not support item assignment"):
        records.of(EpochEnd)[0].sparsity_per_layer["beta"] = 1.0
    with pytest.raises(TypeError, match="does not support item assignment"):
        records[-1].metrics["nll"] = 0.0


def test_records_hold_plain_values_and_no_reference_to_those_of_the_run(logged):
    result, records, _ = logged
    for record in records:
        json.dumps(record.to_dict())
        for value in record.to_dict().values():
            assert type(value) in (int, float, bool, str, dict, type(None))
    before = result.history[0]["sparsity_per_layer"]
    assert records.of(EpochEnd)[0].to_dict()["sparsity_per_layer"] is not before


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (print, r"give a list, as in callbacks=\[callbacks.JSONLines"),
        ("log.csv", "give a list"),
        ([JSONLines], "each must be a function of a record, or an object like"),
        ([3], "callbacks has 3; each must be"),
    ],
)
def test_other_things_than_a_list_of_functions_are_refused(callbacks, message):
    with pytest.raises(TypeError, match=message):
        bmr.sparsify(program, make_data(), key=jax.random.key(0), callbacks=callbacks)


# --- runs that do not end by themselves ---------------------------------------------------


@pytest.fixture
def python_s_own_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_s_own_handler")
def test_ctrl_c_ends_the_log_and_resuming_goes_on_with_it(plain, logged, tmp_path):
    def press(record):
        if end_of(5)(record):
            signal.raise_signal(signal.SIGINT)

    path, records = tmp_path / "run.jsonl", Recorder()
    with pytest.raises(bmr.InterruptedFit, match="after epoch 5"):
        run(JSONLines(path), records, press, checkpoints=bmr.Checkpoints(tmp_path, interval=1e6))
    assert (records[-1].reason, records[-1].epoch) == ("interrupted", 5)
    again = Recorder()
    assert_same(
        run(
            JSONLines(path), again, checkpoints=bmr.Checkpoints(tmp_path, interval=1e6, resume=True)
        ),
        plain,
    )
    points = len(records.of(PointAdded))
    assert again[0] == RunStart(
        epoch=5, num_epochs=EPOCHS, total=SIZE, resumed=True, num_points=points
    )
    assert [r.epoch for r in again.of(EpochEnd)] == list(range(6, EPOCHS + 1))
    whole = lines_of(logged[2] / "deep" / "run.jsonl")
    assert without_times(lines_of(path)) == without_times(whole)


class Killed(BaseException):
    pass


def test_what_a_killed_run_did_twice_is_logged_once(plain, logged, tmp_path, monkeypatch):
    def save_before(self):
        # The process is killed after epoch 9 was reported, and its last checkpoint is of epoch 7.
        if self.state.epoch == 9:
            raise Killed
        if self.state.epoch == 7:
            self.save()

    paths = [tmp_path / "run.jsonl", tmp_path / "run.csv"]
    with monkeypatch.context() as patch:
        patch.setattr(Run, "after_epoch", save_before)
        with pytest.raises(Killed):
            run(
                JSONLines(paths[0]),
                CSV(paths[1]),
                checkpoints=bmr.Checkpoints(tmp_path, interval=1e6),
            )
    assert lines_of(paths[0])[-1]["reason"] == "failed"
    for path in paths:  # A process that is killed may have written a part of a line.
        path.write_text(path.read_text() + path.read_text()[:20].splitlines()[0])
    result = run(
        JSONLines(paths[0]),
        CSV(paths[1]),
        checkpoints=bmr.Checkpoints(tmp_path, interval=1e6, resume=True),
    )
    assert_same(result, plain)
    whole = lines_of(logged[2] / "deep" / "run.jsonl")
    assert without_times(lines_of(paths[0])) == without_times(whole)
    assert pd.read_csv(paths[1])["epoch"].tolist() == list(range(1, EPOCHS + 1))
    # A run that is over reports its last point again.
    run(
        JSONLines(paths[0]),
        CSV(paths[1]),
        checkpoints=bmr.Checkpoints(tmp_path, interval=1e6, resume=True),
    )
    assert without_times(lines_of(paths[0])) == without_times(whole)
    assert len(pd.read_csv(paths[1])) == EPOCHS


def test_a_run_that_diverges_says_so():
    records = Recorder()
    with pytest.raises(bmr.NonFiniteError):
        run(records, optimizer=optax.sgd(1e30), options=bmr.FitOptions(max_bad_steps=2))
    assert records[-1].reason == "diverged"
    assert math.isnan(records.of(EpochEnd)[-1].vfe) or records.of(EpochEnd)[-1].skipped_steps > 2


# --- callbacks that raise -----------------------------------------------------------------


def test_the_epoch_is_finished_and_nothing_is_lost(plain, tmp_path):
    def raise_at(record):
        return isinstance(record, RoundEnd)

    raising, others = Recorder(raise_at), Recorder()
    with pytest.raises(bmr.CallbackError, match="Recorder raised OSError.*resume=True") as caught:
        run(raising, others, checkpoints=bmr.Checkpoints(tmp_path, interval=1e6))
    assert isinstance(caught.value.__cause__, OSError)
    result = caught.value.result
    assert len(result.history) == others.of(EpochEnd)[-1].epoch < EPOCHS
    assert raise_at(raising[-1])  # It is not called again, and the others are.
    assert (others[-1].reason, others[-1].epoch) == ("failed", len(result.history))
    assert result.predict(jax.random.key(1), make_data()[0]).mean.shape == (64,)
    assert_same(run(checkpoints=bmr.Checkpoints(tmp_path, interval=1e6, resume=True)), plain)


@pytest.mark.parametrize("raise_at", [end_of(EPOCHS), lambda record: isinstance(record, RunEnd)])
def test_after_the_last_epoch_the_error_has_the_final_result(plain, raise_at):
    others = Recorder()
    with pytest.raises(bmr.CallbackError, match="disk full") as caught:
        run(Recorder(raise_at), others)
    assert_same(caught.value.result, plain)
    assert "resume" not in str(caught.value)
    assert others[-1].reason == "finished"


def test_at_the_start_the_error_is_raised_as_it_is():
    records = Recorder()
    with pytest.raises(OSError, match="disk full"):
        run(records, Recorder(lambda record: True))
    assert [type(record) for record in records] == [RunStart]


@pytest.mark.usefixtures("python_s_own_handler")
def test_an_error_beside_another_end_is_a_note_in_it():
    def press_and_raise(record):
        if end_of(2)(record):
            signal.raise_signal(signal.SIGINT)
            raise OSError("disk full")

    with pytest.raises(bmr.InterruptedFit) as caught:
        run(press_and_raise)
    assert caught.value.__notes__ == [
        "The callback press_and_raise had raised OSError('disk full')."
    ]


def test_only_the_first_process_calls_and_all_end_together():
    class Elsewhere:
        is_main = False

        def agreed(self, *, mine):
            assert not mine
            return True  # A callback has raised in the first process.

    records = Recorder()
    callbacks = Callbacks([records], Elsewhere())
    callbacks(RunStart(epoch=0, num_epochs=1, total=1))
    assert not records
    with pytest.raises(bmr.CallbackError, match="of the first process raised an exception"):
        callbacks.check("result")


# --- ensembles ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("members"), Recorder()
    results = ensemble(
        records,
        JSONLines(folder / "run.jsonl"),
        CSV(folder / "run.csv"),
        TensorBoardIfThere(folder),
    )
    return results, records, folder


def TensorBoardIfThere(folder):  # noqa: N802
    try:
        return TensorBoard(folder)
    except ImportError:
        return lambda record: None


def test_records_of_an_ensemble_name_the_member(members):
    results, records, folder = members
    for i, result in enumerate(results):
        mine = [record for record in records if record.member == i]
        assert isinstance(mine[0], RunStart)
        assert mine[-1].vfe == result.vfe
        vfe = [r.vfe for r in mine if isinstance(r, EpochEnd)]
        assert vfe == [row["vfe"] for row in result.history]
        assert len([r for r in mine if isinstance(r, PointAdded)]) == len(result.path)
    table = pd.read_csv(folder / "run.csv")
    assert table.groupby("member")["epoch"].count().tolist() == [EPOCHS, EPOCHS]
    for result, plain in zip(results, ensemble(), strict=True):
        assert_same(result, plain)


def test_a_callback_that_raises_ends_all_members_and_each_can_go_on(members, tmp_path):
    path = tmp_path / "run.jsonl"
    raising = Recorder(lambda r: end_of(6)(r) and r.member == 1)
    with pytest.raises(bmr.CallbackError, match="resume=True") as caught:
        ensemble(JSONLines(path), raising, checkpoints=bmr.Checkpoints(tmp_path, interval=1e6))
    assert [len(result.history) for result in caught.value.result] == [6, 6]
    ends = [line for line in lines_of(path) if line["record"] == "RunEnd"]
    assert [end["reason"] for end in ends] == ["failed", "failed"]
    results = ensemble(
        JSONLines(path), checkpoints=bmr.Checkpoints(tmp_path, interval=1e6, resume=True)
    )
    for result, expected in zip(results, members[0], strict=True):
        assert_same(result, expected)
    for i in range(2):
        found, whole = (
            [line for line in without_times(lines_of(p)) if line["member"] == i]
            for p in (path, members[2] / "run.jsonl")
        )
        assert found == whole


def test_a_member_that_diverges_ends_alone():
    records, key = Recorder(), [jax.random.key(2)]
    with pytest.raises(bmr.EnsembleError):
        ensemble(
            records,
            keys=key,
            grid={"rate": [1.0, 1e30]},
            options=bmr.FitOptions(max_bad_steps=2),
            criterion=None,
            num_epochs=3,
        )
    assert {r.member: r.reason for r in records.of(RunEnd)} == {0: "finished", 1: "diverged"}


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

"""Callbacks of runs that do not end by themselves, and callbacks that raise."""

import math
import signal

import jax
import optax
import pandas as pd
import pytest
from callback_runs import (
    EPOCHS,
    SIZE,
    Recorder,
    end_of,
    lines_of,
    make_data,
    run,
    without_times,
)
from same_result import assert_same

import bmrjax as bmr
from bmrjax.callbacks import (
    CSV,
    EpochEnd,
    JSONLines,
    PointAdded,
    RoundEnd,
    RunEnd,
    RunStart,
)
from bmrjax.run.one_run import Run
from bmrjax.run.reporter import Callbacks

# --- runs that do not end by themselves ---------------------------------------------------


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

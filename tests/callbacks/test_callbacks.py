"""Callbacks: what they receive, from single runs and ensembles, and that they change nothing."""

import dataclasses
import json

import jax
import pandas as pd
import pytest
from callback_runs import (
    EPOCHS,
    SIZE,
    Recorder,
    end_of,
    ensemble,
    lines_of,
    make_data,
    program,
    run,
    without_times,
)
from same_result import assert_same

import bmrjax as bmr
from bmrjax.callbacks import (
    EpochEnd,
    JSONLines,
    PointAdded,
    RoundEnd,
    RunEnd,
    RunStart,
)

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


# --- ensembles ----------------------------------------------------------------------------


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

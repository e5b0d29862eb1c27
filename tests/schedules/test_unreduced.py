"""Rounds that are compared with what the unreduced state reaches in the same epochs."""

import jax
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.schedules import Reduce, Report, Restore, Stop, Train, Verified
from tests.schedules.test_own_schedule import Script, X, Y, kept, program, run


def answers(schedule, num_epochs, vfes, removals=()):
    """Return what the schedule does in each of its calls that do something, in words."""
    vfes, removals = iter(vfes), iter(removals)
    memory, epoch, removed, words = schedule.init(), 0, None, []
    while epoch < num_epochs:
        report = Report(epoch, num_epochs, [0.0] * epoch, removed, lambda *limits: next(vfes))
        action, memory = schedule(report, memory)
        inner = action.then if isinstance(action, Restore) else action
        does = ["restore"] if isinstance(action, Restore) else []
        if isinstance(inner, Reduce):
            does.append(f"{inner.by} {inner.fraction:g} of {inner.of}")
            removed = next(removals, 1)
        elif isinstance(inner, Train) and inner.keep:
            does.append("keep")
        elif isinstance(inner, Stop):
            does.append("stop")
        words.append(", ".join(does) or "train")
        if isinstance(inner, Stop):
            break
        epoch += not (isinstance(inner, Reduce) and inner.by != "criterion" and not removed)
    return words


def test_a_round_is_compared_with_what_the_unreduced_state_reaches():
    schedule = Verified(wait=1, refit=2, cooldown=0, against="unreduced")
    # From 10, two epochs lead to 8 without a reduction. With one, 9 is too much, though it is below 10; then
    # 7 for 6 is, and 5 for 5.5 is not. In the last three epochs there is no time for both.
    vfes = [10.0, 8.0, 9.0, 6.0, 7.0, 5.5, 5.0, 5.1]
    assert answers(schedule, 16, vfes) == [
        *["train", "keep", "train", "criterion 0.5 of kept", "train"],
        *["restore, keep", "train", "criterion 0.25 of kept", "train"],
        *["restore, keep", "train", "criterion 0.125 of kept", "train"],
        *["criterion 0.125 of current", "train", "restore, criterion 0.0625 of current"],
    ]


def test_a_run_of_an_earlier_version_goes_on():
    schedule = Verified(wait=1, refit=2, cooldown=0)
    memory = {k: v for k, v in schedule.init().items() if k not in ("twin", "beside")}
    report = Report(1, 9, [0.0], None, lambda *limits: 10.0)
    for _ in range(2):
        action, memory = schedule(report, memory)
    assert isinstance(action, Reduce)
    assert memory["beside"] is False


def test_where_nothing_is_removed_the_unreduced_state_goes_on():
    schedule = Verified(wait=1, refit=1, cooldown=0, against="unreduced")
    # One round removes something, the next one nothing; then evidence nothing, and then single elements.
    found = answers(schedule, 12, [10.0, 9.0, 8.0, 7.0, 6.0, 6.5, 7.0], [1, 0, 0, 1])
    assert found == [
        *["train", "keep", "criterion 0.5 of kept", "keep", "criterion 0.5 of kept"],
        *["restore, keep", "evidence 0.5 of kept", "restore, single 0.5 of current"],
        "restore, stop",
    ]


def test_the_kept_state_and_the_current_one_change_places():
    one = Reduce(by="single", of="kept")
    # Two epochs unreduced, two reduced from the same state; the reduced one stays, and then does not.
    stays = run(Script(Train(), Train(keep=True), Train(), one, Train()))
    assert kept(stays) == [4, 4, 4, 3, 3]
    back = [row["taken_back"] for row in stays.history]
    assert back == [False, True, True, False, False]
    assert stays.num_kept == 3
    # What goes on is what had been trained for three epochs, bit for bit.
    alone = run(Script(Train(), Train(), Train()))
    third = run(Script(Train(), Train(keep=True), Train(), one, Restore(then=Stop())))
    assert [row["taken_back"] for row in third.history] == [False, False, False, True]
    assert third.num_kept == 4
    for name, value in alone.params.items():
        np.testing.assert_array_equal(value, third.params[name])


def test_there_must_be_a_kept_state():
    with pytest.raises(ValueError, match=r"Answer with Train\(keep=True\) before"):
        run(Script(Train(), Reduce(of="kept")))
    one = Reduce(by="single", of="kept")
    with pytest.raises(ValueError, match="reduced already"):
        run(Script(Train(keep=True), one, one))
    with pytest.raises(ValueError, match="cannot start from the kept one"):
        Reduce(by="search", of="kept", vfe=1.0)


def test_nothing_proposed_is_no_round_that_was_taken_back():
    settings = {"batch_size": None, "steps_per_epoch": 40, "num_epochs": 9, "progress": False}
    schedule = Verified(
        wait=2, refit=1, cooldown=2, against="unreduced", passes=("criterion",), fraction=0.2
    )
    found = bmr.sparsify(
        program,
        (X, X @ np.array([1.0, -2.0, 3.0, 1.5], np.float32)),
        key=jax.random.key(1),
        schedule=schedule,
        criterion=bmr.criteria.Shrinkage(),
        **settings,
    )
    assert found.num_kept == 4
    assert any(row["taken_back"] for row in found.history)
    assert "rounds-taken-back" not in [finding.code for finding in found.diagnose()]


def without_times(result):
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in result.history]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("at", [6, 4])
def test_a_stopped_run_goes_on_bit_for_bit(at, tmp_path):
    settings = {"batch_size": None, "steps_per_epoch": 40, "num_epochs": 12, "progress": False}
    settings["schedule"] = Verified(wait=2, refit=2, cooldown=2, against="unreduced")
    whole = bmr.sparsify(program, (X, Y), key=jax.random.key(1), **settings)
    assert any(row["taken_back"] for row in whole.history)

    def stop(record):
        if isinstance(record, bmr.callbacks.EpochEnd) and record.epoch == at:
            raise RuntimeError("enough")

    checkpoints = bmr.Checkpoints(tmp_path, resume=True)
    with pytest.raises(bmr.CallbackError):
        bmr.sparsify(
            program,
            (X, Y),
            key=jax.random.key(1),
            checkpoints=checkpoints,
            callbacks=[stop],
            **settings,
        )
    again = bmr.sparsify(
        program, (X, Y), key=jax.random.key(1), checkpoints=checkpoints, **settings
    )
    assert without_times(again) == without_times(whole)
    for name, value in whole.params.items():
        np.testing.assert_array_equal(value, again.params[name])


def test_a_run_that_stops_in_a_reduced_branch_knows_what_it_goes_back_to(tmp_path):
    one = Reduce(by="single", of="kept")
    script = Script(Train(), Train(keep=True), one, Train(), Restore(then=Train()))

    def fit(**settings):
        return bmr.sparsify(
            program,
            (X, Y),
            key=jax.random.key(0),
            schedule=script,
            num_epochs=6,
            batch_size=None,
            steps_per_epoch=20,
            progress=False,
            **settings,
        )

    def stop(record):
        if isinstance(record, bmr.callbacks.EpochEnd) and record.epoch == 4:
            raise RuntimeError("enough")

    checkpoints = bmr.Checkpoints(tmp_path, resume=True)
    with pytest.raises(bmr.CallbackError):
        fit(checkpoints=checkpoints, callbacks=[stop])
    again = fit(checkpoints=checkpoints)
    assert [row["taken_back"] for row in again.history] == [False, False, True, True, False]
    assert again.num_kept == 4

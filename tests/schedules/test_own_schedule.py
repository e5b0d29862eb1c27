"""Schedules that users write: what the loop does with their answers, and what it refuses."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.schedules import Reduce, Regrow, Restore, Schedule, Stop, Train

X = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
Y = (2.0 * X[:, 0]).astype("f4")


def program(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 0.3), obs=y)


class Script(Schedule):
    """Answers in the order given, then `Stop`; records what it receives."""

    def __init__(self, *answers, verifies=False):
        self.answers, self.verifies, self.removed = answers, verifies, []

    def init(self):
        return {"at": 0}

    def __call__(self, report, memory):
        self.removed.append(report.removed)
        at = memory["at"]
        answer = self.answers[at] if at < len(self.answers) else Stop()
        return (answer(report) if callable(answer) else answer), {"at": at + 1}


def run(schedule, criterion=None, num_epochs=6):
    return bmr.sparsify(
        program,
        (X, Y),
        key=jax.random.key(0),
        guide=bmr.infer.AutoMeanField(program),
        criterion=bmr.criteria.Shrinkage() if criterion is None else criterion,
        schedule=schedule,
        num_epochs=num_epochs,
        batch_size=None,
        steps_per_epoch=200,
        progress=False,
    )


def kept(result):
    return [row["kept"] for row in result.history]


def test_each_action_does_what_it_says():
    # Train, one element at a time, all back, and that taken back.
    script = Script(
        Train(), Reduce(by="single"), Reduce(by="single"), Regrow(), Restore(then=Stop())
    )
    result = run(script)
    assert kept(result) == [4, 3, 2, 4]
    assert [row["taken_back"] for row in result.history] == [False, False, False, True]
    assert script.removed == [None, None, 1, 1, 1]
    assert result.num_kept == 2


def test_a_restored_round_may_be_followed_by_a_smaller_one():
    half = Reduce(by="beyond", fraction=0.5)
    script = Script(Train(rate=0.5), half, Restore(then=Reduce(by="single", rate=0.25)))
    result = run(script)
    assert kept(result) == [4, 2, 3]
    assert [row["rate"] for row in result.history] == [0.5, 1.0, 0.25]


def test_measured_states_are_points_of_the_path():
    script = Script(
        Train(),
        lambda report: Reduce(by="single", vfe=report.measure()),
        lambda report: Restore(vfe=report.measure(), then=Train()),
        verifies=True,
    )
    result = run(script)
    assert [(point.kept, point.taken_back) for point in result.path] == [
        (4, False),
        (3, True),
        (4, False),
    ]


def test_a_schedule_is_called_again_at_once_where_nothing_is_removed():
    # A criterion with a threshold of its own has no passes by evidence.
    script = Script(Reduce(by="evidence"), Reduce(by="single"), Train(rate=0.5))
    result = run(script, criterion=bmr.criteria.Magnitude(fraction=0.5))
    assert script.removed == [None, 0, 0, 0]
    assert [row["rate"] for row in result.history] == [0.5]


class Circle(Schedule):
    def __call__(self, report, memory):
        return Reduce(by="single"), memory


def test_what_goes_round_in_a_circle_is_ended():
    message = "before epoch 1, Circle has answered 1000 times, the last time with Reduce"
    with pytest.raises(ValueError, match=message):
        run(Circle(), criterion=bmr.criteria.Magnitude(fraction=0.5))


@pytest.mark.parametrize("answer", [None, "train", Train])
def test_other_answers_are_refused(answer):
    with pytest.raises(
        TypeError, match="Script answered with .*; a schedule answers with an action"
    ):
        run(Script(*[lambda report: answer]))


def test_there_must_be_something_to_go_back_to():
    with pytest.raises(ValueError, match="answered with Restore, and there is no earlier state"):
        run(Script(Reduce(), Restore(then=Train())))

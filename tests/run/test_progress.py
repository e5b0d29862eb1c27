"""What is shown of a run while it goes on: early, truly, and to nobody where nobody looks."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.run import progress, progress_line
from bmrjax.run.progress import Progress
from bmrjax.run.progress_line import duration


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)


def sparsify(**options):
    x = jax.random.normal(jax.random.key(0), (100, 3))
    settings = {"num_epochs": 4, "batch_size": None, "steps_per_epoch": 20} | options
    return bmr.sparsify(
        program,
        (x, 2.0 * x[:, 0]),
        key=jax.random.key(1),
        schedule=bmr.schedules.Every(),
        **settings,
    )


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress_line, "is_watched", lambda: True)


def lines(text):
    return [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]


def test_a_run_shows_what_it_does_and_leaves_one_line(capsys, monkeypatch):
    expected = sparsify()
    assert capsys.readouterr().err == ""  # which is no terminal
    monkeypatch.setattr(progress_line, "is_watched", lambda: True)
    monkeypatch.setattr("bmrjax.infer.loop._LONG", 0.0)
    result = sparsify()
    shown = lines(capsys.readouterr().err)
    assert shown[0].startswith("compiling   0%")
    assert any(re.match(r"epoch [2-4]/4 .*VFE/row", line) for line in shown)
    assert any(line.startswith("measuring 100%") for line in shown)
    last = f"{result.num_kept} of 3 elements kept; VFE/row {result.vfe / 100:.4g} nats"
    assert re.match(r"4 epochs in \d+ s \(\d+ s compiling\); " + re.escape(last), shown[-1])
    # Looking changes nothing.
    assert result.vfe == expected.vfe
    assert jax.tree.all(jax.tree.map(np.array_equal, result.params, expected.params))


def test_compiling_is_said_before_anything_is_traced(terminal, capsys):
    def refused(x, y=None):
        assert "compiling" in capsys.readouterr().err
        raise RuntimeError("traced")

    x = jnp.ones((5, 2))
    with pytest.raises(RuntimeError, match="traced"):
        bmr.sparsify(refused, (x, x[:, 0]), key=jax.random.key(0))
    assert lines(capsys.readouterr().err)[-1] == "stopped while compiling"


def test_an_interrupted_run_says_where_it_stopped(terminal, capsys):
    def stop(record):
        if isinstance(record, bmr.callbacks.EpochEnd) and record.epoch == 2:
            raise RuntimeError("enough")

    with pytest.raises(bmr.CallbackError):
        sparsify(callbacks=[stop])
    assert lines(capsys.readouterr().err)[-1] == "stopped after 2 of 4 epochs"


@pytest.mark.slow
def test_an_ensemble_shows_the_range_over_its_members(terminal, capsys):
    x = jax.random.normal(jax.random.key(0), (100, 3))
    results = bmr.ensemble(
        program,
        (x, 2.0 * x[:, 0]),
        keys=jax.random.split(jax.random.key(1), 2),
        num_epochs=3,
        batch_size=None,
        steps_per_epoch=20,
    )
    vfes = sorted(result.vfe / 100 for result in results)
    assert f"VFE/row {vfes[0]:.4g} to {vfes[1]:.4g} nats" in lines(capsys.readouterr().err)[-1]


class Bar:
    """What a bar showed."""

    def set_description_str(self, text, refresh):
        self.text = text

    def set_postfix_str(self, text, refresh):
        self.rest = text

    def refresh(self):
        pass


def test_the_time_to_the_last_epoch_is_estimated(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    bar = Bar()
    shown = Progress(10, bar)
    shown._steps = 100
    shown.draw()
    assert (bar.text, bar.rest) == ("compiling", "")
    shown.steps(1)
    now[0] = 4.0
    shown.steps(40)
    shown.draw()
    # 10 s for each of ten epochs, less what is done.
    assert (bar.n, bar.text) == (0.4, "epoch 1/10 (40%)")
    assert bar.rest == "about 1 min 36 s to epoch 10"
    for seconds in (10.0, 20.0, 80.0, 91.0):  # one of them compiled
        now[0] = seconds
        shown.epoch(shown._epoch + 1, {"VFE/row": "1.5"})
    shown.deciding()
    shown.draw()
    assert (bar.text, bar.rest) == (
        "epoch 5/10 (reducing)",
        "about 1 min 3 s to epoch 10, VFE/row 1.5",
    )


def test_durations_are_said_as_people_do():
    assert [duration(s) for s in (0.4, 59.4, 60.0, 3599.9, 7260.0)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "1 h 0 min",
        "2 h 1 min",
    ]

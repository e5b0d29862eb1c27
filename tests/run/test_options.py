"""Options of a run: few arguments for each front door, grouped ones checked where they are made."""

import inspect

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.run.settings import Settings

X = np.random.default_rng(0).normal(size=(40, 2)).astype("f4")
Y = (X @ np.array([1.0, -1.0])).astype("f4")
SHORT = {"batch_size": None, "steps_per_epoch": 5, "num_epochs": 4, "progress": False}


def program(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def fit(**settings):
    return bmr.sparsify(program, (X, Y), key=jax.random.key(0), **{**SHORT, **settings})


@pytest.mark.parametrize("front_door", [bmr.sparsify, bmr.ensemble, bmr.Fit])
def test_no_front_door_has_more_than_sixteen_arguments(front_door):
    assert len(inspect.signature(front_door).parameters) <= 16


def test_an_ensemble_has_the_settings_of_a_run():
    single = inspect.signature(bmr.sparsify).parameters
    settings = inspect.signature(Settings).parameters
    for name, parameter in settings.items():
        assert repr(single[name].default) == repr(parameter.default), name
    own = {"model", "data", "key", "guide", "progress"}
    assert set(single) == set(settings) | own


@pytest.mark.parametrize("name", ["estimator", "directory", "eval_every", "num_epoch"])
def test_an_unknown_keyword_is_a_type_error(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        fit(**{name: 1})
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        bmr.ensemble(program, (X, Y), keys=jax.random.split(jax.random.key(0), 2), **{name: 1})
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        bmr.Fit(program, (X, Y), **{name: 1})


@pytest.mark.slow
def test_held_out_data_may_come_alone():
    alone, inside = fit(held_out=(X, Y)), fit(held_out=bmr.HeldOut((X, Y)))
    assert alone.metrics == inside.metrics
    assert alone.metrics["nll"] > 0
    often = fit(held_out=bmr.HeldOut((X, Y), every=1, samples=2, final_samples=3))
    assert ["nll" in row for row in often.history] == 3 * [True] + [False]  # the last is a point
    assert often.metrics != alone.metrics


@pytest.mark.slow
def test_a_folder_may_come_alone(tmp_path):
    whole = fit(checkpoints=tmp_path / "a")
    with pytest.raises(ValueError, match=r"earlier run. Give Checkpoints\(directory, resume=True"):
        fit(checkpoints=str(tmp_path / "a"))
    fit(checkpoints=bmr.Checkpoints(tmp_path / "b", interval=0), num_epochs=2)
    resumed = fit(checkpoints=bmr.Checkpoints(tmp_path / "b", resume=True))
    assert len(resumed.history) == len(whole.history) == 4


@pytest.mark.slow
def test_a_checkpoint_knows_the_options_it_was_made_with(tmp_path):
    guide = bmr.infer.AutoMeanField(program)
    fit(checkpoints=tmp_path, guide=guide, num_epochs=2)
    with pytest.raises(ValueError, match="had estimator global, this one has local"):
        fit(
            checkpoints=bmr.Checkpoints(tmp_path, resume=True),
            guide=guide,
            options=bmr.FitOptions(estimator="local"),
        )


BAD = {
    "start": (bmr.FitOptions, {"start": {}}, TypeError, "start is a dict; give a Result"),
    "static": (bmr.FitOptions, {"static": "x"}, TypeError, r"write static=\['x'\]"),
    "two": (
        bmr.FitOptions,
        {"loss": numpyro.infer.Trace_ELBO(), "estimator": "local"},
        ValueError,
        "the estimator is a part of the loss",
    ),
    "samples": (bmr.HeldOut, {"data": (X,), "samples": 0}, ValueError, "samples must be at least"),
    "every": (bmr.HeldOut, {"data": (X,), "every": 0}, ValueError, "every must be at least 1"),
}


def test_static_arguments_do_not_go_with_batches():
    batches = bmr.Batches(lambda epoch: iter([(X,)]), num_data=len(X))
    with pytest.raises(TypeError, match=r"static=\['group'\]\) is for arrays in memory"):
        bmr.sparsify(
            program, batches, key=jax.random.key(0), options=bmr.FitOptions(static=["group"])
        )


@pytest.mark.parametrize(("make", "given", "kind", "message"), BAD.values(), ids=BAD.keys())
def test_options_are_checked_where_they_are_made(make, given, kind, message):
    with pytest.raises(kind, match=message):
        make(**given)


def test_options_are_an_object():
    with pytest.raises(TypeError, match="options must be an object like FitOptions"):
        fit(options={"estimator": "local"})
    with pytest.raises(TypeError, match="options must be an object like FitOptions"):
        bmr.Fit(program, (X, Y), options={"estimator": "local"})

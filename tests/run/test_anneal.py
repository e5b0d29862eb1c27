"""A fit that begins with a cold posterior and ends at temperature 1."""

import warnings
from typing import Any

import jax
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.run.anneal import shares
from bmrjax.run.diagnose import SERIOUS


def product():
    """Return a program and data whose target is the product of two columns and another one."""
    x = jax.random.uniform(jax.random.key(0), (400, 4), minval=-1)
    y = 3.0 * x[:, 0] * x[:, 1] + x[:, 2] + 0.05 * jax.random.normal(jax.random.key(1), (400,))
    network = bmr.zoo.MLP(4, (20,), 1, key=jax.random.key(2))
    return bmr.programs.regression(network, bmr.priors.Flat()), (x, y)


SETTINGS: dict[str, Any] = {"key": jax.random.key(3), "num_epochs": 20, "progress": False}


@pytest.fixture(scope="module")
def found():
    """Return the result, and the warnings of the fit."""
    program, data = product()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = bmr.anneal(program, data, **SETTINGS)
    return result, [w for w in caught if issubclass(w.category, bmr.FitWarning)]


@pytest.fixture
def annealed(found):
    return found[0]


@pytest.mark.slow
def test_the_last_fit_is_of_the_program_itself_and_has_learned_what_there_is(annealed):
    # A constant has 618 nats and 1.12, the spread of the targets; noise has 0.05.
    assert annealed.temperature == 1.0
    assert annealed.history[-1]["epoch"] == 5
    assert annealed.free_energy(jax.random.key(4), product()[1]) < 200
    assert annealed.evaluate(jax.random.key(5), product()[1])["rmse"] < 0.1


@pytest.mark.slow
def test_no_warning_of_a_fit_that_another_goes_on_from(found):
    result, caught = found
    # The first ones had not converged, as the last one has not.
    assert len(caught) == len([f for f in result.diagnose() if f.code in SERIOUS])


@pytest.mark.slow
def test_what_is_removed_stays_removed_and_a_run_that_stopped_goes_on(annealed, tmp_path):
    program, data = product()
    checkpoints = bmr.Checkpoints(tmp_path, interval=0, resume=True)

    def stop(record):
        if isinstance(record, bmr.callbacks.EpochEnd) and record.num_epochs == 5:
            raise OSError("disk full")

    with pytest.raises(bmr.CallbackError):
        bmr.anneal(program, data, checkpoints=checkpoints, callbacks=[stop], **SETTINGS)
    names = {"temperature-0-0.25", "temperature-1-0.5", "temperature-2-1"}
    assert {p.name for p in tmp_path.iterdir()} == names
    resumed = bmr.anneal(program, data, checkpoints=checkpoints, **SETTINGS)
    for one, other in zip(
        jax.tree.leaves((annealed.params, annealed.keep)),
        jax.tree.leaves((resumed.params, resumed.keep)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    start = tmp_path / "temperature-2-1" / "start.json"
    start.write_text("{}")  # as if the fit before had another result
    again = bmr.anneal(program, data, checkpoints=checkpoints, **SETTINGS)
    assert start.read_text() != "{}"
    np.testing.assert_array_equal(again.history[-1]["vfe"], annealed.history[-1]["vfe"])
    first = bmr.sparsify(
        program,
        data,
        checkpoints=bmr.Checkpoints(tmp_path / "temperature-0-0.25", resume=True),
        options=bmr.FitOptions(temperature=0.25),
        **(SETTINGS | {"key": jax.random.fold_in(SETTINGS["key"], 0), "num_epochs": 10}),
    )
    assert first.num_kept >= annealed.num_kept
    for name, keep in annealed.keep.items():
        assert not np.any(np.asarray(keep) & ~np.asarray(first.keep[name]))


def test_epochs_are_shared():
    assert shares([0.25, 0.5, 1.0], 100) == [(0.25, 50), (0.5, 25), (1.0, 25)]
    assert shares([0.5, 1.0], 5) == [(0.5, 3), (1.0, 2)]
    assert shares([0.2, 0.4, 1.0], 3) == [(0.2, 1), (0.4, 1), (1.0, 1)]
    assert shares([1.0], 7) == [(1.0, 7)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperatures": ()}, "positive numbers"),
        ({"temperatures": (0.0, 1.0)}, "positive numbers"),
        ({"num_epochs": 2}, "2 epochs are not enough for 3 temperatures"),
        ({"options": bmr.FitOptions(temperature=0.5)}, "temperatures="),
    ],
)
def test_bad_settings(settings, message):
    program, data = product()
    with pytest.raises(ValueError, match=message):
        bmr.anneal(program, data, **(SETTINGS | settings))

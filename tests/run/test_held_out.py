"""Metrics on data kept out have as many posterior samples as the length of the training pays for."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.run.held_out import with_samples


def samples(rows, steps, *, judges=False, **given):
    held_out = bmr.HeldOut((np.zeros((rows, 1)),), **given)
    found = with_samples(held_out, steps=steps, batch_size=128, judges=judges)
    return found.samples, found.final_samples


@pytest.mark.parametrize(
    ("rows", "steps", "expected"),
    [
        (300, 1, (5, 100)),
        (1_000, 1, (5, 100)),
        (10_000, 1, (1, 10)),
        (10_000, 4_680, (1, 10)),
        # A fortieth of 3 · 468,000 · 128 passes are 449 for each of 10,000 rows.
        (10_000, 46_800, (4, 44)),
        (10_000, 468_000, (5, 100)),
        (1_000_000, 1, (1, 10)),
    ],
)
def test_samples_are_in_proportion_to_the_training(rows, steps, expected):
    assert samples(rows, steps) == expected


def test_what_is_given_stays_and_what_judges_has_all():
    assert samples(10_000, 1, samples=7, final_samples=200) == (7, 200)
    assert samples(10_000, 1, judges=True) == (5, 10)


def test_arguments_by_name_may_come_in_any_order():
    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    x, y = np.ones((9, 2), np.float32), np.zeros(9, np.float32)
    result = bmr.sparsify(
        program,
        {"x": x, "y": y},
        key=jax.random.key(0),
        held_out={"y": y[:4], "x": x[:4]},
        criterion=None,
        num_epochs=1,
        steps_per_epoch=2,
        progress=False,
    )
    assert set(result.metrics) == {"nll", "rmse"}


@pytest.mark.slow
def test_a_run_takes_them():
    x = jax.random.normal(jax.random.key(0), (4_000, 3))
    network = bmr.zoo.MLP(3, [4], 2, key=jax.random.key(1))
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    data, settings = (
        (x, 1 * (x[:, 0] > 0)),
        {"num_epochs": 2, "steps_per_epoch": 2, "progress": False},
    )

    def nll(held_out):
        result = bmr.sparsify(program, data, key=jax.random.key(2), held_out=held_out, **settings)
        return result.metrics["nll"]

    # 100,000 passes are 25 samples of 4,000 rows.
    assert (
        nll(data)
        == nll(bmr.HeldOut(data, final_samples=25))
        != nll(bmr.HeldOut(data, final_samples=24))
    )

"""The divergence of a network's layers comes in slowly, where nobody said how fast."""

import jax
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import bmrjax as bmr
from bmrjax.cli.proportion import proportions_of
from bmrjax.run.settings import Settings
from bmrjax.run.warm_up import warm_up


@pytest.fixture(scope="module")
def data():
    """A product of two columns, a third one, two that do nothing, and little noise."""
    x = jax.random.uniform(jax.random.key(0), (600, 5), minval=-1)
    noise = 0.05 * jax.random.normal(jax.random.key(1), (600,))
    return x, x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + noise


def network_program(prior=None):
    network = bmr.zoo.MLP(5, (20,), 1, key=jax.random.key(2))
    return bmr.programs.regression(network, bmr.priors.Flat() if prior is None else prior)


def linear(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


@pytest.mark.slow  # the how-to on temperature runs it as an example
def test_a_network_finds_a_product_of_columns(data):
    fit, new = (tuple(part[rows] for part in data) for rows in (slice(400), slice(400, None)))
    found = {}
    for name, options in {
        "default": bmr.FitOptions(),
        "none": bmr.FitOptions(kl_warmup=0),
    }.items():
        result = bmr.sparsify(
            network_program(),
            fit,
            key=jax.random.key(3),
            num_epochs=30,
            options=options,
            progress=False,
        )
        rmse = result.evaluate(jax.random.key(4), new)["rmse"]
        found[name] = rmse, result.free_energy(jax.random.key(5), fit)
    # The noise is 0.05; without the warm-up, the posterior falls back to the prior, at a higher free energy.
    assert found["default"][0] < 0.065
    assert found["none"][0] > 0.2
    assert found["default"][1] < found["none"][1] - 200


def steps_of(program, data, guide=None, optimizer=None, **options):
    settings = Settings(num_epochs=40, options=bmr.FitOptions(**options))
    fit = bmr.Fit(
        program, data, guide, optimizer=optimizer, criterion=None, options=settings.options
    )
    warm_up(fit, settings, steps=100)
    return fit.engine.step.kl_warmup


def test_only_layers_from_scratch_are_warmed_up(data):
    network = bmr.zoo.MLP(5, (20,), 1, key=jax.random.key(2))
    assert steps_of(network_program(), data) == 800
    assert steps_of(network_program(bmr.priors.SpikeAndSlabPrior()), data) == 800
    assert steps_of(network_program(), data, kl_warmup=30) == 30
    assert steps_of(network_program(), data, kl_warmup=0) == 0
    assert steps_of(network_program(), data, start=network) == 0
    assert steps_of(network_program(), data, optimizer=bmr.infer.NaturalGradient()) == 0
    assert steps_of(network_program(bmr.priors.LogUniformPrior()), data) == 0
    assert steps_of(linear, data) == 0
    command = proportions_of(60_000, (1, 28, 28), net="mlp", method="bmr", num_epochs=40)
    assert command.kl_warmup_epochs == 8  # the command line has the same rule
    points = AutoDelta(network_program(), init_loc_fn=bmr.init_to_network)
    assert steps_of(network_program(), data, points) == 0

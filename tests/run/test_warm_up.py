"""The divergence of a network's layers comes in slowly, where nobody said how fast."""

import equinox as eqx
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import bmrjax as bmr
from bmrjax.infer.kl_growth import as_growth, kl_factor
from bmrjax.run.settings import Settings
from bmrjax.run.warm_up import default_growth, warm_up


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


@pytest.mark.slow
@pytest.mark.parametrize("key", range(3, 9))
def test_no_key_ends_at_a_constant(key):
    x = jax.random.uniform(jax.random.key(0), (400, 4), minval=-1)
    y = 3.0 * x[:, 0] * x[:, 1] + x[:, 2] + 0.05 * jax.random.normal(jax.random.key(1), (400,))
    network = bmr.zoo.MLP(4, (20,), 1, key=jax.random.key(2))
    program = bmr.programs.regression(network, bmr.priors.Flat())
    how = {"key": jax.random.key(key), "num_epochs": 20, "progress": False}
    found = bmr.sparsify(program, (x, y), **how)
    assert found.evaluate(jax.random.key(4), (x, y))["rmse"] < 0.08
    if key < 6:
        straight = bmr.sparsify(program, (x, y), options=bmr.FitOptions(kl_warmup=400), **how)
        assert straight.evaluate(jax.random.key(4), (x, y))["rmse"] > 1.0


def growth_of(program, data, guide=None, optimizer=None, schedule=None, **options):
    settings = Settings(num_epochs=100, schedule=schedule, options=bmr.FitOptions(**options))
    fit = bmr.Fit(
        program, data, guide, optimizer=optimizer, criterion=None, options=settings.options
    )
    growth = warm_up(fit, settings, steps=100)
    assert growth == fit.engine.step.kl_growth
    return growth


def test_only_layers_from_scratch_are_warmed_up(data):
    network = bmr.zoo.MLP(5, (20,), 1, key=jax.random.key(2))
    default = default_growth(10_000)
    assert growth_of(network_program(), data) == default
    assert growth_of(network_program(bmr.priors.SpikeAndSlabPrior()), data) == default
    assert growth_of(network_program(), data, kl_warmup=300) == ((300, 1.0),)
    assert growth_of(network_program(), data, kl_warmup=[(100, 0.2), (200, 1)])[0] == (100, 0.2)
    assert growth_of(network_program(), data, kl_warmup=0) == ()
    assert growth_of(network_program(), data, start=network) == ()
    assert growth_of(network_program(), data, optimizer=bmr.infer.NaturalGradient()) == ()
    assert growth_of(network_program(bmr.priors.LogUniformPrior()), data) == ()
    assert growth_of(linear, data) == ()
    assert growth_of(network_program(), data, schedule=bmr.schedules.Iterative()) == ()
    assert growth_of(network_program(), data, temperature=0.25)[0] == (250, 0.4)
    points = AutoDelta(network_program(), init_loc_fn=bmr.init_to_network)
    assert growth_of(network_program(), data, points) == ()


def test_what_multiplies_no_weights_by_others_learns_at_once(data):
    def by_library(x, y=None):
        beta = bmr.priors.Flat().sample("beta", (5,))
        slope = bmr.priors.NormalPrior(1.0).sample("slope", (5,))
        numpyro.sample("y", dist.Normal(x @ (beta + slope), 0.5), obs=y)

    def hierarchical(x, y=None):
        with numpyro.plate("groups", 5):
            beta = bmr.priors.Flat().sample("beta", (5,))
        slope = bmr.priors.NormalPrior(1.0).sample("slope", (5,))
        mean = (x @ beta.T).mean(-1) + x @ slope
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    def written_out(x, y=None):
        first = bmr.priors.NormalPrior(1.0).sample("first", (5, 8))
        last = bmr.priors.NormalPrior(1.0).sample("last", (8,))
        numpyro.sample("y", dist.Normal(jax.numpy.tanh(x @ first) @ last, 0.5), obs=y)

    class Recurrent(eqx.Module):
        cell: eqx.nn.GRUCell

        def __call__(self, x):
            return self.cell(x, jax.numpy.zeros(1))

    assert growth_of(written_out, data) == default_growth(10_000)
    recurrent = Recurrent(eqx.nn.GRUCell(5, 1, key=jax.random.key(2)))
    program = bmr.programs.regression(recurrent, bmr.priors.Flat())
    assert growth_of(program, data) == default_growth(10_000)
    assert growth_of(by_library, data) == ()
    assert growth_of(hierarchical, data) == ()
    one_layer = bmr.zoo.MLP(5, (), 1, key=jax.random.key(2))
    assert growth_of(bmr.programs.regression(one_layer, bmr.priors.Flat()), data) == ()


def test_a_short_run_has_more_of_it_and_no_run_more_than_half():
    ends = {steps: default_growth(steps)[-1][0] for steps in (100, 3000, 6000, 20_000)}
    assert ends == {100: 50, 3000: 1500, 6000: 2500, 20_000: 3000}


@pytest.mark.parametrize(
    "pairs",
    [
        *(
            [(10, 0.5)],
            [(10, 0.5), (10, 1.0)],
            [(10, -1.0), (20, 1.0)],
            [(0, 1.0)],
            [(np.inf, 1.0)],
        ),
        *(-3, True, (10, 20), "60", []),
    ],
)
def test_a_growth_that_is_none_is_refused(pairs):
    with pytest.raises(ValueError, match="kl_warmup must"):
        as_growth(pairs)
    with pytest.raises(ValueError, match="kl_warmup must"):
        bmr.FitOptions(kl_warmup=pairs)


def test_steps_and_pairs_of_any_kind_of_number():
    assert as_growth(np.int64(60)) == as_growth(60.0) == ((60.0, 1.0),)
    pairs = np.array([[10, 0.5], [60, 1.0]])
    options = bmr.FitOptions(kl_warmup=(pair for pair in pairs))
    assert options.kl_warmup == as_growth(pairs) == ((10.0, 0.5), (60.0, 1.0))


def test_the_weight_stays_between_its_pairs_and_after_them():
    growth = as_growth([(10, 0.5), (30, 0.5), (40, 1.0)])
    assert [round(float(kl_factor(growth, s)), 3) for s in (1, 10, 20, 30, 35, 40, 1000)] == [
        0.05, 0.5, 0.5, 0.5, 0.75, 1.0, 1.0,
    ]  # fmt: skip


def test_the_first_round_waits_for_most_of_the_warm_up():
    verified = bmr.schedules.Verified()
    assert verified.lengths(40, 16)[0] == 13
    assert verified.lengths(100, 25)[0] == 20
    assert bmr.schedules.Verified(wait=3).lengths(40, 16)[0] == 3
    # A run that is warmed up to its end has rounds in its second half.
    assert verified.lengths(50, 50)[0] == 25
    assert verified.lengths(3, 2)[0] == 1


def test_losses_of_the_warm_up_have_not_converged():
    schedule = bmr.schedules.WhenConverged(window=1)
    report = bmr.schedules.Report(4, 20, [5.0, 5.0, 5.0, 5.0], None, float, warmup=3)
    assert isinstance(schedule(report, schedule.init())[0], bmr.schedules.Train)
    report = bmr.schedules.Report(5, 20, [5.0] * 5, None, float, warmup=3)
    assert isinstance(schedule(report, schedule.init())[0], bmr.schedules.Reduce)


@pytest.mark.slow
def test_a_longer_run_that_goes_on_keeps_its_warm_up(data, tmp_path):
    def run(epochs):
        bmr.sparsify(
            network_program(),
            data,
            key=jax.random.key(3),
            num_epochs=epochs,
            checkpoints=bmr.Checkpoints(tmp_path, resume=True),
            callbacks=[losses.append],
            progress=False,
        )

    losses = []
    run(4)
    run(16)
    vfe = [r.vfe for r in losses if isinstance(r, bmr.callbacks.EpochEnd)]
    # Of a run of 16 epochs, the fifth would be at a tenth of the divergence again: hundreds of nats lower.
    assert len(vfe) == 16
    assert vfe[4] > vfe[3] - 280

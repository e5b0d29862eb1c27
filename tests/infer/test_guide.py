import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Predictive, TraceMeanField_ELBO
from starting import started

import bmrjax as bmr
from bmrjax import criteria, handlers, infer, priors, schedules, sparsify
from bmrjax.criteria import SitePosteriors
from bmrjax.distributions import DiscreteSpikeAndSlab, StraightThroughSpikeAndSlab

TRUE = {3: 1.5, 17: -2.0, 42: 0.8, 60: -1.0, 99: 2.5}


def make(seed):
    x = jax.random.normal(jax.random.key(seed), (200, 100))
    beta = jnp.zeros(100).at[jnp.array(list(TRUE))].set(jnp.array(list(TRUE.values())))
    return x, x @ beta + 0.5 * jax.random.normal(jax.random.key(100 + seed), (200,))


def linear(x, y=None):
    beta = priors.SpikeAndSlabPrior().sample("beta", (100,))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)


def fit(seed=0, epochs=40, **options):
    guide = infer.AutoMeanField(linear, **options)
    return sparsify(
        linear,
        make(seed),
        key=jax.random.key(seed),
        guide=guide,
        criterion=criteria.Inclusion(),
        schedule=schedules.Every(wait=epochs - 1),
        batch_size=None,
        steps_per_epoch=100,
        num_epochs=epochs,
        progress=False,
    )


@pytest.mark.parametrize("temperature", [0.5, optax.exponential_decay(1.0, 1000, 0.5)])
@pytest.mark.slow
def test_the_direct_fit_finds_five_coefficients_among_a_hundred(temperature):
    result = fit(temperature=temperature)
    assert np.flatnonzero(result.keep["beta"]).tolist() == sorted(TRUE)
    posterior = result.posterior()["beta"]
    assert isinstance(posterior, bmr.reduction.ZeroOrNormal)
    for index, value in TRUE.items():
        assert abs(posterior.loc[index] - value) < 4 * posterior.scale[index]
        assert posterior.inclusion_prob[index] > 0.95
    assert result.num_compilations == 1
    drawn = result.sample(jax.random.key(0), 20)["beta"]
    assert (np.delete(drawn, list(TRUE), axis=1) == 0).all()


def test_one_coefficient_against_the_exact_posterior():
    """One data point-rich coefficient: inclusion probability and slab by Bayes' rule, in closed form."""
    x = jax.random.normal(jax.random.key(0), (30,))
    y = 0.25 * x + jax.random.normal(jax.random.key(1), (30,))

    def model(x, y=None):
        beta = numpyro.sample("beta", DiscreteSpikeAndSlab(0.0, 1.0, jnp.log(0.3 / 0.7)))
        numpyro.sample("y", dist.Normal(x * beta, 1.0), obs=y)

    precision = 1 + float(jnp.sum(x * x))
    mean = float(jnp.sum(x * y)) / precision
    log_odds = np.log(0.3 / 0.7) - 0.5 * np.log(precision) + 0.5 * mean**2 * precision
    result = sparsify(
        model,
        (x, y),
        key=jax.random.key(0),
        criterion=None,
        guide=infer.AutoMeanField(model, temperature=0.1),
        options=bmr.FitOptions(loss=TraceMeanField_ELBO(num_particles=20)),
        batch_size=None,
        steps_per_epoch=500,
        num_epochs=6,
        progress=False,
    )
    loc, scale, logits = (result.params[f"beta_auto_{p}"] for p in ("loc", "scale", "logits"))
    assert abs(logits - log_odds) < 0.25
    assert abs(loc - mean) < 0.05
    np.testing.assert_allclose(scale, precision**-0.5, rtol=0.15)
    # The VFE is an upper bound of -ln p(y), and tight: the family holds the exact posterior.
    noise = jnp.sum(dist.Normal(0.0, 1.0).log_prob(y))
    evidence = float(noise) + np.log(0.7) + np.logaddexp(0.0, log_odds)
    vfe = result.free_energy(jax.random.key(1), (x, y), num_samples=4000, batch_size=30)
    assert -evidence - 0.02 < vfe < -evidence + 0.1


def trace(guide, *handlers_around, args):
    program = numpyro.handlers.seed(guide, jax.random.key(0))
    for make_handler in handlers_around:
        program = make_handler(program)
    return numpyro.handlers.trace(program).get_trace(*args)


@pytest.mark.slow
def test_indicators_are_relaxed_only_while_training():
    x, y = make(0)
    guide = infer.AutoMeanField(linear, temperature=optax.linear_schedule(1.0, 0.1, 9))
    outside = trace(guide, args=(x, y))["beta"]
    assert isinstance(outside["fn"].base_dist, StraightThroughSpikeAndSlab)
    for step, temperature in [(0, 1.0), (9, 0.1)]:
        site = trace(guide, lambda p, s=step: handlers.at_step(p, s), args=(x, y))["beta"]
        np.testing.assert_allclose(site["fn"].base_dist.temperature, temperature, rtol=1e-6)
        assert (site["value"] != 0).all()


def test_summaries_of_the_posterior():
    x, y = make(0)
    guide = infer.AutoMeanField(linear)
    started(linear, guide, x, y)
    shape = (100,)
    params = {
        "beta_auto_loc": jnp.full(shape, 2.0),
        "beta_auto_scale": jnp.full(shape, 0.1),
        "beta_auto_logits": jnp.where(jnp.arange(100) < 50, -1.0, 1.0),
        "noise_auto_loc": jnp.zeros(()),
        "noise_auto_scale": jnp.ones(()),
        "beta.inclusion_auto_loc": jnp.zeros(()),
        "beta.inclusion_auto_scale": jnp.ones(()),
    }
    drawn = guide.sample_posterior(jax.random.key(1), params, sample_shape=(4000,))
    median = guide.median(params)
    assert (median["beta"][:50] == 0).all()
    assert (median["beta"][50:] > 1.5).all()
    np.testing.assert_allclose(median["noise"], 1.0)
    levels = jnp.array([0.1, 0.3, 0.9])
    found = guide.quantiles(params, levels)
    assert found["beta"].shape == (3, 100)
    pooled = np.asarray(drawn["beta"])[:, 50:].ravel()
    np.testing.assert_allclose(found["beta"][:, 60], np.quantile(pooled, levels), atol=0.02)
    predictive = Predictive(guide, params=params, num_samples=5)
    assert (predictive(jax.random.key(0), x, y)["beta"] == 0).any()


def test_a_criterion_reads_its_own_family():
    with pytest.raises(ValueError, match="needs a latent site with a normal prior"):
        sparsify(linear, make(0), key=jax.random.key(0), num_epochs=1, progress=False)
    plain = lambda x, y=None: numpyro.sample(  # noqa: E731
        "y", dist.Normal(x @ priors.NormalPrior(1.0).sample("beta", (100,)), 1.0), obs=y
    )
    with pytest.raises(ValueError, match="Inclusion needs a latent site with a spike-and-slab"):
        sparsify(
            plain,
            make(0),
            key=jax.random.key(0),
            criterion=criteria.Inclusion(),
            num_epochs=1,
            progress=False,
        )


def test_inclusion_keeps_what_was_removed_removed():
    q = {"w": bmr.reduction.ZeroOrNormal(jnp.zeros(2), jnp.ones(2), jnp.array([-1.0, 3.0]))}
    p = {"w": bmr.reduction.ZeroOrNormal(jnp.zeros(2), jnp.ones(2), jnp.zeros(2))}
    criterion = criteria.Inclusion()
    first = jax.jit(criterion)(SitePosteriors(q, p))
    back = {"w": bmr.reduction.ZeroOrNormal(jnp.zeros(2), jnp.ones(2), jnp.array([9.0, 3.0]))}
    assert criterion(SitePosteriors(back, p), first.keep).keep["w"].tolist() == [False, True]
    exact = np.log(jax.nn.sigmoid(jnp.array([1.0, -3.0]))) - np.log(0.5)
    np.testing.assert_allclose(first.delta_f["w"], exact, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"init_inclusion": 1.0}, "init_inclusion must be between 0 and 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        infer.AutoMeanField(linear, **options)


@pytest.mark.slow
def test_numpyros_own_svi_finds_what_is_included():
    x = jax.random.normal(jax.random.key(0), (100, 6))
    y = 2 * x[:, 0] - x[:, 3] + 0.5 * jax.random.normal(jax.random.key(1), (100,))

    def program(x, y=None):
        beta = priors.SpikeAndSlabPrior().sample("beta", (6,))
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

    guide = bmr.infer.AutoMeanField(program)
    svi = SVI(program, guide, optax.adam(2e-2), TraceMeanField_ELBO())
    params = svi.run(jax.random.key(2), 3000, x, y, progress_bar=False).params
    included = jax.nn.sigmoid(params["beta_auto_logits"])
    assert included[jnp.array([0, 3])].min() > 0.9
    assert included[jnp.array([1, 2, 4, 5])].max() < 0.5

"""A gamma posterior of a precision: exact against sampling, conjugacy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO

import bmrjax as bmr
from bmrjax.distributions import LogGamma, PrecisionNormal, expected_log_prob
from bmrjax.infer import AutoMeanField, PropagatedELBO

# Long for what they add; `make all-checks` runs them.
pytestmark = pytest.mark.slow


def data(rows=200, targets=2):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    y = x @ rng.normal(size=(3, targets)) + 0.5 * rng.normal(size=(rows, targets))
    return jnp.asarray(x), jnp.asarray(y, jnp.float32)


def linear(x, y=None):
    """A linear map with a precision a target."""
    weight = numpyro.sample("weight", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    gamma = dist.Gamma(1.0, 1.0).expand([2]).to_event(1)
    precision = numpyro.sample("precision", gamma, infer={"posterior": "gamma"})
    numpyro.sample("y", PrecisionNormal(x @ weight, precision[None]).to_event(1), obs=y)


def test_the_density_is_that_of_a_normal():
    value = jnp.linspace(-2.0, 2.0, 7)
    ours, numpyros = PrecisionNormal(0.3, 4.0), dist.Normal(0.3, 0.5)
    np.testing.assert_allclose(ours.log_prob(value), numpyros.log_prob(value), rtol=1e-5)
    assert (ours.mean, ours.variance) == pytest.approx((0.3, 0.25))
    assert PrecisionNormal(0, 4).sample(jax.random.key(0)).dtype == jnp.float32
    draws = ours.sample(jax.random.key(0), (20_000,))
    np.testing.assert_allclose([draws.mean(), draws.std()], [0.3, 0.5], atol=0.02)


def test_the_expected_density_is_an_average_over_the_precision():
    square, concentration, rate = 0.7, 3.0, 2.0
    points = scipy.stats.gamma(concentration, scale=1 / rate)
    expected = points.expect(lambda g: 0.5 * (np.log(g / (2 * np.pi)) - g * square))
    found = expected_log_prob(*map(jnp.asarray, (square, concentration, rate)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.fixture(scope="module")
def started():
    """A guide with its parameters, and the data it met."""
    guide, arrays = AutoMeanField(linear), data()
    start = numpyro.infer.SVI(linear, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    params = start.get_params(start.init(jax.random.key(0), *arrays))
    params |= {"precision_auto_scale": jnp.array([0.2, 0.3]), "precision_auto_loc": jnp.ones(2)}
    return guide, params, arrays


def test_the_free_energy_is_that_of_sampling(started):
    guide, params, arrays = started

    def loss(elbo):
        return jax.jit(lambda key: elbo.loss(key, params, linear, guide, *arrays))

    many = TraceMeanField_ELBO(num_particles=4000, vectorize_particles=True)
    expected = loss(many)(jax.random.key(1))
    found = loss(PropagatedELBO("moments"))(jax.random.key(2))
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    local = loss(PropagatedELBO("local"))
    found = np.mean([local(key) for key in jax.random.split(jax.random.key(2), 100)])
    np.testing.assert_allclose(found, expected, rtol=5e-3)


def test_a_fit_finds_the_conjugate_posterior():
    y = data()[1][:, 0] - 0.5

    def program(y):
        gamma = dist.Gamma(2.0, 3.0)
        precision = numpyro.sample("precision", gamma, infer={"posterior": "gamma"})
        numpyro.sample("zero", dist.Normal(0.0, 1.0))  # estimators want a normal site
        numpyro.sample("y", PrecisionNormal(jnp.zeros_like(y), precision), obs=y)

    result = bmr.sparsify(
        program, (y,), key=jax.random.key(0), num_epochs=3, criterion=None, batch_size=None,
        steps_per_epoch=1000, options=bmr.FitOptions(estimator="moments"), progress=False,
    )  # fmt: skip
    shape, rate = 2.0 + len(y) / 2, 3.0 + float(jnp.sum(y**2)) / 2
    concentration = 1 / result.params["precision_auto_scale"] ** 2
    np.testing.assert_allclose(concentration, shape, rtol=0.02)
    np.testing.assert_allclose(
        jnp.exp(result.params["precision_auto_loc"]), shape / rate, rtol=0.01
    )
    # The evidence has a closed form, and the posterior is exact.
    precision = scipy.stats.gamma(2.0, scale=1 / 3.0)
    exact = scipy.stats.gamma(shape, scale=1 / rate)
    at = 1.0
    log_likelihood = np.sum(scipy.stats.norm(0, 1).logpdf(np.asarray(y, float)))
    evidence = log_likelihood + precision.logpdf(at) - exact.logpdf(at)
    vfe = result.free_energy(
        jax.random.key(1), (y,), loss=PropagatedELBO("moments"), batch_size=len(y)
    )
    np.testing.assert_allclose(vfe, -evidence, atol=0.1)


def test_quantiles_and_draws_are_those_of_the_gamma_posterior(started):
    guide, params, _ = started
    scale, mean = params["precision_auto_scale"], jnp.exp(params["precision_auto_loc"])
    exact = scipy.stats.gamma(1 / scale**2, scale=scale**2 * mean)
    levels = jnp.array([0.1, 0.5, 0.9])
    found = guide.quantiles(params, levels)["precision"]
    np.testing.assert_allclose(found, exact.ppf(np.asarray(levels)[:, None]), rtol=1e-3)
    draws = guide.sample_posterior(jax.random.key(1), params, sample_shape=(4000,))["precision"]
    np.testing.assert_allclose(draws.mean(0), exact.mean(), rtol=0.02)
    np.testing.assert_allclose(draws.std(0), exact.std(), rtol=0.05)


def test_the_logarithms_quantiles_are_the_gammas():
    levels = jnp.array([0.05, 0.5])
    expected = np.log(scipy.stats.gamma(0.7, scale=1 / 2.0).ppf(levels))
    np.testing.assert_allclose(jax.jit(LogGamma(0.7, 2.0).icdf)(levels), expected, rtol=1e-4)


def shared(y):
    """A location that depends on the precision."""
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0), infer={"posterior": "gamma"})
    zero = numpyro.sample("zero", dist.Normal(0.0, 1.0))
    numpyro.sample("y", PrecisionNormal(precision * jnp.ones(3) + 0 * zero, precision), obs=y)


def scaled(y):
    """A gamma variable that is the scale of a normal."""
    scale = numpyro.sample("precision", dist.Gamma(2.0, 1.0), infer={"posterior": "gamma"})
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(loc * jnp.ones(3), scale), obs=y)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("program", "estimator"), [(shared, "local"), (scaled, "local"), (scaled, "moments")]
)
def test_where_there_is_no_closed_form_all_uses_see_the_same_draw(program, estimator):
    guide, y = AutoMeanField(program), jnp.array([0.5, 1.0, 3.0])
    start = numpyro.infer.SVI(program, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    params = start.get_params(start.init(jax.random.key(0), y))
    params |= {"precision_auto_scale": jnp.array(0.3), "precision_auto_loc": jnp.array(0.3)}
    found = [
        elbo.loss(jax.random.key(1), params, program, guide, y)
        for elbo in (
            TraceMeanField_ELBO(num_particles=20_000),
            _Mean(PropagatedELBO(estimator)),
        )
    ]
    np.testing.assert_allclose(*found, rtol=0.02)


class _Mean:
    """An ELBO averaged over many keys."""

    def __init__(self, elbo):
        self.elbo = elbo

    def loss(self, key, *args):
        keys = jax.random.split(key, 20_000)
        return jnp.mean(jax.vmap(lambda k: self.elbo.loss(k, *args))(keys))


def test_an_unknown_posterior_is_refused():
    def program(y):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0), infer={"posterior": "Gamma"})
        numpyro.sample("y", dist.Poisson(rate), obs=y)

    with pytest.raises(ValueError, match="'rate' asks for a posterior 'Gamma'; there is 'gamma'"):
        numpyro.handlers.seed(AutoMeanField(program), jax.random.key(0))(jnp.zeros(3))


def test_a_gamma_posterior_of_something_real_is_refused():
    def program(y):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0), infer={"posterior": "gamma"})
        numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    guide = AutoMeanField(program)
    with pytest.raises(ValueError, match="'loc' asks for a gamma posterior"):
        numpyro.handlers.seed(guide, jax.random.key(0))(jnp.zeros(3))


@pytest.mark.parametrize("precision", [1.0, (1.0, 0.0), (1.0,), (-1.0, 1.0)])
def test_a_precision_that_is_no_pair_is_refused(precision):
    network = bmr.zoo.MLP(3, (), 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="the shape and the rate of a gamma prior"):
        bmr.programs.regression(network, bmr.priors.NormalPrior(), precision=precision)


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.slow
def test_a_regression_learns_its_precision(targets):
    x, y = data(400, targets)
    network = bmr.zoo.MLP(3, (), targets, key=jax.random.key(0))
    program = bmr.programs.regression(network, bmr.priors.NormalPrior(), precision=(1.0, 1.0))
    if targets == 1:
        y = y[:, 0]
    result = bmr.sparsify(
        program, (x, y), key=jax.random.key(1), num_epochs=6, steps_per_epoch=100, criterion=None,
        progress=False, options=bmr.FitOptions(estimator="local"), held_out=(x, y),
    )  # fmt: skip
    noise = jnp.exp(-0.5 * result.params["precision_auto_loc"])
    np.testing.assert_allclose(noise, 0.5, rtol=0.1)
    assert result.metrics["rmse"] == pytest.approx(0.5, rel=0.1)

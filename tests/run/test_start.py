"""Fits that start from a point estimate: a network or parameters, with scales from the curvature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bmrjax as bmr
from bmrjax import priors, programs, zoo

PRIOR, NOISE = 0.7, 0.5


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


@pytest.fixture(scope="module")
def data():
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (60, 6)) * jnp.array([0.1, 0.5, 1.0, 1.0, 2.0, 3.0])
    return x, x[:, 0] + NOISE * jax.random.normal(keys[1], (60,))


@pytest.mark.parametrize("batch_size", [None, 20])
def test_scales_are_the_exact_ones_of_a_linear_regression(data, batch_size):
    """Λ_ii^(−1/2), to the 4 % of a mean over 256 squares, in batches and with all rows."""
    start = {"beta_auto_loc": jnp.arange(6.0)}
    options = bmr.FitOptions(start=start)
    fit = bmr.Fit(regression, data, criterion=None, batch_size=batch_size, options=options)
    params = fit.params(fit.init(jax.random.key(0)))
    exact = (jnp.sum(data[0] ** 2, 0) / NOISE**2 + 1 / PRIOR**2) ** -0.5
    np.testing.assert_array_equal(params["beta_auto_loc"], start["beta_auto_loc"])
    np.testing.assert_allclose(params["beta_auto_scale"], exact, rtol=0.15)


def test_a_point_estimate_of_a_positive_site_is_taken_over_as_a_logarithm(data):
    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, PRIOR).expand([6]).to_event(1))
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)

    start = {"beta_auto_loc": jnp.zeros(6), "scale_auto_loc": jnp.array(0.25)}
    options = bmr.FitOptions(start=start)
    fit = bmr.Fit(program, data, criterion=None, batch_size=None, options=options)
    result = fit.result(fit.init(jax.random.key(0)))
    assert result.guide.median(result.params)["scale"] == pytest.approx(0.25)


@pytest.fixture(scope="module")
def digits():
    """The digits, and a network that is trained on them."""
    data = bmr.data.load_dataset("digits")
    (x, y), fresh = map(jnp.asarray, data.train), zoo.MLP(64, (32,), 10, key=jax.random.key(0))
    x = x.reshape(len(x), -1)
    params, static = eqx.partition(fresh, eqx.is_array)
    optimizer = optax.adamw(3e-3, weight_decay=1e-2)

    def loss(params):
        logits = jax.vmap(eqx.combine(params, static))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(_, carry):
        updates, state = optimizer.update(jax.grad(loss)(carry[0]), carry[1], carry[0])
        return optax.apply_updates(carry[0], updates), state

    run = jax.jit(lambda carry: jax.lax.fori_loop(0, 150, step, carry))
    params, _ = run((params, optimizer.init(params)))
    return data, fresh, eqx.combine(params, static)


def test_a_trained_network_keeps_its_accuracy_at_the_start(digits):
    """At most 0.3 points of test accuracy are lost; a posterior with the default scales loses tens."""
    data, fresh, trained = digits
    x, y = map(jnp.asarray, data.test)
    accuracy = jnp.mean(jax.vmap(trained)(x.reshape(len(x), -1)).argmax(1) == y)
    model = programs.classifier(fresh, priors.NormalPrior(0.3))
    options = bmr.FitOptions(start=trained)
    optimizer = bmr.infer.NaturalGradient()
    fit = bmr.Fit(model, data.train, optimizer=optimizer, options=options)
    state = fit.init(jax.random.key(1))
    np.testing.assert_array_equal(
        fit.params(state)["net.layers.0.weight_auto_loc"], trained.layers[0].weight
    )
    begun = fit.result(state).evaluate(jax.random.key(2), data.test, num_samples=32)
    assert begun["accuracy"] >= accuracy - 0.003
    assert accuracy > 0.95


def test_what_cannot_be_a_start_is_refused(digits, data):
    with pytest.raises(TypeError, match="start is a float; give a Result"):
        bmr.FitOptions(start=1.0)
    train, fresh, _ = digits
    wider = bmr.FitOptions(start=zoo.MLP(64, (33,), 10, key=jax.random.key(0)))
    fit = bmr.Fit(programs.classifier(fresh, priors.Flat()), train.train, options=wider)
    with pytest.raises(ValueError, match=r"'layers\.0\.bias' is \(33,\) in it, and \(32,\)"):
        fit.init(jax.random.key(0))

    def factors(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([6]).to_event(1))
        numpyro.factor("loss", -jnp.sum((y - x @ beta) ** 2))

    options = bmr.FitOptions(start={"beta_auto_loc": jnp.zeros(6)})
    fit = bmr.Fit(factors, data, criterion=None, batch_size=None, options=options)
    with pytest.raises(ValueError, match="no observed site that can be drawn"):
        fit.init(jax.random.key(0))


def test_a_joint_posterior_is_the_start_of_the_same_sites_only():
    def program(first, second):
        def run(x, y=None):
            a, b = (numpyro.sample(n, dist.Normal(0, 1).expand([2]).to_event(1)) for n in names)
            numpyro.sample("y", dist.Normal(x @ a + b.sum(), 1.0), obs=y)

        names = first, second
        return run

    def fit(model, start=None):
        guide, options = bmr.infer.AutoMultivariate(model), bmr.FitOptions(start=start)
        settings = {"batch_size": None, "criterion": None, "options": options}
        return bmr.Fit(model, (jnp.ones((5, 2)), jnp.ones(5)), guide, **settings)

    first = fit(program("beta", "alpha"))
    state = first.init(jax.random.key(0))
    start = first.result(state)
    again = fit(program("beta", "alpha"), start)
    np.testing.assert_array_equal(
        again.params(again.init(jax.random.key(1)))["auto_loc"], start.params["auto_loc"]
    )
    # In the order of their names, beta would begin where alpha was.
    with pytest.raises(ValueError, match=r"start is of the sites .*, and the program has.*'zeta'"):
        fit(program("beta", "zeta"), start).init(jax.random.key(1))

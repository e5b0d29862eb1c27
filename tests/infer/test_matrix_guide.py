"""The matrix-normal guide: its distribution, its reduction, and what it is worth."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.kl import kl_divergence

import bmrjax as bmr
from bmrjax import handlers, infer, programs, reduction
from bmrjax.distributions import PrunedElements, ScaledMatrixNormal
from bmrjax.infer.matrix_guide import conditional_mean


def random_matrix(shape, seed=0):
    """Return a posterior with all elements, and its covariance over the flattened elements."""
    loc, scale, rows, columns = random_arrays(jax.random.key(seed), shape)
    lower = np.kron(*(np.tril(a, -1) + np.eye(len(a)) for a in (rows, columns)))
    factor = np.ravel(scale)[:, None] * lower
    return ScaledMatrixNormal(loc, scale, rows, columns), factor


@partial(jax.jit, static_argnums=1)
def random_arrays(key, shape):
    keys = jax.random.split(key, 4)
    n, p = shape[0], int(np.prod(shape[1:]))
    loc = jax.random.normal(keys[0], shape)
    scale = jnp.exp(0.3 * jax.random.normal(keys[1], shape))
    rows, columns = (
        0.4 * jax.random.normal(k, (m, m)) for k, m in zip(keys[2:], (n, p), strict=True)
    )
    return loc, scale, rows, columns


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 2)])
def test_the_elements_that_stay_are_a_multivariate_normal(shape):
    fn, factor = random_matrix(shape)
    keep = jax.random.bernoulli(jax.random.key(9), 0.6, shape)
    inside = np.ravel(keep)
    part = factor[np.ix_(inside, inside)]

    @jax.jit
    def look(key):
        kept = fn.without(keep)
        draws = kept.sample(key, (20_000,))
        flat = draws.reshape(20_000, -1)
        exact = dist.MultivariateNormal(np.ravel(fn.loc)[inside], scale_tril=jnp.asarray(part))
        prior = dist.Normal(0.3, 1.7).expand(shape)
        prior_of_kept = dist.MultivariateNormal(
            jnp.full(inside.sum(), 0.3), scale_tril=1.7 * jnp.eye(inside.sum())
        )
        priors = prior, prior.to_event(len(shape)), PrunedElements(prior, keep).to_event(1)
        log_probs = kept.log_prob(draws[:5]), exact.log_prob(flat[:5, inside])
        divergences = [kl_divergence(kept, p) for p in priors]
        return flat, kept.variance, log_probs, divergences, kl_divergence(exact, prior_of_kept)

    flat, variance, log_probs, divergences, expected = look(jax.random.key(1))
    assert not flat[:, ~inside].any()
    np.testing.assert_allclose(np.cov(flat[:, inside].T), part @ part.T, atol=0.15)
    np.testing.assert_allclose(*log_probs, rtol=1e-4)
    np.testing.assert_allclose(np.ravel(variance)[inside], np.diag(part @ part.T), rtol=1e-5)
    assert len(divergences) == 3
    for found in divergences:
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_independent_factors_are_the_mean_field_posterior():
    @jax.jit
    def log_probs(value):
        zeros = jnp.zeros((3, 2))
        fn = ScaledMatrixNormal(zeros + 0.2, zeros + 0.5, jnp.zeros((3, 3)), jnp.zeros((2, 2)))
        mean_field = dist.Normal(zeros + 0.2, 0.5).to_event(2)
        return fn.log_prob(value), mean_field.log_prob(value)

    np.testing.assert_allclose(
        *log_probs(jax.random.normal(jax.random.key(0), (4, 3, 2))), rtol=1e-5
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_mean_given_the_zeros_is_that_of_the_exact_reduction(seed):
    fn, factor = random_matrix((4, 3), seed)
    before = np.ones((4, 3), bool)
    before[1, 1] = False
    inside = np.ravel(before)
    part = factor[np.ix_(inside, inside)]

    @jax.jit
    def look(keep):
        joint = reduction.MultivariateNormal(jnp.ravel(fn.loc)[inside], jnp.asarray(part))
        unit = reduction.Normal(jnp.zeros(inside.sum()), jnp.ones(inside.sum()))
        exact = reduction.remove(joint, unit, jnp.ravel(keep)[inside]).reduced
        mean = jnp.where(keep, conditional_mean(fn.without(jnp.asarray(before)), keep), 0.0)
        return jnp.ravel(mean)[inside], exact.loc

    keep = before & jax.random.bernoulli(jax.random.key(seed), 0.5, (4, 3))
    np.testing.assert_allclose(*look(keep), atol=2e-4)


def several_outputs():
    """Return a regression of three outputs on correlated inputs, its data and its log evidence."""
    keys = jax.random.split(jax.random.key(3), 3)
    base = jax.random.normal(keys[0], (60, 1))
    x = base + 0.5 * jax.random.normal(keys[1], (60, 4))
    true = jnp.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.5, 0.0], [0.0, 0.7, 0.0, 0.0]])
    noise = 0.5
    y = x @ true.T + noise * jax.random.normal(keys[2], (60, 3))

    def program(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 4]).to_event(2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w.T, noise).to_event(1), obs=y)

    cov = np.asarray(x @ x.T + noise**2 * np.eye(60), float)
    evidence = sum(
        float(dist.MultivariateNormal(jnp.zeros(60), cov).log_prob(y[:, j])) for j in range(3)
    )
    return program, (x, y), evidence


def fit(program, data, guide, **options):
    return bmr.sparsify(
        program,
        data,
        key=jax.random.key(0),
        guide=guide,
        batch_size=None,
        steps_per_epoch=250,
        progress=False,
        **options,
    )


def test_it_reaches_the_evidence_where_mean_field_cannot():
    program, data, evidence = several_outputs()
    schedule = bmr.schedules.Every(wait=100, cooldown=12)
    vfe = {}
    for kind in (infer.AutoMeanField, infer.AutoMatrixNormal):
        result = fit(program, data, kind(program), num_epochs=20, criterion=None, schedule=schedule)
        vfe[kind] = result.free_energy(
            jax.random.key(1), data, num_samples=2000, batch_size=len(data[0])
        )
    # The exact posterior is a matrix normal, so the bound is tight, but for the noise of the fit (.2 to .75).
    assert vfe[infer.AutoMatrixNormal] == pytest.approx(-evidence, abs=1.0)
    assert vfe[infer.AutoMeanField] > -evidence + 2.0


@pytest.mark.slow
def test_sparsify_finds_the_true_weights():
    program, data, _ = several_outputs()
    guide = infer.AutoMatrixNormal(program)
    result = fit(program, data, guide, num_epochs=24)
    expected = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]
    assert result.keep["w"].tolist() == np.array(expected, bool).tolist()
    posterior = result.posterior()["w"]
    assert not np.asarray(posterior.loc)[~np.asarray(result.keep["w"])].any()
    draws = result.sample(jax.random.key(1), 2000, *data)["w"]
    np.testing.assert_allclose(draws.std(0), posterior.scale, atol=0.02)
    levels = guide.quantiles(result.params, jnp.array([0.5, 0.8413]))["w"]
    np.testing.assert_allclose(guide.median(result.params)["w"], levels[0], atol=1e-5)
    whole = guide.marginals(result.params, {})["w"]
    np.testing.assert_allclose(levels[1] - levels[0], whole.scale, rtol=1e-3)


class SmallConv(eqx.Module):
    """One convolution and a linear layer."""

    conv: eqx.nn.Conv2d
    linear: eqx.nn.Linear

    def __init__(self, key):
        self.conv = eqx.nn.Conv2d(1, 3, kernel_size=3, key=key)
        self.linear = eqx.nn.Linear(12, 2, key=key)

    def __call__(self, x):
        return self.linear(jnp.tanh(self.conv(x)).ravel())


@pytest.mark.slow
def test_a_network_with_biases_and_convolutions():
    program = programs.classifier(SmallConv(jax.random.key(0)), bmr.priors.Flat())
    x = jax.random.normal(jax.random.key(1), (32, 1, 4, 4))
    guide = infer.AutoMatrixNormal(program, max_side=10)
    result = bmr.sparsify(
        program,
        (x, (x.mean((1, 2, 3)) > 0).astype(int)),
        key=jax.random.key(2),
        guide=guide,
        num_epochs=3,
        batch_size=16,
        steps_per_epoch=10,
        schedule=bmr.schedules.Every(wait=2),
        progress=False,
    )
    # Biases are no matrices, and the linear layer has 12 inputs, which is over the limit.
    assert guide.matrix_sites() == ["net.conv.weight", "net.linear.weight"]
    factors = {name for name in result.params if name.endswith("_factor")}
    assert factors == {
        "net.conv.weight_auto_row_factor",
        "net.conv.weight_auto_column_factor",
        "net.linear.weight_auto_row_factor",
    }
    assert all(np.abs(np.tril(result.params[name], -1)).max() > 0 for name in factors)
    assert set(result.posterior()) == set(result.keep)


def test_bad_arguments_say_what_to_do():
    program, _, _ = several_outputs()
    with pytest.raises(ValueError, match="max_side must be at least 1"):
        infer.AutoMatrixNormal(program, max_side=0)
    fn, _ = random_matrix((4, 3))
    pruned = handlers.prune(lambda: numpyro.sample("w", fn), {"w": jnp.ones((3, 4), bool)})
    with pytest.raises(ValueError, match="shape"):
        numpyro.handlers.seed(pruned, 0)()

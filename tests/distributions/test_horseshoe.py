import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro.infer import MCMC, NUTS, Predictive
from scipy import stats
from starting import started

from bmrjax import infer, priors, programs, sparsify, zoo
from bmrjax.distributions import LogGamma

TRUE = {3: 1.5, 17: -2.0, 42: 0.8, 60: -1.0, 99: 2.5}


def draws(prior, shape=(), num_samples=20000, name="w"):
    program = lambda: numpyro.deterministic("w", prior.sample("b", shape))  # noqa: E731
    return Predictive(program, num_samples=num_samples)(jax.random.key(0))


@pytest.mark.parametrize("x", [0.02, 0.5, 1.0, 7.0, 80.0])
def test_the_quotient_of_gammas_is_a_half_cauchy_squared(x):
    """p(τ) = ∫ p(ln a = ln b + 2 ln τ) p(ln b) 2/τ d ln b, by quadrature."""
    half, log_b = LogGamma(0.5), np.linspace(-40, 12, 20001)
    log_p = np.asarray(half.log_prob(log_b + 2 * np.log(x)) + half.log_prob(log_b), np.float64)
    density = np.trapezoid(np.exp(log_p) * 2 / x, log_b)
    np.testing.assert_allclose(density, stats.halfcauchy.pdf(x), rtol=1e-3)


@pytest.mark.slow
def test_the_scales_follow_the_definition():
    found = draws(priors.RegularizedHorseshoePrior(0.3, local=True), (2,), 8000)
    layer, row, local = (
        np.exp(0.5 * np.asarray(found[f"b.{part}.log_a"] - found[f"b.{part}.log_b"], np.float64))
        for part in ("global", "row", "local.value")
    )
    for scales in (layer, row[:, 0], local[:, 1]):
        assert stats.kstest(scales, stats.halfcauchy.cdf).pvalue > 0.005
    precision = found["b.slab_precision"][:, None]
    product = 0.3 * layer[:, None] * row * local
    gamma = 1 / np.sqrt(precision + product**-2.0)
    np.testing.assert_allclose(found["b.scale.value"], gamma, rtol=1e-3)
    np.testing.assert_allclose(found["w"], gamma * found["b"], rtol=1e-3, atol=1e-12)


@pytest.mark.slow
def test_a_narrow_slab_bounds_the_tails():
    found = draws(priors.RegularizedHorseshoePrior(1.0, slab_concentration=100.0, slab_rate=100.0))
    assert np.asarray(found["b.scale.value"]).max() < 1.7
    plain = draws(priors.RegularizedHorseshoePrior(1.0, slab_concentration=1.0, slab_rate=1e6))
    # Without a slab: υ τ has the tail of a product of two half-Cauchy variables.
    product = stats.halfcauchy.rvs(size=(2, 200000), random_state=0).prod(0)
    assert stats.ks_2samp(plain["b.scale.value"], np.minimum(product, 1e3)).statistic < 0.02


def test_rows_are_shared_by_the_tensors_of_a_layer():
    network = zoo.MLP(3, [4], 2, key=jax.random.key(0))
    model = programs.classifier(network, priors.RegularizedHorseshoePrior(0.1))
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(jnp.ones((2, 3)))
    assert trace["net.layers.0.row.log_a"]["value"].shape == (4,)
    scale = trace["net.layers.0.scale.weight"]["value"]
    assert scale.shape == (4, 1)
    np.testing.assert_allclose(scale[:, 0], trace["net.layers.0.scale.bias"]["value"])


def test_rows_of_a_flax_kernel_are_its_outputs():
    network = zoo.NNXMLP(3, [4], 2, rngs=nnx.Rngs(0))
    model = programs.classifier(network, priors.RegularizedHorseshoePrior(0.1))
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(jnp.ones((2, 3)))
    assert trace["net.layers.0.row.log_a"]["value"].shape == (4,)
    assert trace["net.layers.0.scale.kernel"]["value"].shape == (1, 4)


def make(seed, rows=200, columns=100):
    x = jax.random.normal(jax.random.key(seed), (rows, columns))
    beta = jnp.zeros(columns)
    for index, value in TRUE.items():
        beta = beta.at[index % columns].set(value)
    return x, beta, x @ beta + 0.5 * jax.random.normal(jax.random.key(100 + seed), (rows,))


def regression(prior):
    def program(x, y=None):
        beta = numpyro.deterministic("coefficients", prior.sample("beta", (x.shape[1],)))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    return program


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.slow
def test_svi_finds_five_coefficients_among_a_hundred(local):
    x, beta, y = make(0)
    scale = priors.RegularizedHorseshoePrior.expected_scale(5, 100, 200, noise=0.5)
    model = regression(priors.RegularizedHorseshoePrior(scale, local=local))
    result = sparsify(
        model,
        (x, y),
        key=jax.random.key(0),
        criterion=None,
        batch_size=None,
        steps_per_epoch=100,
        num_epochs=60,
        progress=False,
    )
    drawn = result.sample(jax.random.key(1), 400)
    found = Predictive(model, posterior_samples=drawn)(jax.random.key(2), x)["coefficients"]
    low, high = np.quantile(found, [0.025, 0.975], axis=0)
    assert np.flatnonzero((low > 0) | (high < 0)).tolist() == sorted(TRUE)
    assert np.abs((found.mean(0) - beta) / found.std(0))[np.array(list(TRUE))].max() < 3
    assert np.abs(np.delete(found.mean(0), list(TRUE))).max() < 0.03


@pytest.mark.slow
def test_nuts_agrees_with_numpyros_own_half_cauchy():
    x, _, y = make(1, rows=60, columns=12)

    def reference(x, y=None):
        layer = numpyro.sample("layer", dist.HalfCauchy(0.1))
        row = numpyro.sample("row", dist.HalfCauchy(1.0).expand([12]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 6.0))
        unit = numpyro.sample("unit", dist.Normal(0.0, 1.0).expand([12]).to_event(1))
        gamma = 1 / jnp.sqrt(precision + (layer * row) ** -2.0)
        beta = numpyro.deterministic("coefficients", gamma * unit)
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    found = {}
    for name, model in {
        "ours": regression(priors.RegularizedHorseshoePrior(0.1)),
        "reference": reference,
    }.items():
        kernel = NUTS(model, target_accept_prob=0.95)
        mcmc = MCMC(kernel, num_warmup=300, num_samples=500, progress_bar=False)
        mcmc.run(jax.random.key(0), x, y)
        found[name] = np.asarray(mcmc.get_samples()["coefficients"])
        assert int(mcmc.get_extra_fields()["diverging"].sum()) <= 10
    ours, theirs = found["ours"], found["reference"]
    error = np.sqrt(ours.var(0) / 100 + theirs.var(0) / 100)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) / error).max() < 4
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.3)


@pytest.mark.slow
def test_a_fit_starts_at_the_scale_of_the_network_or_of_the_slab():
    """Started in the pole of the prior, a factorised posterior stays there."""
    weights = zoo.MLP(30, [40], 2, key=jax.random.key(0))
    x, _, y = make(0)
    for model, args, site, expected in [
        (regression(priors.RegularizedHorseshoePrior(1e-3)), (x, y), "beta.scale.value", 0.866),
        (
            programs.classifier(weights, priors.RegularizedHorseshoePrior(1e-3)),
            (jnp.ones((2, 30)), jnp.zeros(2, int)),
            "net.layers.0.scale.weight",
            float(jnp.std(weights.layers[0].weight)),
        ),
    ]:
        guide = infer.AutoMeanField(model, init_scale=1e-6)
        scale = jax.jit(guide.median)(started(model, guide, *args))[site]
        np.testing.assert_allclose(scale, expected, rtol=0.1)


@pytest.mark.parametrize("size", [1e-20, 1e-8, 1.0, 1e8])
def test_extreme_scales_stay_finite(size):
    prior = priors.RegularizedHorseshoePrior(1e-12, local=True)
    sites = ["global", "row", "local.value"]
    values = {f"b.{s}.log_a": jnp.full((2,) if s != "global" else (), np.log(size)) for s in sites}

    def total(values):
        program = numpyro.handlers.substitute(lambda: prior.sample("b", (2,)), data=values)
        return jnp.sum(numpyro.handlers.seed(program, jax.random.key(0))())

    value, grads = jax.value_and_grad(total)(values)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in grads.values())


@pytest.mark.parametrize(
    ("make_prior", "message"),
    [
        (lambda: priors.RegularizedHorseshoePrior(0.0), "global_scale must be positive"),
        (lambda: priors.RegularizedHorseshoePrior(slab_rate=-1.0), "slab_rate must be positive"),
        (
            lambda: priors.RegularizedHorseshoePrior.expected_scale(9, 9, 10),
            "between 0 and num_total",
        ),
    ],
)
def test_bad_numbers_are_refused(make_prior, message):
    with pytest.raises(ValueError, match=message):
        make_prior()

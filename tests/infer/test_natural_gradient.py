"""Natural gradients of mean-field normal posteriors: the step, its optimum, and what a run does with it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from numpyro.infer import TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal

import bmrjax as bmr
from bmrjax.infer import NaturalGradient, natural_weights
from bmrjax.infer.natural_gradient import SiteState

PRIOR, NOISE = 0.7, 0.5
TRUE = jnp.array([1.0, 0.0, -0.5, 0.0, 2.0, 0.0])
QUICK = NaturalGradient(learning_rate=0.2, curvature_rate=0.02)


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


@pytest.fixture(scope="module")
def data():
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (60, 6))
    x = x + 0.7 * x[:, :1]  # correlated columns
    return x, x @ TRUE + NOISE * jax.random.normal(keys[1], (60,))


@pytest.fixture(scope="module")
def exact(data):
    """The means and scales at the optimum of the mean-field free energy: means exact, scales Λ_ii^(−1/2)."""
    x, y = data
    precision = x.T @ x / NOISE**2 + jnp.eye(6) / PRIOR**2
    return jnp.linalg.solve(precision, x.T @ y / NOISE**2), jnp.diag(precision) ** -0.5


def fitted(program, data, optimizer, *, rates=(1.0, 1.0, 0.2, 0.04), steps=500, **settings):
    fit = bmr.Fit(program, data, criterion=None, optimizer=optimizer, **settings)
    state = fit.init(jax.random.key(1))
    for i, rate in enumerate(rates):
        state, _ = fit.epoch(state, jax.random.key(10 + i), num_steps=steps, rate=rate)
    return fit, state


@pytest.mark.usefixtures("x64")
def test_the_expected_step_is_the_natural_gradient():
    """F⁻¹∇F with the Fisher information of (m, P), by quadrature, for a loss that is not quadratic."""
    loc, log_scale = jnp.array([0.3]), jnp.array([-0.8])

    def loss(w):
        return jnp.log(jnp.cosh(2 * w - 1)) + 0.1 * jnp.sin(3 * w)

    def log_q(theta, w):
        return dist.Normal(theta[0], theta[1] ** -0.5).log_prob(w)

    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights, nodes = jnp.asarray(weights / weights.sum()), jnp.asarray(nodes)

    def free_energy(theta):
        w = theta[0] + theta[1] ** -0.5 * nodes
        entropy = 0.5 * jnp.log(2 * jnp.pi * jnp.e / theta[1])
        return weights @ (loss(w) - dist.Normal(0, PRIOR).log_prob(w)) - entropy

    theta = jnp.array([loc[0], jnp.exp(-2 * log_scale[0])])
    w = loc + jnp.exp(log_scale) * nodes
    scores = jax.vmap(lambda w: jax.grad(log_q)(theta, w))(w)
    fisher = jnp.einsum("n,ni,nj->ij", weights, scores, scores)
    expected = -jnp.linalg.solve(fisher, jax.grad(free_energy)(theta))

    rate = 1e-4
    method = NaturalGradient(learning_rate=rate, curvature_rate=rate, momentum=0.0, warmup=0)

    def one(w):
        scale, g = jnp.exp(log_scale), jax.grad(loss)(w)
        state = SiteState(jnp.zeros(1), jnp.zeros(2))
        gradients = g + loc / PRIOR**2, g * (w - loc) + scale**2 / PRIOR**2 - 1
        # Far out, the gradients are beyond the trust region: a huge memory holds the rates where they are.
        (move, grown), _ = method.step(state, log_scale, *gradients, jnp.asarray(10**6))
        return jnp.array([move[0], -2 * theta[1] * grown[0]])

    step = weights @ jax.vmap(one)(w) / rate
    np.testing.assert_allclose(step, expected, rtol=1e-4)


@pytest.mark.parametrize("guide", [None, AutoNormal])
def test_the_optimum_is_the_exact_mean_field_posterior(data, exact, guide):
    """Scales learned as logarithms and through a softplus; the moments of the likelihood are exact here."""
    made = None if guide is None else guide(regression)
    fit, state = fitted(
        regression,
        data,
        QUICK,
        guide=made,
        batch_size=None,
        options=bmr.FitOptions(estimator="moments"),
    )
    params = fit.params(state)
    np.testing.assert_allclose(params["beta_auto_loc"], exact[0], atol=2e-3 * exact[1].min())
    np.testing.assert_allclose(params["beta_auto_scale"], exact[1], rtol=2e-3)


def test_minibatches_and_samples_lead_to_it_too(data, exact):
    """Within what is left of the noise of the gradients: a tenth of a standard deviation."""
    loss = TraceMeanField_ELBO(num_particles=4)
    options = {"options": bmr.FitOptions(loss=loss), "rates": (1.0, 0.3, 0.1, 0.03)}
    fit, state = fitted(regression, data, QUICK, batch_size=20, steps=1500, **options)
    params = fit.params(state)
    assert jnp.max(jnp.abs(params["beta_auto_loc"] - exact[0]) / exact[1]) < 0.15
    np.testing.assert_allclose(params["beta_auto_scale"], exact[1], rtol=0.1)


def layers(x, y=None):
    """A classifier whose sites are of several kinds: normal ones, a precision, and one with an atom."""
    scale = numpyro.sample("precision", dist.Gamma(2, 2)) ** -0.5
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    slab = bmr.distributions.DiscreteSpikeAndSlab(jnp.zeros(3), jnp.ones(3), jnp.zeros(3))
    v = numpyro.sample("v", slab.to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=jnp.tanh(x @ (scale * w)) @ v), obs=y)


def test_only_normal_sites_are_moved_by_it(data):
    x = data[0][:, :2]
    y = (x[:, 0] > 0).astype(jnp.float32)
    fit = bmr.Fit(layers, (x, y), criterion=None, batch_size=None, optimizer=NaturalGradient())
    state = fit.init(jax.random.key(0)).svi.opt_state
    assert set(state.sites) == {"w_auto_loc"}
    expected = {"precision_auto_loc", "precision_auto_scale"}
    expected |= {f"v_auto_{part}" for part in ("loc", "scale", "logits")}
    assert set(state.others[0].mu) == expected
    # Beside the posterior, one number per weight and two per site.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.sites)) == 6 + 2


def test_guides_written_by_hand_are_read_and_shared_parameters_are_not(data):
    def guide(x, y=None):
        loc = numpyro.param("m", jnp.zeros(6))
        scale = numpyro.param("s", 0.1 * jnp.ones(6), constraint=constraints.positive)
        numpyro.sample("beta", dist.Normal(loc, scale).to_event(1))

    def tied(x, y=None):
        scale = numpyro.param("s", 0.1, constraint=constraints.positive)
        numpyro.sample("beta", dist.Normal(jnp.zeros(6), scale).to_event(1))

    settings = {"criterion": None, "batch_size": None, "optimizer": NaturalGradient()}
    state = bmr.Fit(regression, data, guide, **settings).init(jax.random.key(0))
    assert set(state.svi.opt_state.sites) == {"m"}
    with pytest.raises(ValueError, match="no site whose posterior is independent normals"):
        bmr.Fit(regression, data, tied, **settings).init(jax.random.key(0))
    joint = bmr.infer.AutoMultivariate(regression)
    with pytest.raises(ValueError, match=r"AutoMultivariate.*Use infer\.AutoMeanField"):
        bmr.Fit(regression, data, joint, **settings).init(jax.random.key(0))


def sparse(directory=None, *, resume=False, epochs=12, **settings):
    x = jax.random.normal(jax.random.key(3), (96, 6))
    checkpoints = None if directory is None else bmr.Checkpoints(directory, resume=resume)
    return bmr.sparsify(
        regression,
        (x, x @ TRUE),
        **{"key": jax.random.key(4), "batch_size": 32, "optimizer": QUICK, **settings},
        num_epochs=epochs,
        steps_per_epoch=100,
        schedule=bmr.schedules.Every(wait=2),
        checkpoints=checkpoints,
        progress=False,
    )


@pytest.fixture(scope="module")
def reduced():
    return sparse()


def test_a_run_removes_what_does_nothing_and_compiles_one_step(reduced):
    assert reduced.keep["beta"].tolist() == [True, False, True, False, True, False]
    assert reduced.num_compilations == 1


def test_a_run_that_goes_on_is_bit_for_bit_the_one_that_did_not_stop(reduced, tmp_path):
    sparse(tmp_path, epochs=5)
    again = sparse(tmp_path, resume=True)
    for a, b in zip(jax.tree.leaves(again.params), jax.tree.leaves(reduced.params), strict=True):
        np.testing.assert_array_equal(a, b)
    other = NaturalGradient(learning_rate=0.1, curvature_rate=0.02)
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate 0\.2, this one has 0\.1"):
        sparse(tmp_path, resume=True, optimizer=other)


def test_members_of_an_ensemble_are_runs_of_their_own(reduced):
    x = jax.random.normal(jax.random.key(3), (96, 6))
    keys = [jax.random.key(9), jax.random.key(4)]
    settings = {"batch_size": 32, "num_epochs": 12, "steps_per_epoch": 100, "progress": False}
    schedule = bmr.schedules.Every(wait=2)
    results = bmr.ensemble(
        regression, (x, x @ TRUE), keys=keys, optimizer=QUICK, schedule=schedule, **settings
    )
    for name, value in reduced.params.items():
        np.testing.assert_allclose(results[1].params[name], value, rtol=1e-3, atol=1e-5)


def test_a_removed_element_stays_where_it_is_and_a_step_never_leaves_the_device(data):
    fit = bmr.Fit(regression, data, batch_size=20, optimizer=QUICK)
    state, _ = fit.epoch(fit.init(jax.random.key(0)), jax.random.key(1), num_steps=100)
    keep = {"beta": jnp.arange(6) != 3}
    before = fit.params(state)
    state = bmr.FitState(state.svi, keep, state.memory)
    state, _ = fit.epoch(state, jax.random.key(2), num_steps=100)
    after = fit.params(state)
    for name in ("beta_auto_loc", "beta_auto_scale"):
        assert after[name][3] == before[name][3]
        assert jnp.all((after[name] != before[name]) == keep["beta"])
    (program,) = fit.engine._epoch._compiled.values()
    text = program.as_text()
    assert not any(word in text for word in ("callback", "infeed", "outfeed", "host"))


@pytest.mark.parametrize("start", [1e-6, 30.0])
def test_a_start_with_the_wrong_scales_neither_diverges_nor_stays_there(data, exact, start):
    """The first noise is 600 times that of the posterior, or so small that nothing is seen of it."""
    guide = bmr.infer.AutoMeanField(regression, init_scale=start)
    fit, state = fitted(
        regression, data, QUICK, guide=guide, batch_size=20, rates=(1.0, 1.0, 1.0, 0.1), steps=1500
    )
    assert int(state.svi.num_skipped) == 0
    params = fit.params(state)
    assert jnp.max(jnp.abs(params["beta_auto_loc"] - exact[0]) / exact[1]) < 0.5
    np.testing.assert_allclose(params["beta_auto_scale"], exact[1], rtol=0.3)


def test_a_loop_of_ones_own_finds_the_same_posterior(data, exact):
    x, y = data
    method = natural_weights(num_data=60, prior_scale=PRIOR, scale=0.1, optimizer=QUICK)

    def loss(w):
        return jnp.mean((x @ w["beta"] - y) ** 2) / (2 * NOISE**2)

    def step(state, key):
        weights = jax.vmap(method.sample, (0, None))(jax.random.split(key, 8), state)
        return method.update(jax.vmap(jax.grad(loss))(weights), weights, state), state

    state = method.init({"beta": jnp.zeros(6)})
    keys = jax.random.split(jax.random.key(0), 3000)
    state, path = jax.jit(lambda s: jax.lax.scan(step, s, keys))(state)
    # The mean over the last steps: a rate that does not fall leaves each of them some noise.
    loc, scale = (jnp.mean(jnp.asarray(p["beta"])[1000:], 0) for p in (path.loc, path.log_scale))
    assert jnp.max(jnp.abs(loc - exact[0]) / exact[1]) < 0.05
    np.testing.assert_allclose(jnp.exp(scale), exact[1], rtol=0.05)
    assert int(state.num_steps) == 3000


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="learning_rate must be positive, got 0"):
        NaturalGradient(learning_rate=0.0)
    with pytest.raises(ValueError, match="momentum must be at least 0 and below 1, got 1"):
        NaturalGradient(momentum=1.0)
    with pytest.raises(ValueError, match="warmup must not be negative"):
        NaturalGradient(warmup=-1)
    with pytest.raises(TypeError, match=r"others is a float; give an optax optimiser"):
        NaturalGradient(others=1e-2)
    with pytest.raises(ValueError, match="natural_weights: scale must be positive"):
        natural_weights(num_data=10, prior_scale=1.0, scale=-1.0)


@pytest.mark.slow
def test_it_finds_what_adabelief_finds_where_nothing_is_exact(data):
    """The free energy of a logistic regression: the same optimum by two ways."""
    x = data[0][:, :2]
    y = (x @ jnp.array([1.0, -1.0]) + 0.5 * x[:, 1] ** 2 > 0.3).astype(jnp.float32)

    def program(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([2]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    settings = {"batch_size": None, "steps": 1500, "rates": (1.0, 0.3, 0.1, 0.03)}
    settings |= {"options": bmr.FitOptions(estimator="local")}
    made = {"guide": bmr.infer.AutoMeanField(program)}
    found = [
        fit.params(state)
        for fit, state in (
            fitted(program, (x, y), optimizer, **settings, **made)
            for optimizer in (QUICK, optax.adabelief(2e-2))
        )
    ]
    scale = found[1]["w_auto_scale"]
    assert jnp.max(jnp.abs(found[0]["w_auto_loc"] - found[1]["w_auto_loc"]) / scale) < 0.1
    np.testing.assert_allclose(found[0]["w_auto_scale"], scale, rtol=0.05)

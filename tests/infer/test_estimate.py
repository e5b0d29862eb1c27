"""The three estimators of the expected log likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.infer.autoguide import AutoDelta

import bmrjax as bmr
from bmrjax import infer, programs
from bmrjax.infer import Engine, elbo

ESTIMATORS = ("global", "local", "moments")
X = jax.random.normal(jax.random.key(5), (32, 4))
TARGET = jnp.sin(X[:, :2]) + 0.1 * X[:, 2:]


def regression(x, y=None):
    """A network of one hidden layer with a known noise: moments are exact for it."""
    network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0), activation=jax.nn.relu)
    out = bmr.random_module("net", network, bmr.priors.NormalPrior(1.0))(x)
    with numpyro.plate("data", 32, subsample_size=x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(out, 0.5).to_event(1), obs=y)


def classification():
    network = bmr.zoo.MLP(4, (8, 8), 3, key=jax.random.key(0))
    return programs.classifier(network, bmr.priors.Flat())


def started(model, data, estimator, *, batch_size=32, init_scale=0.3, keep=None):
    """Return the loss and its gradient as functions of a key, and the state."""
    guide = infer.AutoMeanField(model, init_scale=init_scale)
    engine = Engine(
        model,
        guide,
        optimizer=optax.adabelief(1e-2),
        loss=elbo(estimator),
        num_data=len(X),
        batch_size=batch_size,
    )
    state = engine.init(jax.random.key(0), data)

    def loss(params, key):
        zero = jnp.zeros((), jnp.int32)
        return engine.step.loss(params, state.mutable, zero, keep or {}, 1.0, data, key)[0]

    return jax.jit(loss), jax.jit(jax.grad(loss)), state


def losses(model, data, estimator, count=1500, **options):
    loss, _, state = started(model, data, estimator, **options)
    return np.asarray(jax.vmap(lambda k: loss(state.params, k))(keys(count)))


def keys(count):
    return jax.random.split(jax.random.key(7), count)


@pytest.mark.parametrize("batch", [pytest.param(32, marks=pytest.mark.slow), 8])
def test_all_three_estimate_the_same_free_energy(batch):
    data = X[:batch], TARGET[:batch]
    found = {e: losses(regression, data, e, batch_size=batch) for e in ESTIMATORS}
    exact = found["moments"]
    np.testing.assert_allclose(exact, exact[0], rtol=1e-5)  # nothing is random
    for estimator in ("global", "local"):
        error = found[estimator].std() / len(exact) ** 0.5
        assert abs(found[estimator].mean() - exact[0]) < 4 * error


def test_rows_count_once_in_unequal_batches_of_targets_with_an_axis():
    def program(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4, 2]).to_event(2))
        numpyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)

    guide, data = infer.AutoMeanField(program), (X, TARGET)
    numpyro.handlers.seed(guide, 0)(*data)
    params = {"w_auto_loc": jnp.ones((4, 2)), "w_auto_scale": jnp.full((4, 2), 0.1)}
    whole, parts = (
        infer.FreeEnergy(program, guide, loss=elbo("moments"), batch_size=size)(
            params, {}, data, jax.random.key(0)
        )
        for size in (32, 12)
    )
    assert parts == pytest.approx(whole, rel=1e-5)


def test_classes_are_sampled_at_the_last_layer():
    data = X, jnp.arange(32) % 3
    found = {e: losses(classification(), data, e, init_scale=0.1) for e in ESTIMATORS}
    for estimator in ("local", "moments"):
        error = np.hypot(found[estimator].std(), found["global"].std()) / 1500**0.5
        assert abs(found[estimator].mean() - found["global"].mean()) < 4 * error


@pytest.mark.slow
def test_gradients_vary_least_without_sampling():
    spread = {}
    for estimator in ESTIMATORS:
        _, gradient, state = started(regression, (X, TARGET), estimator)
        found = jax.vmap(lambda k, g=gradient, s=state: g(s.params, k))(keys(300))
        spread[estimator] = sum(float(v.var(0).sum()) for v in found.values())
        mean = jnp.concatenate([v.mean(0).ravel() for v in found.values()])
        spread[estimator, "mean"] = mean
    assert spread["moments"] < 1e-6 < spread["local"] < 0.5 * spread["global"]
    exact = spread["moments", "mean"]
    for estimator in ("global", "local"):
        distance = jnp.linalg.norm(spread[estimator, "mean"] - exact)
        assert distance < 4 * (spread[estimator] / 300) ** 0.5


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("estimator", ["local", "moments"])
def test_a_removed_element_adds_nothing(estimator):
    keep = {"net.layers.0.weight": jnp.ones((8, 4), bool).at[2].set(False)}
    options = {"keep": keep}
    mean = losses(regression, (X, TARGET), estimator, **options).mean()
    exact = losses(regression, (X, TARGET), "global", **options)
    assert abs(mean - exact.mean()) < 5 * exact.std() / len(exact) ** 0.5
    _, gradient, state = started(regression, (X, TARGET), estimator, **options)
    found = gradient(state.params, jax.random.key(0))
    for part in ("loc", "scale"):
        slope = np.asarray(found[f"net.layers.0.weight_auto_{part}"])
        assert not slope[2].any()
        assert slope[3].any()


def test_counts_are_sampled_at_the_last_layer():
    def counts(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * x @ w)), obs=y)

    data = X, jnp.arange(32) % 4
    found = {e: losses(counts, data, e) for e in ESTIMATORS}
    for estimator in ("local", "moments"):
        error = np.hypot(found[estimator].std(), found["global"].std()) / 1500**0.5
        assert abs(found[estimator].mean() - found["global"].mean()) < 4 * error


def residual(x, y=None):
    """The program of `regression`, which observes what is left of the targets."""
    network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0), activation=jax.nn.relu)
    out = bmr.random_module("net", network, bmr.priors.NormalPrior(1.0))(x)
    numpyro.sample("y", dist.Normal(0.0, 0.5).expand([32, 2]).to_event(2), obs=y - out)


def moved_rates(x, y=None):
    network = bmr.zoo.MLP(4, (8,), 1, key=jax.random.key(0), activation=jax.nn.relu)
    rates = jnp.exp(0.3 * bmr.random_module("net", network, bmr.priors.NormalPrior(1.0))(x))
    numpyro.sample("y", dist.Poisson(rates.squeeze(-1)), obs=y[:, 0] > 0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("program", [residual, moved_rates])
def test_what_is_sampled_last_has_the_distribution_of_the_program(program):
    found = {e: losses(program, (X, TARGET), e) for e in ESTIMATORS}
    for estimator in ("local", "moments"):
        error = np.hypot(found[estimator].std(), found["global"].std()) / 1500**0.5
        assert abs(found[estimator].mean() - found["global"].mean()) < 4 * error


def test_a_factor_is_taken_at_its_mean():
    def penalised(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        numpyro.factor("penalty", -0.5 * jnp.sum(jnp.square(w)))
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    data = X, TARGET[:, 0]
    moments, plain = losses(penalised, data, "moments", 10), losses(penalised, data, "global", 4000)
    assert abs(moments.mean() - plain.mean()) < 4 * plain.std() / 4000**0.5


class Normalised(nnx.Module):
    """A batch-normalised perceptron."""

    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.last = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.norm(self.first(x))))


@pytest.mark.slow
def test_running_statistics_are_kept():
    network = Normalised(nnx.Rngs(0))

    def program(x, y=None):
        out = bmr.random_module("net", network, bmr.priors.NormalPrior(1.0))(x)[:, 0]
        numpyro.sample("y", dist.Normal(out, 0.5), obs=y)

    result = bmr.sparsify(
        program,
        (X, TARGET[:, 0]),
        key=jax.random.key(0),
        num_epochs=3,
        criterion=None,
        batch_size=16,
        options=bmr.FitOptions(estimator="local"),
        progress=False,
    )
    moved = [v for n, v in result.params.items() if isinstance(v, dict) or "norm" in n]
    assert moved
    assert np.isfinite(result.vfe)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["local", pytest.param("moments", marks=pytest.mark.slow)])
def test_sparsify_finds_the_coefficients(estimator):
    x = jax.random.normal(jax.random.key(0), (100, 6))
    y = 2.0 * x[:, 1] - x[:, 4] + 0.3 * jax.random.normal(jax.random.key(1), (100,))

    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([6]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    result = bmr.sparsify(
        program,
        (x, y),
        key=jax.random.key(2),
        num_epochs=16,
        batch_size=None,
        steps_per_epoch=100,
        criterion=bmr.criteria.Shrinkage(),
        options=bmr.FitOptions(estimator=estimator),
        progress=False,
    )
    assert result.keep["beta"].nonzero()[0].tolist() == [1, 4]
    assert result.posterior()["beta"].loc[1] == pytest.approx(2.0, abs=0.1)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="'global', 'local' or 'moments', got 'glocal'"):
        elbo("glocal")
    with pytest.raises(ValueError, match="part of the loss"):
        bmr.sparsify(
            regression,
            (X, TARGET),
            key=jax.random.key(0),
            options=bmr.FitOptions(loss=elbo("local"), estimator="local"),
        )

    with pytest.raises(ValueError, match="prior and posterior are independent normals"):
        bmr.sparsify(
            regression,
            (X, TARGET),
            key=jax.random.key(0),
            guide=AutoDelta(regression),
            criterion=None,
            num_epochs=1,
            progress=False,
            options=bmr.FitOptions(estimator="local"),
        )

    def sorted_weights(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ jnp.sort(w), 1.0), obs=y)

    with pytest.raises(NotImplementedError, match="no rule for the operation 'sort'"):
        losses(sorted_weights, (X, TARGET[:, 0]), "moments", 2)

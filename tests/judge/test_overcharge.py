"""What a factorised posterior overcharges, against exact determinants and evidences."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.infer.spectral_sum import spectral_sum


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def regression(columns, rows=150, shared=1.0):
    key, noise = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key, (rows, columns)) + shared * jnp.linspace(-1, 1, rows)[:, None]
    return x, x[:, 0] - x[:, 1] + 0.5 * jax.random.normal(noise, (rows,))


def optimum(x, y, keep):
    """Return the mean-field optimum of a regression as a result: it is known in closed form."""
    precision = np.asarray(x.T @ x, float) / 0.25 + np.eye(x.shape[1])
    loc = np.zeros(x.shape[1])
    loc[keep] = np.linalg.solve(precision[np.ix_(keep, keep)], np.asarray(x.T @ y)[keep] / 0.25)
    params = {
        "beta_auto_loc": jnp.array(loc),
        "beta_auto_scale": jnp.array(np.diag(precision) ** -0.5),
    }
    params = {name: value.astype(jnp.float32) for name, value in params.items()}
    guide = bmr.infer.AutoMeanField(program)
    result = bmr.Result(params, {"beta": jnp.array(keep)}, {"beta": "beta"}, len(y))
    result.unpruned_model, result.unpruned_guide = program, guide
    return result, precision[np.ix_(keep, keep)]


def exact(precision):
    return 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])


def log_evidence(x, y, keep):
    x = np.asarray(x, float)[:, keep]
    covariance = x @ x.T + 0.25 * np.eye(len(y))
    quadratic = np.asarray(y, float) @ np.linalg.solve(covariance, np.asarray(y, float))
    return -0.5 * (quadratic + np.linalg.slogdet(covariance)[1] + len(y) * np.log(2 * np.pi))


@pytest.mark.parametrize("removed", [0, 3])
def test_the_corrected_free_energy_is_the_evidence_of_a_regression(removed):
    x, y = regression(8, shared=3.0)
    keep = np.arange(8) < 8 - removed
    result, precision = optimum(x, y, keep)
    found = bmr.overcharge(result, (x, y), key=jax.random.key(1))
    assert found.size == 8 - removed
    assert found.nats == pytest.approx(exact(precision), rel=1e-3)
    vfe = result.free_energy(jax.random.key(2), (x, y), num_samples=4000)
    assert -(vfe - found.nats) == pytest.approx(log_evidence(x, y, keep), abs=0.3)
    assert found.nats > 1.0  # so it was not the same before


def test_many_elements_are_summed_by_quadrature():
    x, y = regression(300)
    result, precision = optimum(x, y, np.ones(300, bool))
    found = bmr.overcharge(result, (x, y), key=jax.random.key(1))
    assert 0 < found.standard_error < 0.1 * found.nats
    assert abs(found.nats - exact(precision)) < 4 * found.standard_error + 0.02 * exact(precision)
    parts = bmr.overcharge(result, (x, y), key=jax.random.key(1), batch_size=40)
    assert parts.nats == pytest.approx(found.nats, rel=1e-3)


def test_an_unconverged_scale_is_charged_too():
    x, y = regression(4)
    result, precision = optimum(x, y, np.ones(4, bool))
    result.params["beta_auto_scale"] *= 0.5
    found = bmr.overcharge(result, (x, y), key=jax.random.key(1))
    divergence = dist.kl_divergence(
        dist.MultivariateNormal(
            jnp.zeros(4), jnp.diag(jnp.array(result.params["beta_auto_scale"]) ** 2)
        ),
        dist.MultivariateNormal(jnp.zeros(4), precision_matrix=jnp.array(precision)),
    )
    assert found.nats == pytest.approx(float(divergence), rel=1e-2)


@pytest.mark.slow
def test_a_log_normal_site_counts_on_its_log_scale():
    def with_noise(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    x, y = regression(2, shared=4.0)
    fit = bmr.sparsify(
        with_noise, (x, y), guide=bmr.infer.AutoMeanField(with_noise), key=jax.random.key(0), batch_size=None,
        criterion=None, num_epochs=8, steps_per_epoch=150, progress=False,
    )  # fmt: skip
    found = bmr.overcharge(fit, (x, y), key=jax.random.key(1), num_samples=64)
    assert found.size == 3
    assert found.left_out == ()

    def log_joint(at):
        mean, noise = x @ at[:2], jnp.exp(at[2])
        prior = dist.Normal(0, 1).log_prob(at).sum()
        return prior + dist.Normal(mean, noise).log_prob(y).sum()

    at = jnp.array([*fit.params["beta_auto_loc"], fit.params["noise_auto_loc"]])
    precision = np.asarray(-jax.hessian(log_joint)(at))
    assert found.nats == pytest.approx(exact(precision), rel=0.1)


def test_spectral_sums_of_a_known_matrix():
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(500, 500)))
    values = np.linspace(0.1, 5, 500)
    matrix = rotation * values @ rotation.T
    options = {"rng": rng, "num_probes": 20, "num_steps": 40, "floor": 1e-3, "exact_up_to": 0}
    found = spectral_sum(lambda v: matrix @ v, 500, np.log, **options)
    assert abs(found.value - np.log(values).sum()) < 4 * found.standard_error
    assert found.standard_error < 20
    assert found.clipped == 0
    whole = spectral_sum(lambda v: matrix @ v, 500, np.log, **{**options, "exact_up_to": 500})
    assert whole.value == pytest.approx(np.log(values).sum(), rel=1e-9)
    # A matrix with few different eigenvalues ends early, and exactly.
    few = spectral_sum(lambda v: 2.0 * v, 500, np.log, **options)
    assert few.value == pytest.approx(500 * np.log(2), rel=1e-9)
    negative = spectral_sum(lambda v: -v, 300, np.log, **options)
    assert negative.clipped == pytest.approx(1)
    assert negative.least == pytest.approx(-1)


def test_what_cannot_be_asked():
    x, y = regression(4)
    result, _ = optimum(x, y, np.ones(4, bool))
    with pytest.raises(TypeError, match="key"):
        bmr.overcharge(result, (x, y), key=0)
    with pytest.raises(ValueError, match="num_probes must be at least 1"):
        bmr.overcharge(result, (x, y), key=jax.random.key(0), num_probes=0)
    result.unpruned_guide = bmr.infer.AutoMultivariate(program)
    with pytest.raises(ValueError, match="has correlations"):
        bmr.overcharge(result, (x, y), key=jax.random.key(0))

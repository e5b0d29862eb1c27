import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bmrjax import reduction
from bmrjax.reduction import Normal
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from scipy import integrate, stats


def scalar(loc, scale):
    return Normal(jnp.asarray(loc), jnp.asarray(scale))


CASES = [
    # posterior, prior, reduced prior; each (loc, scale). The prior's variance is not 1.
    ((0.3, 0.5), (0.0, 2.0), (0.0, 0.7)),
    ((-1.2, 0.4), (0.5, 1.5), (-0.3, 0.9)),
    ((2.0, 0.1), (0.0, 3.0), (1.0, 0.2)),
    ((0.1, 0.3), (0.2, 0.6), (0.0, 0.8)),  # wider than the prior, and proper
]


@pytest.mark.parametrize(("q", "p", "r"), CASES)
def test_agrees_with_quadrature(x64, q, p, r):
    found = reduction.normal(scalar(*q), scalar(*p), scalar(*r))

    def ratio(z, power=0):
        weight = stats.norm.pdf(z, *q) * stats.norm.pdf(z, *r) / stats.norm.pdf(z, *p)
        return z**power * weight

    low, high = q[0] - 25 * q[1], q[0] + 25 * q[1]
    moments = [integrate.quad(ratio, low, high, args=(k,), limit=500)[0] for k in range(3)]
    mean = moments[1] / moments[0]
    # Quadrature itself is good to about 1e-9 here.
    np.testing.assert_allclose(found.delta_f, np.log(moments[0]), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.reduced.loc, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        found.reduced.scale, np.sqrt(moments[2] / moments[0] - mean**2), rtol=1e-6
    )


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_unchanged_prior_changes_nothing(x64, scale):
    q, p = Normal(jnp.array([-2.0, 0.0, 5.0]), jnp.array([0.1, 0.5, 1.0])), scalar(0.7, scale)
    found = reduction.normal(q, p, p)
    np.testing.assert_allclose(found.delta_f, 0.0, atol=1e-10)
    np.testing.assert_allclose(found.reduced.loc, q.loc, atol=1e-10)
    np.testing.assert_allclose(found.reduced.scale, q.scale, atol=1e-10)


def test_spike_is_the_savage_dickey_ratio(x64):
    q = Normal(jnp.array([0.4, -3.0]), jnp.array([0.2, 0.7]))
    p = scalar(0.5, 1.7)
    found = reduction.normal(q, p, reduction.spike(q))
    expected = stats.norm.logpdf(0, q.loc, q.scale) - stats.norm.logpdf(0, 0.5, 1.7)
    np.testing.assert_allclose(found.delta_f, expected, rtol=1e-10)
    np.testing.assert_array_equal(found.reduced.loc, [0.0, 0.0])
    np.testing.assert_array_equal(found.reduced.scale, [0.0, 0.0])


@pytest.mark.parametrize("theta", [0.0, 1e-8, 0.3, 1.0])
def test_is_the_published_formula_under_a_standard_normal_prior(x64, theta):
    mu, sigma = 0.8, 0.35
    rho = theta**2 + sigma**2 - theta**2 * sigma**2
    published = -0.5 * np.log(rho) - 0.5 * mu**2 / sigma**2 * (1 - theta**2 / rho)
    found = reduction.normal(scalar(mu, sigma), scalar(0.0, 1.0), scalar(0.0, theta)).delta_f
    np.testing.assert_allclose(found, published, rtol=1e-10, atol=1e-12)


def test_exact_in_conjugate_regression(x64):
    """The evidence of y = x b + noise under two priors of b, against the marginal normals."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=20), 0.6
    y = 0.4 * x + noise * rng.normal(size=20)
    s, r = 1.8, 0.3

    def evidence(prior_scale):
        covariance = noise**2 * np.eye(20) + prior_scale**2 * np.outer(x, x)
        return stats.multivariate_normal.logpdf(y, np.zeros(20), covariance)

    precision = x @ x / noise**2 + 1 / s**2
    q = scalar(x @ y / noise**2 / precision, precision**-0.5)
    for reduced in (r, 0.0):
        found = reduction.normal(q, scalar(0.0, s), scalar(0.0, reduced)).delta_f
        np.testing.assert_allclose(found, evidence(reduced) - evidence(s), rtol=1e-9)


@settings(deadline=None, max_examples=200)
@given(
    loc=st.floats(-1e6, 1e6, width=32),
    scale=st.floats(-18, 3).map(lambda e: 10.0**e),
    prior_scale=st.floats(-3, 3).map(lambda e: 10.0**e),
    share=st.sampled_from([0.0, 1e-16, 1e-6, 0.5, 1.0]),
)
def test_float32_never_gives_nan(loc, scale, prior_scale, share):
    q = Normal(jnp.float32(loc), jnp.float32(scale))
    p, r = Normal(jnp.float32(0), jnp.float32(prior_scale)), Normal(
        jnp.float32(0), jnp.float32(prior_scale * share)
    )
    found = reduction.normal(q, p, r)
    assert found.delta_f.dtype == jnp.float32
    for value in (found.delta_f, found.reduced.loc, found.reduced.scale):
        assert np.isfinite(value)


def test_improper_reduction_is_infinite():
    found = reduction.normal(scalar(0.0, 1.05), scalar(0.0, 1.0), scalar(0.0, 100.0))
    assert found.delta_f == jnp.inf
    assert np.isnan(found.reduced.loc)


def test_gradient_agrees_with_finite_differences(x64):
    def total(loc, scale):
        return reduction.normal(Normal(loc, scale), scalar(0.1, 1.3), scalar(0.0, 0.4)).delta_f

    check_grads(total, (jnp.asarray(0.7), jnp.asarray(0.5)), order=1)


def test_batches_by_vmap_and_jit():
    loc = jax.random.normal(jax.random.key(0), (4, 5))
    p, r = scalar(0.0, 1.5), scalar(0.0, 0.1)

    def one(loc):
        return reduction.normal(Normal(loc, jnp.full(5, 0.3)), p, r).delta_f

    rows = jnp.stack([one(row) for row in loc])
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(loc), rows, rtol=1e-5)

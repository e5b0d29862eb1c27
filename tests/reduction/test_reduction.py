import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from bmrjax import reduction
from bmrjax.reduction import Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")


def cases(num: int, *, seed: int, widest: float = 0.8) -> tuple[Normal, Normal, Normal]:
    """Random posteriors, priors and reduced priors in float64; no prior variance is 1."""
    rng = np.random.default_rng(seed)
    prior_scale = rng.uniform(0.5, 2.5, num)
    posterior = Normal(rng.normal(0, 1.5, num), prior_scale * rng.uniform(0.1, 0.95, num))
    prior = Normal(rng.normal(0, 1, num), prior_scale)
    reduced_prior = Normal(rng.normal(0, 1, num), prior_scale * rng.uniform(0.05, widest, num))
    return posterior, prior, reduced_prior


def by_quadrature(q: Normal, p: Normal, p_reduced: Normal) -> tuple[float, float, float]:
    """ln E_q[p_reduced / p], and mean and scale of the density under the expectation."""
    z = np.linspace(-80.0, 80.0, 400_001)
    logs = (
        stats.norm.logpdf(z, q.loc, q.scale)
        + stats.norm.logpdf(z, p_reduced.loc, p_reduced.scale)
        - stats.norm.logpdf(z, p.loc, p.scale)
    )
    top = logs.max()
    weights = np.exp(logs - top)
    mean = np.sum(weights * z) / np.sum(weights)
    variance = np.sum(weights * (z - mean) ** 2) / np.sum(weights)
    return top + np.log(np.sum(weights) * (z[1] - z[0])), mean, np.sqrt(variance)


def element(distribution: Normal, i: int) -> Normal:
    return Normal(distribution.loc[i], distribution.scale[i])


def as_float32(distribution: Normal) -> Normal:
    return Normal(np.float32(distribution.loc), np.float32(distribution.scale))


@pytest.mark.parametrize("i", range(12))
def test_agrees_with_quadrature(x64, i):
    q, p, r = (element(x, i) for x in cases(12, seed=0))
    delta_f, mean, scale = by_quadrature(q, p, r)
    actual = reduction.normal(q, p, r)
    np.testing.assert_allclose(actual.delta_f, delta_f, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(actual.reduced.loc, mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(actual.reduced.scale, scale, rtol=1e-10)


def test_agrees_with_quadrature_where_the_reduced_prior_is_wider(x64):
    q, p, r = Normal(0.7, 0.5), Normal(-0.2, 1.1), Normal(0.4, 1.6)
    actual = reduction.normal(*(jax.tree.map(jnp.asarray, x) for x in (q, p, r)))
    expected = by_quadrature(q, p, r)
    np.testing.assert_allclose(
        (actual.delta_f, actual.reduced.loc, actual.reduced.scale), expected, rtol=1e-10
    )


def test_unchanged_prior_changes_nothing(x64):
    q, p, _ = cases(100, seed=1)
    delta_f, reduced = reduction.normal(q, p, p)
    np.testing.assert_allclose(delta_f, 0.0, atol=1e-10)
    np.testing.assert_allclose(reduced.loc, q.loc, rtol=1e-10)
    np.testing.assert_allclose(reduced.scale, q.scale, rtol=1e-10)


@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_unchanged_prior_gives_exactly_zero_in_float32(compile_):
    scale, loc, prior_scale = (
        x.ravel().astype(np.float32)
        for x in np.meshgrid([1e-18, 1e-6, 0.3, 1e3], [0.0, -1.0, 1e6], [1e-3, 0.7, 1e3])
    )
    p = Normal(jnp.full_like(loc, 0.4), jnp.asarray(prior_scale))
    delta_f, reduced = compile_(reduction.normal)(Normal(loc, scale), p, p)
    np.testing.assert_array_equal(delta_f, 0.0)
    np.testing.assert_allclose(reduced.loc, loc, rtol=1e-6)
    np.testing.assert_allclose(reduced.scale, scale, rtol=1e-6)


def test_reducing_twice_is_reducing_once(x64):
    q, p, first = cases(50, seed=2)
    second = Normal(first.loc + 0.3, first.scale * 0.5)
    step = reduction.normal(q, p, first)
    steps = reduction.normal(step.reduced, first, second)
    whole = reduction.normal(q, p, second)
    np.testing.assert_allclose(step.delta_f + steps.delta_f, whole.delta_f, rtol=1e-10)
    np.testing.assert_allclose(steps.reduced.loc, whole.reduced.loc, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(steps.reduced.scale, whole.reduced.scale, rtol=1e-10)


class TestConjugateRegression:
    """Linear regression on orthogonal regressors: the exact posterior is factorised."""

    num_data, noise_scale = 12, 0.7

    @pytest.fixture
    def problem(self):
        rng = np.random.default_rng(3)
        columns, _ = np.linalg.qr(rng.normal(size=(self.num_data, 4)))
        x = columns * np.array([1.0, 3.0, 0.5, 2.0])
        prior = Normal(np.array([0.3, 0.0, -0.5, 0.1]), np.array([0.5, 1.7, 2.5, 0.9]))
        y = x @ rng.normal(size=4) + self.noise_scale * rng.normal(size=self.num_data)
        precision = 1 / prior.scale**2 + np.sum(x**2, axis=0) / self.noise_scale**2
        loc = (prior.loc / prior.scale**2 + x.T @ y / self.noise_scale**2) / precision
        return x, y, prior, Normal(loc, precision**-0.5)

    def log_evidence(self, x, y, prior):
        covariance = self.noise_scale**2 * np.eye(self.num_data) + (x * prior.scale**2) @ x.T
        return stats.multivariate_normal.logpdf(y, x @ prior.loc, covariance)

    @pytest.mark.parametrize(
        "reduced",
        [
            Normal(np.array([0.0, 0.2, -0.5, 0.4]), np.array([0.2, 1.0, 2.5, 0.3])),
            Normal(np.array([0.3, 0.0, -0.5, 0.1]), np.array([0.5, 0.0, 2.5, 0.0])),
            Normal(np.zeros(4), np.zeros(4)),
        ],
        ids=["narrower", "two removed", "all removed"],
    )
    def test_delta_f_is_the_difference_of_evidences(self, x64, problem, reduced):
        x, y, prior, posterior = problem
        delta_f = reduction.normal(posterior, prior, reduced).delta_f
        expected = self.log_evidence(x, y, reduced) - self.log_evidence(x, y, prior)
        np.testing.assert_allclose(np.sum(delta_f), expected, rtol=1e-10)

    def test_reduced_posterior_is_the_posterior_under_the_reduced_prior(self, x64, problem):
        x, y, prior, posterior = problem
        reduced_prior = Normal(np.array([0.0, 0.2, -0.5, 0.4]), np.array([0.2, 1.0, 2.5, 0.3]))
        reduced = reduction.normal(posterior, prior, reduced_prior).reduced
        precision = 1 / reduced_prior.scale**2 + np.sum(x**2, axis=0) / self.noise_scale**2
        weighted = reduced_prior.loc / reduced_prior.scale**2 + x.T @ y / self.noise_scale**2
        np.testing.assert_allclose(reduced.loc, weighted / precision, rtol=1e-10)
        np.testing.assert_allclose(reduced.scale, precision**-0.5, rtol=1e-10)


def test_a_spike_gives_the_savage_dickey_ratio(x64):
    q, p, _ = cases(100, seed=4)
    zero = reduction.spike(Normal(jnp.asarray(q.loc), jnp.asarray(q.scale)))
    delta_f, reduced = reduction.normal(q, p, zero)
    expected = stats.norm.logpdf(0, q.loc, q.scale) - stats.norm.logpdf(0, p.loc, p.scale)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(reduced.loc, 0.0)
    np.testing.assert_array_equal(reduced.scale, 0.0)


def test_narrowing_reduced_priors_tend_to_the_spike(x64):
    q, p, _ = cases(20, seed=5)
    zero = reduction.spike(Normal(jnp.asarray(q.loc), jnp.asarray(q.scale)))
    narrow = Normal(zero.loc, jnp.full_like(zero.scale, 1e-8))
    limit, near = reduction.normal(q, p, zero), reduction.normal(q, p, narrow)
    # First order in the reduced variance of 1e-16 over posterior variances of 1e-2.
    np.testing.assert_allclose(near.delta_f, limit.delta_f, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("theta", [0.0, 1e-8, 0.3, 1.0])
def test_agrees_with_the_published_form(x64, theta):
    q, _, _ = cases(50, seed=6)
    one = np.ones(50)
    delta_f = reduction.normal(q, Normal(0 * one, one), Normal(0 * one, theta * one)).delta_f
    # Markovic, Friston and Kiebel (2024), section II-G: prior N(0, 1), reduced prior N(0, theta^2).
    variance = q.scale**2
    rho = theta**2 + variance - theta**2 * variance
    expected = -0.5 * np.log(rho) - 0.5 * q.loc**2 / variance * (1 - theta**2 / rho)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-10, atol=1e-10)


def test_positive_favours_removal():
    q = Normal(np.array([0.01, 2.0]), np.array([0.1, 0.1]))
    delta_f = reduction.normal(q, Normal(np.zeros(2), np.ones(2)), Normal(np.zeros(2), np.zeros(2)))
    assert delta_f.delta_f[0] > 0 > delta_f.delta_f[1]


def test_diverging_expectation_is_infinite():
    one = jnp.ones(1)
    delta_f, reduced = reduction.normal(
        Normal(0 * one, 2 * one), Normal(0 * one, one), Normal(0 * one, 2 * one)
    )
    np.testing.assert_array_equal(delta_f, np.inf)
    assert np.isnan(reduced.loc).all()
    assert np.isnan(reduced.scale).all()


@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_extreme_float32_scales_stay_finite(compile_):
    axes = np.meshgrid(
        [1e-18, 1e-9, 1e-3, 1.0, 1e3],
        [0.0, 1.0, -1e6, 1e6],
        [1e-3, 0.3, 1.0, 1e3],
        [0.0, 1e-16, 1e-8, 1e-3],
        [0.0, 1.5],
        [0.0, -2.0],
    )
    scale, loc, prior_scale, reduced_scale, prior_loc, reduced_loc = (
        a.ravel().astype(np.float32) for a in axes
    )
    delta_f, reduced = compile_(reduction.normal)(
        Normal(loc, scale), Normal(prior_loc, prior_scale), Normal(reduced_loc, reduced_scale)
    )
    assert delta_f.dtype == jnp.float32
    assert np.isfinite(delta_f).all()
    assert np.isfinite(reduced.loc).all()
    assert np.isfinite(reduced.scale).all()


floats32 = {"width": 32, "allow_nan": False, "allow_subnormal": False}


@given(
    loc=st.floats(-1e3, 1e3, **floats32),
    log_scale=st.floats(-12, 3, **floats32),
    log_prior_scale=st.floats(-4, 4, **floats32),
    shrink=st.one_of(st.just(0.0), st.floats(0.0625, 1.0, **floats32)),
)
def test_float32_agrees_with_float64(loc, log_scale, log_prior_scale, shrink):
    scale, prior_scale = np.float32(np.exp(log_scale)), np.float32(np.exp(log_prior_scale))
    assume(scale < prior_scale)
    single = (
        Normal(np.float32(loc), scale),
        Normal(np.float32(0), prior_scale),
        Normal(np.float32(0), prior_scale * np.float32(shrink)),
    )
    low = reduction.normal(*single)
    with jax.enable_x64(new_val=True):
        high = reduction.normal(*(jax.tree.map(np.float64, x) for x in single))
    # The sum of a logarithm of at most 16 and a quadratic term of one sign: no cancellation but
    # between the two.
    np.testing.assert_allclose(low.delta_f, high.delta_f, rtol=1e-5, atol=16 * 1e-6)
    np.testing.assert_allclose(low.reduced.loc, high.reduced.loc, rtol=1e-5)
    np.testing.assert_allclose(low.reduced.scale, high.reduced.scale, rtol=1e-5)


@given(
    loc=st.floats(-5, 5),
    prior_scale=st.floats(0.2, 5),
    ratio=st.floats(0.01, 0.99),
    shrink=st.floats(0.0, 1.0),
    offset=st.floats(-5, 5),
)
def test_moving_everything_together_changes_nothing(loc, prior_scale, ratio, shrink, offset):
    def at(shift):
        pairs = (loc, prior_scale * ratio), (0.5, prior_scale), (0.2, prior_scale * shrink)
        return reduction.normal(*(Normal(np.float64(m + shift), np.float64(s)) for m, s in pairs))

    with jax.enable_x64(new_val=True):
        here, there = at(0.0), at(offset)
    # Locations up to 10 over variances down to 4e-6 leave 1e-16 of 10 * 5 / 4e-6.
    np.testing.assert_allclose(here.delta_f, there.delta_f, rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(np.asarray(here.reduced.loc) + offset, there.reduced.loc, atol=1e-9)


def test_prior_broadcasts_and_shapes_are_kept():
    q = Normal(jnp.ones((3, 4)), jnp.full((3, 4), 0.2))
    p = Normal(jnp.zeros((1, 4)), jnp.ones((3, 1)))
    delta_f, reduced = reduction.normal(q, p, reduction.spike(q))
    assert delta_f.shape == reduced.loc.shape == reduced.scale.shape == (3, 4)


def test_vmap_is_a_loop():
    trees = [jax.tree.map(jnp.asarray, as_float32(x)) for x in cases(6, seed=7)]
    together = jax.vmap(reduction.normal)(*trees)
    for i in range(6):
        single = reduction.normal(*(element(x, i) for x in trees))
        np.testing.assert_allclose(together.delta_f[i], single.delta_f, rtol=1e-5)


@pytest.mark.parametrize("removed", [False, True], ids=["narrower", "spike"])
def test_gradients_are_finite_differences(x64, removed):
    q, p, r = cases(5, seed=8)
    r = Normal(r.loc, 0 * r.scale) if removed else r

    def total(posterior):
        return jnp.sum(reduction.normal(posterior, p, r).delta_f)

    grads = jax.grad(total)(jax.tree.map(jnp.asarray, q))
    for name in ("loc", "scale"):
        for i in range(5):
            step = 1e-6 * (np.arange(5) == i)
            up = {"loc": q.loc, "scale": q.scale} | {name: getattr(q, name) + step}
            down = {"loc": q.loc, "scale": q.scale} | {name: getattr(q, name) - step}
            slope = (total(Normal(**up)) - total(Normal(**down))) / 2e-6
            # Central differences with steps of 1e-6 are good to about 1e-7.
            np.testing.assert_allclose(getattr(grads, name)[i], slope, rtol=1e-6, atol=1e-6)


def test_float64_is_kept(x64):
    q = Normal(jnp.ones(2), jnp.full(2, 0.1))
    delta_f, reduced = reduction.normal(q, Normal(0 * q.loc, q.loc), reduction.spike(q))
    assert delta_f.dtype == reduced.loc.dtype == reduced.scale.dtype == jnp.float64


def test_removal_dispatches_on_the_family():
    q = reduction.Normal(jnp.array([0.3, 2.0]), jnp.array([0.5, 0.1]))
    p = reduction.Normal(jnp.zeros(2), jnp.full(2, 1.5))
    joint = reduction.MultivariateNormal(q.loc, jnp.diag(q.scale))
    low_rank = reduction.LowRankNormal(q.loc, jnp.zeros((2, 1)), jnp.square(q.scale))
    each = reduction.delta_f_each(q, p)
    assert jnp.allclose(each, reduction.normal(q, p, reduction.spike(q)).delta_f)
    keep = jnp.array([False, True])
    for posterior in (joint, low_rank):
        assert jnp.allclose(reduction.delta_f_each(posterior, p), each, rtol=1e-4)
        removal = reduction.remove(posterior, p, keep)
        assert jnp.allclose(removal.delta_f, each[0], rtol=1e-4)
        assert type(removal.reduced) is type(posterior)


def test_removal_refuses_what_it_does_not_know():
    p = reduction.Normal(jnp.zeros(2), jnp.ones(2))
    with pytest.raises(TypeError, match="ndarray|Array"):
        reduction.delta_f_each(jnp.zeros(2), p)
    with pytest.raises(TypeError, match="MultivariateNormal"):
        reduction.remove(p, p, jnp.ones(2, bool))

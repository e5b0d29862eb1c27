import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bmrjax import reduction
from bmrjax.reduction import LowRankNormal, MultivariateNormal, Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")

reduce = jax.jit(reduction.low_rank_normal)
remove = jax.jit(reduction.remove)
each = jax.jit(reduction.delta_f_each)
univariate = jax.jit(reduction.normal)
multivariate = jax.jit(reduction.multivariate_normal)


def as_float32(tree):
    return jax.tree.map(np.float32, tree)


def covariance(q: LowRankNormal) -> np.ndarray:
    factor = np.asarray(q.cov_factor)
    return factor @ factor.T + np.diag(q.cov_diag)


def case(seed: int, n: int = 6, rank: int = 2) -> tuple[LowRankNormal, Normal]:
    """A posterior of low rank plus diagonal under a prior whose variances are not 1."""
    rng = np.random.default_rng(seed)
    prior = Normal(rng.normal(size=n), rng.uniform(0.6, 2.5, n))
    q = LowRankNormal(
        rng.normal(size=n), 0.4 * rng.normal(size=(n, rank)), rng.uniform(0.01, 0.2, n)
    )
    return q, prior


def reduced_priors(prior: Normal) -> dict[str, Normal]:
    some = np.arange(prior.loc.size) % 3 > 0
    return {
        "narrower": Normal(prior.loc, 0.3 * prior.scale),
        "wider": Normal(prior.loc, 1.7 * prior.scale),
        "moved": Normal(prior.loc + 0.4, prior.scale),
        "all at once": Normal(prior.loc - 0.3, prior.scale * np.where(some, 0.2, 1.6)),
        "some removed": Normal(prior.loc * some, prior.scale * some),
        "all removed": Normal(0 * prior.loc, 0 * prior.scale),
    }


NAMES = list(reduced_priors(case(0)[1]))
PROPER = ["narrower", "wider", "moved", "all at once"]


@pytest.mark.parametrize("name", PROPER)
def test_agrees_with_gaussian_integrals_by_precision(x64, name):
    q, p = case(0)
    r = reduced_priors(p)[name]
    # The textbook's product of three normals, with precisions, which point masses would break.
    precisions = [np.linalg.inv(covariance(q)), np.diag(r.scale**-2.0), -np.diag(p.scale**-2.0)]
    locs = [q.loc, r.loc, p.loc]
    precision = sum(precisions)
    loc = np.linalg.solve(precision, sum(a @ m for a, m in zip(precisions, locs, strict=True)))
    # At any point, here the new mean, the density is the new posterior's times E_q[r / p].
    expected = stats.multivariate_normal.logpdf(loc, q.loc, covariance(q))
    expected += np.sum(stats.norm.logpdf(loc, r.loc, r.scale))
    expected -= np.sum(stats.norm.logpdf(loc, p.loc, p.scale))
    expected -= stats.multivariate_normal.logpdf(loc, loc, np.linalg.inv(precision))
    delta_f, reduced = reduce(q, p, r)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, loc, rtol=1e-10)
    np.testing.assert_allclose(
        covariance(reduced), np.linalg.inv(precision), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_conjugate_regression(x64, name):
    rng = np.random.default_rng(1)
    prior = Normal(rng.normal(size=3), rng.uniform(0.4, 2.5, 3))
    after = reduced_priors(prior)[name]
    x = rng.normal(size=(8, 3)) + rng.normal(size=(8, 1))
    y = x @ rng.normal(size=3) + 0.5 * rng.normal(size=8)

    def posterior(prior):
        gain = (x * prior.scale**2).T @ np.linalg.inv(evidence_covariance(prior))
        cov = np.diag(prior.scale**2) - gain @ (x * prior.scale**2)
        return prior.loc + gain @ (y - x @ prior.loc), cov

    def evidence_covariance(prior):
        return 0.25 * np.eye(8) + (x * prior.scale**2) @ x.T

    def log_evidence(prior):
        return stats.multivariate_normal.logpdf(y, x @ prior.loc, evidence_covariance(prior))

    loc, cov = posterior(prior)
    # Any covariance is of this form at full rank.
    diag = np.full(3, 0.5 * np.linalg.eigvalsh(cov)[0])
    q = LowRankNormal(loc, np.linalg.cholesky(cov - np.diag(diag)), diag)
    delta_f, reduced = reduce(q, prior, after)
    np.testing.assert_allclose(delta_f, log_evidence(after) - log_evidence(prior), rtol=1e-10)
    loc, cov = posterior(after)
    np.testing.assert_allclose(reduced.loc, loc, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(covariance(reduced), cov, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_dense_family(x64, name):
    q, p = case(2)
    r = reduced_priors(p)[name]
    dense = MultivariateNormal(q.loc, np.linalg.cholesky(covariance(q)))
    expected = multivariate(dense, p, r)
    delta_f, reduced = reduce(q, p, r)
    factor = np.asarray(expected.reduced.scale_tril)
    np.testing.assert_allclose(delta_f, expected.delta_f, rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, expected.reduced.loc, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(covariance(reduced), factor @ factor.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_no_factor_is_mean_field(x64, name):
    q, p = case(3)
    r = reduced_priors(p)[name]
    q = LowRankNormal(q.loc, 0 * q.cov_factor, q.cov_diag)
    single = univariate(Normal(q.loc, np.sqrt(q.cov_diag)), p, r)
    delta_f, reduced = reduce(q, p, r)
    np.testing.assert_allclose(delta_f, np.sum(single.delta_f), rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, single.reduced.loc, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.sqrt(reduced.cov_diag), single.reduced.scale, rtol=1e-10)
    np.testing.assert_array_equal(reduced.cov_factor, 0.0)


def test_reducing_twice_is_reducing_once(x64):
    q, p = case(4)
    first, second = (reduced_priors(p)[name] for name in ("all at once", "narrower"))
    step = reduce(q, p, first)
    steps, whole = reduce(step.reduced, first, second), reduce(q, p, second)
    np.testing.assert_allclose(step.delta_f + steps.delta_f, whole.delta_f, rtol=1e-10)
    np.testing.assert_allclose(steps.reduced.loc, whole.reduced.loc, rtol=1e-10)
    np.testing.assert_allclose(covariance(steps.reduced), covariance(whole.reduced), atol=1e-10)


@pytest.mark.parametrize("removed", [[], [2], [0, 3, 5], range(6)], ids=str)
def test_removal_is_the_savage_dickey_ratio_and_conditioning(x64, removed):
    q, p = case(5)
    keep = ~np.isin(np.arange(6), removed)
    cov, gone = covariance(q), ~keep
    loc, expected, schur = np.zeros(6), 0.0, np.zeros((6, 6))
    loc[keep], schur[np.ix_(keep, keep)] = q.loc[keep], cov[np.ix_(keep, keep)]
    if gone.any():
        inner, outer = cov[np.ix_(gone, gone)], cov[np.ix_(keep, gone)]
        expected = stats.multivariate_normal.logpdf(np.zeros(gone.sum()), q.loc[gone], inner)
        expected -= stats.norm.logpdf(0.0, p.loc[gone], p.scale[gone]).sum()
        loc[keep] -= outer @ np.linalg.solve(inner, q.loc[gone])
        schur[np.ix_(keep, keep)] -= outer @ np.linalg.solve(inner, outer.T)
    delta_f, reduced = remove(q, p, keep)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, loc, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(covariance(reduced), schur, rtol=1e-10, atol=1e-10)
    for leaf in jax.tree.leaves(reduced):
        np.testing.assert_array_equal(leaf[gone], 0.0)


def test_each_is_a_removal_of_one(x64):
    q, p = case(6)
    alone = [remove(q, p, ~row).delta_f for row in np.eye(6, dtype=bool)]
    np.testing.assert_allclose(each(q, p), alone, rtol=1e-10)


def test_masks_share_one_program_without_a_square_array():
    n, rank, traces = 300, 2, []

    def counted(q, p, keep):
        traces.append(None)
        return reduction.remove(q, p, keep)

    q, p = as_float32(case(7, n, rank))
    compiled = jax.jit(counted)
    for i in range(3):
        compiled(q, p, np.arange(n) > i)
    assert len(traces) == 1
    text = compiled.lower(q, p, np.arange(n) > 1).as_text()
    assert f"tensor<{n}x{rank}xf32>" in text
    assert f"{n}x{n}" not in text


def test_diverging_expectation_is_infinite():
    one = jnp.ones(2)
    # No element diverges given the factor, D + R G = 4 - 3 * 0.1, but the direction (1, 1) does.
    q = LowRankNormal(0 * one, jnp.sqrt(0.9) * jnp.ones((2, 1)), 0.1 * one)
    delta_f, reduced = reduce(q, Normal(0 * one, one), Normal(0 * one, 2 * one))
    assert delta_f == np.inf
    assert all(np.isnan(x).all() for x in jax.tree.leaves(reduced))
    wide = LowRankNormal(0 * one, 0.1 * jnp.ones((2, 1)), 2 * one)
    assert reduce(wide, Normal(0 * one, one), Normal(0 * one, 2 * one)).delta_f == np.inf
    assert np.isfinite(reduce(q, Normal(0 * one, one), Normal(0 * one, 1.4 * one)).delta_f)


def extreme_cases(num: int = 400) -> tuple[LowRankNormal, Normal, Normal]:
    """Correlated float32 posteriors whose elements have scales 21 decades apart."""
    rng = np.random.default_rng(8)

    def pick(*values):
        return rng.choice(values, size=(num, 3)).astype(np.float32)

    scale = pick(1e-18, 1e-9, 1e-3, 1.0, 1e3)
    factor = scale[..., None] * rng.normal(size=(num, 3, 2)).astype(np.float32)
    q = LowRankNormal(pick(0.0, 1.0, -1e6, 1e6), factor, np.square(scale) * pick(0.1, 1.0))
    prior = Normal(pick(0.0, 1.5), pick(1e-3, 0.3, 1.0, 1e3))
    return q, prior, Normal(pick(0.0, -2.0), prior.scale * pick(0.0, 1e-12, 1e-6, 1e-3, 1.0))


batched = jax.jit(jax.vmap(reduction.low_rank_normal))


def test_extreme_float32_scales_stay_finite():
    delta_f, reduced = batched(*extreme_cases())
    assert delta_f.dtype == jnp.float32
    assert np.isfinite(delta_f).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(reduced))


def test_unchanged_prior_changes_nothing_in_float32():
    q, p, _ = extreme_cases()
    delta_f, reduced = batched(q, p, p)
    np.testing.assert_array_equal(delta_f, 0.0)
    np.testing.assert_array_equal(reduced.loc, q.loc)
    np.testing.assert_array_equal(reduced.cov_factor, q.cov_factor)
    # A variance is rebuilt as D R / R.
    np.testing.assert_allclose(reduced.cov_diag, q.cov_diag, rtol=1e-6)


floats = {"allow_nan": False, "allow_subnormal": False}
vectors = st.lists(st.floats(-2.0, 2.0, **floats), min_size=6, max_size=6).map(np.array)


@given(log_unit=vectors, offset=vectors)
def test_units_and_origin_do_not_matter(log_unit, offset):
    q, p = case(9)
    r = reduced_priors(p)["some removed"]
    unit = np.exp(log_unit)

    def rescaled(x):
        return Normal(offset + unit * x.loc, unit * x.scale)

    moved = LowRankNormal(offset + unit * q.loc, unit[:, None] * q.cov_factor, unit**2 * q.cov_diag)
    with jax.enable_x64(new_val=True):
        both = reduce(q, p, r), reduce(moved, rescaled(p), rescaled(r))
        here, there = jax.tree.map(np.asarray, both)
    # Units over four powers of e, and offsets of 2 over posterior scales of 0.01, cost digits.
    np.testing.assert_allclose(there.delta_f, here.delta_f, rtol=1e-8)
    np.testing.assert_allclose(there.reduced.loc, offset + unit * here.reduced.loc, atol=1e-8)
    expected = unit[:, None] * here.reduced.cov_factor
    np.testing.assert_allclose(there.reduced.cov_factor, expected, rtol=1e-8, atol=1e-8)


@given(
    log_scale=st.lists(st.floats(-12, 1, **floats), min_size=3, max_size=3),
    shrink=st.lists(st.one_of(st.just(0.0), st.floats(0.001, 1.0)), min_size=3, max_size=3),
    share=st.floats(0.1, 1.0),
)
def test_float32_agrees_with_float64(log_scale, shrink, share):
    scale, prior_scale = np.exp(log_scale), np.array([5.0, 7.0, 6.0])
    factor = scale[:, None] * np.array([[1.0, 0.2], [0.5, -0.7], [-0.3, 0.4]])
    single = as_float32(
        (
            LowRankNormal(scale * [0.3, -1.0, 2.0], factor, share * scale**2),
            Normal(np.zeros(3), prior_scale),
            Normal(np.zeros(3), prior_scale * shrink),
        )
    )
    low = jax.tree.map(np.asarray, reduce(*single))
    with jax.enable_x64(new_val=True):
        high = jax.tree.map(np.asarray, reduce(*jax.tree.map(np.float64, single)))
    # Three logarithms of at most 14, a quadratic form of at most 50, a condition of about 10.
    np.testing.assert_allclose(low.delta_f, high.delta_f, rtol=1e-5, atol=5e-5)
    spread = np.maximum(np.sqrt(np.diagonal(covariance(high.reduced))), 1e-30)
    np.testing.assert_allclose(low.reduced.loc / spread, high.reduced.loc / spread, atol=1e-4)
    actual, expected = (x.reduced.cov_factor / spread[:, None] for x in (low, high))
    np.testing.assert_allclose(actual, expected, atol=2e-5)
    np.testing.assert_allclose(low.reduced.cov_diag, high.reduced.cov_diag, rtol=1e-5)


@jax.jit
def along(t, arguments, direction):
    moved = jax.tree.map(lambda x, d: x + t * d, arguments, direction)
    delta_f, reduced = reduction.low_rank_normal(*moved)
    return delta_f + sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(reduced))


gradient = jax.jit(jax.grad(along))


@pytest.mark.parametrize("name", ["unchanged", *NAMES])
def test_gradients_are_finite_differences(x64, name):
    q, p = case(10)
    arguments = (q, p, reduced_priors(p).get(name, p))
    rng = np.random.default_rng(11)
    # One direction in all parameters; a scale of zero stays.
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape) * (x != 0), arguments)
    slope = (along(1e-6, arguments, direction) - along(-1e-6, arguments, direction)) / 2e-6
    # Central differences with steps of 1e-6 are good to about 1e-7 of curvatures of 1e3.
    actual = gradient(0.0, arguments, direction)
    np.testing.assert_allclose(actual, slope, rtol=1e-5, atol=1e-5)


def test_vmap_is_a_loop():
    q, p, r = jax.tree.map(lambda x: x[:5], extreme_cases())
    q = LowRankNormal(np.sign(q.loc), q.cov_factor, q.cov_diag)
    together = batched(q, p, r)
    for i in range(5):
        single = reduce(*jax.tree.map(lambda x, i=i: x[i], (q, p, r)))
        # The batched program fuses, and so rounds, differently.
        np.testing.assert_allclose(together.delta_f[i], single.delta_f, rtol=1e-4)
        np.testing.assert_allclose(together.reduced.loc[i], single.reduced.loc, rtol=1e-4)


def test_priors_broadcast_and_float64_is_kept(x64):
    q, _ = case(12)
    prior = Normal(np.zeros(()), np.array(2.0))
    delta_f, reduced = remove(q, prior, np.zeros(6, bool))
    assert delta_f.shape == ()
    assert {x.dtype for x in jax.tree.leaves((delta_f, reduced))} == {np.dtype("float64")}

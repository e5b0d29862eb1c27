import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bmrjax import reduction
from bmrjax.reduction import MatrixNormal, Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")

reduce = jax.jit(reduction.matrix_normal)
each, rows, columns = map(
    jax.jit, (reduction.delta_f_each, reduction.delta_f_rows, reduction.delta_f_columns)
)
NUM_ROWS, NUM_COLUMNS = 3, 2


def as_float32(tree):
    return jax.tree.map(np.float32, tree)


def case(seed: int) -> tuple[MatrixNormal, Normal]:
    """A posterior with two full covariances under a prior whose variances are not 1."""
    rng = np.random.default_rng(seed)

    def factor(n):
        return 0.6 * (np.tril(0.5 * rng.normal(size=(n, n)), -1) + np.diag(rng.uniform(0.5, 1, n)))

    loc = rng.normal(size=(NUM_ROWS, NUM_COLUMNS))
    q = MatrixNormal(loc, factor(NUM_ROWS), factor(NUM_COLUMNS))
    return q, Normal(rng.normal(size=NUM_ROWS), rng.uniform(0.6, 2.5, NUM_ROWS))


def reduced_priors(prior: Normal) -> dict[str, Normal]:
    return {
        "narrower": Normal(prior.loc, 0.3 * prior.scale),
        "mixed": Normal(prior.loc - 0.3, prior.scale * np.array([0.2, 1.6, 1.0])),
        "row removed": Normal(prior.loc * [1, 0, 1], prior.scale * [1, 0, 1]),
        "all removed": Normal(0 * prior.loc, 0 * prior.scale),
    }


NAMES = list(reduced_priors(case(0)[1]))


def dense(q: MatrixNormal) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the matrix read row by row."""
    row, column = (x @ x.T for x in (q.row_scale_tril, q.column_scale_tril))
    return q.loc.ravel(), np.kron(row, column)


def along_rows(prior: Normal) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(prior.loc, NUM_COLUMNS), np.repeat(prior.scale**2, NUM_COLUMNS)


def by_observation(q: MatrixNormal, p: Normal, r: Normal):
    """Reduce as if the prior's change were data: only products of covariances, all dense.

    The likelihood that took p to q is that of z itself, with the precision C^-1 - S^-1.
    """
    (loc, cov), (m, s), (m_new, s_new) = dense(q), along_rows(p), along_rows(r)
    information = np.linalg.inv(cov) - np.diag(1 / s)
    weighted = np.linalg.solve(cov, loc) - m / s
    inner = np.linalg.inv(np.eye(len(s)) + s_new[:, None] * information)
    new_cov = inner * s_new
    new_loc = inner @ (m_new + s_new * weighted)

    def log_evidence(m, s):
        matrix = np.eye(len(s)) + s[:, None] * information
        mean = np.linalg.solve(matrix, m + s * weighted)
        # ln ∫ N(z; m, s) exp(z·w - z·A z / 2) dz, with z = m + y.
        tilt = weighted - information @ m
        cov = np.linalg.solve(matrix, np.diag(s))
        assert np.allclose(mean, m + cov @ tilt)
        return (
            weighted @ m
            - 0.5 * m @ information @ m
            + 0.5 * tilt @ cov @ tilt
            - 0.5 * np.linalg.slogdet(matrix)[1]
        )

    return log_evidence(m_new, s_new) - log_evidence(m, s), new_loc, new_cov


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_dense_kronecker_covariance(x64, name):
    q, p = case(0)
    r = reduced_priors(p)[name]
    expected, loc, cov = by_observation(q, p, r)
    delta_f, reduced = reduce(q, p, r)
    shape = (NUM_ROWS, NUM_COLUMNS)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, loc.reshape(shape), rtol=1e-10, atol=1e-10)
    scale = np.sqrt(np.abs(np.diagonal(cov))).reshape(shape)
    np.testing.assert_allclose(reduced.scale, scale, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_a_regression_of_two_outputs(x64, name):
    rng = np.random.default_rng(1)
    _, p = case(2)
    r = reduced_priors(p)[name]
    x = rng.normal(size=(9, NUM_ROWS)) + rng.normal(size=(9, 1))
    y = x @ rng.normal(size=(NUM_ROWS, NUM_COLUMNS)) + 0.5 * rng.normal(size=(9, NUM_COLUMNS))

    def data_covariance(prior):
        return 0.25 * np.eye(9) + (x * prior.scale**2) @ x.T

    def log_evidence(prior):
        outputs = stats.multivariate_normal(x @ prior.loc, data_covariance(prior))
        return sum(outputs.logpdf(column) for column in y.T)

    def posterior(prior):
        gain = (x * prior.scale**2).T @ np.linalg.inv(data_covariance(prior))
        loc = prior.loc[:, None] + gain @ (y - (x @ prior.loc)[:, None])
        return loc, np.diag(prior.scale**2) - gain @ (x * prior.scale**2)

    loc, cov = posterior(p)
    # Half of the scale sits in either factor.
    q = MatrixNormal(loc, 2 * np.linalg.cholesky(cov), 0.5 * np.eye(NUM_COLUMNS))
    delta_f, reduced = reduce(q, p, r)
    np.testing.assert_allclose(delta_f, log_evidence(r) - log_evidence(p), rtol=1e-10)
    loc, cov = posterior(r)
    np.testing.assert_allclose(reduced.loc, loc, rtol=1e-10, atol=1e-10)
    scale = np.sqrt(np.abs(np.diagonal(cov)))
    # The square root of a variance that cancelled to 1e-17 where a row is removed.
    np.testing.assert_allclose(reduced.scale, np.stack([scale] * 2, 1), rtol=1e-10, atol=1e-7)


def joint_removal(q: MatrixNormal, p: Normal, gone: np.ndarray) -> float:
    (loc, cov), (m, s), gone = dense(q), along_rows(p), gone.ravel()
    at_zero = stats.multivariate_normal.logpdf(
        np.zeros(gone.sum()), loc[gone], cov[np.ix_(gone, gone)]
    )
    return at_zero - stats.norm.logpdf(0.0, m[gone], np.sqrt(s[gone])).sum()


@pytest.mark.parametrize("seed", [3, 4])
def test_removals_are_savage_dickey_ratios(x64, seed):
    q, p = case(seed)
    index = np.arange(NUM_ROWS * NUM_COLUMNS).reshape(NUM_ROWS, NUM_COLUMNS)
    by_row = [joint_removal(q, p, np.isin(index, row)) for row in index]
    by_column = [joint_removal(q, p, np.isin(index, column)) for column in index.T]
    alone = [joint_removal(q, p, index == i) for i in index.ravel()]
    np.testing.assert_allclose(rows(q, p), by_row, rtol=1e-10)
    np.testing.assert_allclose(columns(q, p), by_column, rtol=1e-10)
    np.testing.assert_allclose(each(q, p), np.reshape(alone, index.shape), rtol=1e-10)


def test_a_row_with_a_point_mass_is_a_removed_row(x64):
    q, p = case(5)
    for i, expected in enumerate(rows(q, p)):
        stays = np.arange(NUM_ROWS) != i
        delta_f, reduced = reduce(q, p, Normal(p.loc * stays, p.scale * stays))
        np.testing.assert_allclose(delta_f, expected, rtol=1e-10)
        np.testing.assert_array_equal(reduced.scale[i], 0.0)
        np.testing.assert_array_equal(reduced.loc[i], 0.0)


def test_independent_elements_are_mean_field(x64):
    q, p = case(6)
    row, column = np.diag([0.3, 0.7, 0.5]), np.diag([0.9, 0.6])
    q = MatrixNormal(q.loc, row, column)
    r = reduced_priors(p)["mixed"]
    marginal = Normal(q.loc, np.outer(np.diag(row), np.diag(column)))
    shape = q.loc.shape
    priors = [jax.tree.map(lambda x: np.broadcast_to(x[:, None], shape), y) for y in (p, r)]
    single = jax.jit(reduction.normal)(marginal, *priors)
    delta_f, reduced = reduce(q, p, r)
    np.testing.assert_allclose(delta_f, np.sum(single.delta_f), rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, single.reduced.loc, rtol=1e-10)
    np.testing.assert_allclose(reduced.scale, single.reduced.scale, rtol=1e-10)


def test_unchanged_prior_changes_nothing_in_float32():
    q, p = as_float32(case(7))
    delta_f, reduced = reduce(q, p, p)
    assert delta_f.dtype == reduced.scale.dtype == jnp.float32
    np.testing.assert_array_equal(delta_f, 0.0)
    # Turned to the eigenvectors and back, so to the precision of the largest of a row.
    np.testing.assert_allclose(reduced.loc, q.loc, rtol=1e-6, atol=1e-6)
    row, column = (np.linalg.norm(x, axis=1) for x in (q.row_scale_tril, q.column_scale_tril))
    np.testing.assert_allclose(reduced.scale, np.outer(row, column), rtol=1e-5)


def test_only_the_product_of_the_two_factors_matters(x64):
    q, p = case(8)
    r = reduced_priors(p)["mixed"]
    traded = MatrixNormal(q.loc, 10 * q.row_scale_tril, 0.1 * q.column_scale_tril)
    for f in (each, rows, columns):
        np.testing.assert_allclose(f(traded, p), f(q, p), rtol=1e-10)
    np.testing.assert_allclose(reduce(traded, p, r).delta_f, reduce(q, p, r).delta_f, rtol=1e-10)


@pytest.mark.parametrize("row_scale", [1e-18, 1e-6, 1.0, 1e3])
@pytest.mark.parametrize("shrink", [0.0, 1e-12, 1e-3, 1.0])
def test_extreme_float32_scales_stay_finite(row_scale, shrink):
    q, p = as_float32(case(9))
    units = np.float32([row_scale, 1.0, 1e-9])
    q = MatrixNormal(1e6 * q.loc, units[:, None] * q.row_scale_tril, q.column_scale_tril)
    delta_f, reduced = reduce(q, p, Normal(p.loc - 2, np.float32(shrink) * p.scale))
    assert np.isfinite(delta_f)
    assert np.isfinite(reduced.loc).all()
    assert np.isfinite(reduced.scale).all()
    for f in (each, rows, columns):
        assert not np.isnan(f(q, p)).any()


def test_one_prior_for_all_is_one_a_row(x64):
    q, _ = case(10)
    scalar, full = Normal(np.zeros(()), np.array(2.0)), Normal(np.zeros(3), np.full(3, 2.0))
    for f in (each, rows, columns):
        np.testing.assert_allclose(f(q, scalar), f(q, full), rtol=1e-10)


def test_a_prior_that_varies_along_a_row_is_refused():
    q, p = as_float32(case(11))
    with pytest.raises(
        ValueError, match=r"one prior scale .* shape \(3,\), but got shape \(3, 2\)"
    ):
        reduction.matrix_normal(q, p, Normal(p.loc, jnp.ones((3, 2))))
    with pytest.raises(ValueError, match=r"one prior loc .* but got shape \(2,\)"):
        reduction.delta_f_rows(q, Normal(jnp.zeros(2), p.scale))


def test_gradients_are_finite_differences(x64):
    q, p = case(12)
    rng = np.random.default_rng(13)

    @jax.jit
    def along(t, arguments, direction):
        q, p, r = jax.tree.map(lambda x, d: x + t * d, arguments, direction)
        delta_f, reduced = reduction.matrix_normal(q, p, r)
        parts = (delta_f, reduced, each(q, p), rows(q, p), columns(q, p))
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(parts))

    arguments = (q, p, reduced_priors(p)["mixed"])
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape) * (x != 0), arguments)
    slope = (along(1e-6, arguments, direction) - along(-1e-6, arguments, direction)) / 2e-6
    # Central differences with steps of 1e-6 are good to about 1e-7 of curvatures of 1e3.
    _, actual = jax.jit(lambda *rest: jax.jvp(lambda t: along(t, *rest), (0.0,), (1.0,)))(
        arguments, direction
    )
    np.testing.assert_allclose(actual, slope, rtol=1e-5, atol=1e-5)


def test_vmap_is_a_loop():
    trees = [as_float32((*case(s), reduced_priors(case(s)[1])["narrower"])) for s in range(3)]
    together = jax.jit(jax.vmap(reduce))(*jax.tree.map(lambda *x: np.stack(x), *trees))
    for i, tree in enumerate(trees):
        single = reduce(*tree)
        np.testing.assert_allclose(together.delta_f[i], single.delta_f, rtol=1e-4)
        np.testing.assert_allclose(together.reduced.scale[i], single.reduced.scale, rtol=1e-4)

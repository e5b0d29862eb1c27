import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bmrjax import reduction
from bmrjax.reduction import MultivariateNormal, Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")

reduce = jax.jit(reduction.multivariate_normal)
remove = jax.jit(reduction.remove)
each = jax.jit(reduction.delta_f_each)
prune = jax.jit(reduction.prune_greedily)
univariate = jax.jit(reduction.normal)


def as_float32(tree):
    return jax.tree.map(np.float32, tree)


def covariance(q: MultivariateNormal) -> np.ndarray:
    factor = np.asarray(q.scale_tril)
    return factor @ np.swapaxes(factor, -1, -2)


class Regression:
    """Linear regression on correlated regressors; no prior variance is 1."""

    noise_scale = 0.7

    def __init__(self, n: int = 4, *, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(12, n)) + 2 * rng.normal(size=(12, 1))
        self.prior = Normal(rng.normal(size=n), rng.uniform(0.4, 2.5, n))
        self.y = self.x @ rng.normal(size=n) + self.noise_scale * rng.normal(size=12)

    def posterior(self, prior: Normal) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance in observation form, which a prior scale of zero does not hurt."""
        gain = (self.x * prior.scale**2).T @ np.linalg.inv(self.data_covariance(prior))
        shrunk = np.diag(prior.scale**2) - gain @ (self.x * prior.scale**2)
        return prior.loc + gain @ (self.y - self.x @ prior.loc), shrunk

    def data_covariance(self, prior: Normal) -> np.ndarray:
        return self.noise_scale**2 * np.eye(12) + (self.x * prior.scale**2) @ self.x.T

    def log_evidence(self, prior: Normal) -> float:
        mean, cov = self.x @ prior.loc, self.data_covariance(prior)
        return stats.multivariate_normal.logpdf(self.y, mean, cov)

    def exact(self) -> MultivariateNormal:
        loc, cov = self.posterior(self.prior)
        return MultivariateNormal(loc, np.linalg.cholesky(cov))


def reduced_priors(prior: Normal) -> dict[str, Normal]:
    loc, scale = prior.loc, prior.scale
    some = np.array([0.0, 1.0, 1.0, 0.0])
    return {
        "narrower": Normal(loc, 0.3 * scale),
        "wider": Normal(loc, 1.7 * scale),
        "moved": Normal(loc + 0.4, scale),
        "all at once": Normal(loc - 0.3, scale * np.array([0.2, 1.6, 1.0, 0.0])),
        "two removed": Normal(loc * some, scale * some),
        "two fixed": Normal(loc * some + 0.5 * (1 - some), scale * some),
        "all removed": Normal(0 * loc, 0 * scale),
    }


NAMES = list(reduced_priors(Regression().prior))


@pytest.mark.parametrize("name", NAMES)
class TestConjugateRegression:
    def test_delta_f_is_the_difference_of_evidences(self, x64, name):
        problem = Regression()
        after = reduced_priors(problem.prior)[name]
        delta_f = reduce(problem.exact(), problem.prior, after).delta_f
        expected = problem.log_evidence(after) - problem.log_evidence(problem.prior)
        np.testing.assert_allclose(delta_f, expected, rtol=1e-10)

    def test_reduced_posterior_is_the_posterior_under_the_reduced_prior(self, x64, name):
        problem = Regression()
        after = reduced_priors(problem.prior)[name]
        reduced = reduce(problem.exact(), problem.prior, after).reduced
        loc, cov = problem.posterior(after)
        np.testing.assert_allclose(reduced.loc, loc, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(covariance(reduced), cov, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(np.triu(reduced.scale_tril, 1), 0.0)


def test_agrees_with_quadrature(x64):
    # A posterior that no data give: wider than the prior in one direction, and correlated.
    q = MultivariateNormal(np.array([0.5, -0.4]), np.array([[1.6, 0.0], [-0.5, 0.4]]))
    p = Normal(np.array([0.2, -0.1]), np.array([1.3, 0.8]))
    r = Normal(np.array([-0.3, 0.1]), np.array([0.5, 0.7]))
    axis = np.linspace(-12, 12, 1201)
    z = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    density = stats.multivariate_normal.pdf(z, q.loc, covariance(q)) * np.prod(
        stats.norm.pdf(z, r.loc, r.scale) / stats.norm.pdf(z, p.loc, p.scale), axis=-1
    )
    mass = density.sum()
    mean = np.einsum("ij,ijk->k", density, z) / mass
    second = np.einsum("ij,ijk,ijl->kl", density, z - mean, z - mean) / mass
    delta_f, reduced = reduce(q, p, r)
    np.testing.assert_allclose(delta_f, np.log(mass * (axis[1] - axis[0]) ** 2), rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, mean, rtol=1e-10)
    np.testing.assert_allclose(covariance(reduced), second, rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_a_diagonal_covariance_is_mean_field(x64, name):
    prior = Regression().prior
    after = reduced_priors(prior)[name]
    marginal = Normal(np.array([0.3, -1.0, 0.7, 0.1]), 0.6 * prior.scale)
    joint = reduce(MultivariateNormal(marginal.loc, np.diag(marginal.scale)), prior, after)
    single = univariate(marginal, prior, after)
    np.testing.assert_allclose(joint.delta_f, np.sum(single.delta_f), rtol=1e-10)
    np.testing.assert_allclose(joint.reduced.loc, single.reduced.loc, rtol=1e-10, atol=1e-10)
    expected = np.diag(single.reduced.scale)
    np.testing.assert_allclose(joint.reduced.scale_tril, expected, rtol=1e-10, atol=1e-10)


def test_reducing_twice_is_reducing_once(x64):
    problem = Regression(seed=1)
    q, p = problem.exact(), problem.prior
    first = Normal(p.loc + 0.2, p.scale * np.array([0.5, 1.3, 1.0, 0.8]))
    second = Normal(p.loc - 0.1, p.scale * np.array([0.4, 0.9, 0.0, 1.1]))
    step = reduce(q, p, first)
    steps = reduce(step.reduced, first, second)
    whole = reduce(q, p, second)
    np.testing.assert_allclose(step.delta_f + steps.delta_f, whole.delta_f, rtol=1e-10)
    np.testing.assert_allclose(steps.reduced.loc, whole.reduced.loc, rtol=1e-10)
    np.testing.assert_allclose(
        steps.reduced.scale_tril, whole.reduced.scale_tril, rtol=1e-10, atol=1e-10
    )


def test_narrowing_reduced_priors_tend_to_the_point_mass(x64):
    problem = Regression()
    zero = 0 * problem.prior.loc
    limit = reduce(problem.exact(), problem.prior, Normal(zero, zero))
    near = reduce(problem.exact(), problem.prior, Normal(zero, zero + 1e-8))
    # First order in the reduced variance of 1e-16 over posterior variances of 1e-2.
    np.testing.assert_allclose(near.delta_f, limit.delta_f, rtol=1e-10)
    # The posterior is the prior then, to the relative precision of its scale of 1e-8.
    np.testing.assert_allclose(near.reduced.scale_tril, 1e-8 * np.eye(4), rtol=1e-10, atol=1e-20)


MASKS = np.array(np.meshgrid(*4 * [[False, True]], indexing="ij")).reshape(4, -1).T


@pytest.mark.parametrize("keep", MASKS, ids=str)
def test_removal_is_the_savage_dickey_ratio_and_conditioning(x64, keep):
    problem = Regression(seed=2)
    q, p = problem.exact(), problem.prior
    cov, gone = covariance(q), ~keep
    delta_f, reduced = remove(q, p, keep)
    loc, expected, schur = np.zeros(4), 0.0, np.zeros((4, 4))
    loc[keep], schur[np.ix_(keep, keep)] = q.loc[keep], cov[np.ix_(keep, keep)]
    if gone.any():
        inner, outer = cov[np.ix_(gone, gone)], cov[np.ix_(keep, gone)]
        expected = stats.multivariate_normal.logpdf(np.zeros(gone.sum()), q.loc[gone], inner)
        expected -= stats.norm.logpdf(0.0, p.loc[gone], p.scale[gone]).sum()
        loc[keep] -= outer @ np.linalg.solve(inner, q.loc[gone])
        schur[np.ix_(keep, keep)] -= outer @ np.linalg.solve(inner, outer.T)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-10)
    np.testing.assert_allclose(reduced.loc, loc, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(covariance(reduced), schur, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(reduced.loc[gone], 0.0)
    np.testing.assert_array_equal(reduced.scale_tril[gone], 0.0)
    np.testing.assert_array_equal(reduced.scale_tril[:, gone], 0.0)


def test_masks_share_one_program(x64):
    traces = []

    def counted(q, p, keep):
        traces.append(None)
        return reduction.remove(q, p, keep)

    problem, compiled = Regression(), jax.jit(counted)
    for keep in MASKS[:4]:
        compiled(problem.exact(), problem.prior, keep)
    assert len(traces) == 1


def test_each_is_a_removal_of_one(x64):
    problem = Regression(seed=3)
    together = each(problem.exact(), problem.prior)
    alone = [remove(problem.exact(), problem.prior, ~row).delta_f for row in np.eye(4, dtype=bool)]
    np.testing.assert_allclose(together, alone, rtol=1e-10)


class TestPruneGreedily:
    @pytest.fixture
    def problem(self):
        problem = Regression(8, seed=4)
        problem.prior = Normal(np.zeros(8), np.full(8, 2.5))
        weights = np.array([1.0, 0, 0, -1.5, 0, 0, 0.8, 0])
        problem.y = problem.x @ weights + 0.7 * np.random.default_rng(5).normal(size=12)
        return problem

    def by_refitting(self, problem, limit):
        """The same path by fitting the regression anew for each candidate set."""
        keep, total = np.ones(8, bool), 0.0
        while (~keep).sum() < limit:
            tried = {i: keep & (np.arange(8) != i) for i in np.flatnonzero(keep)}
            scale = problem.prior.scale
            gains = {
                i: problem.log_evidence(Normal(np.zeros(8), scale * mask))
                - problem.log_evidence(Normal(np.zeros(8), scale * keep))
                for i, mask in tried.items()
            }
            best = max(gains, key=gains.get)
            if gains[best] <= 0:
                break
            keep, total = tried[best], total + gains[best]
        return keep, total

    @pytest.mark.parametrize("limit", [0, 2, 8])
    def test_follows_the_path_of_refitted_regressions(self, x64, problem, limit):
        keep, total = self.by_refitting(problem, limit)
        pruning = prune(problem.exact(), problem.prior, limit=limit)
        np.testing.assert_array_equal(pruning.keep, keep)
        np.testing.assert_allclose(pruning.delta_f, total, rtol=1e-10, atol=1e-10)
        loc, cov = problem.posterior(Normal(np.zeros(8), problem.prior.scale * keep))
        np.testing.assert_allclose(pruning.reduced.loc, loc, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(covariance(pruning.reduced), cov, rtol=1e-10, atol=1e-10)

    def test_stops_where_no_removal_gains(self, x64, problem):
        pruning = prune(problem.exact(), problem.prior, limit=8)
        assert 0 < np.sum(pruning.keep) < 8
        for i in np.flatnonzero(pruning.keep):
            fewer = np.asarray(pruning.keep) & (np.arange(8) != i)
            assert remove(problem.exact(), problem.prior, fewer).delta_f < pruning.delta_f

    def test_the_path_adds_up_to_the_joint_removal(self, x64, problem):
        pruning = prune(problem.exact(), problem.prior, limit=8)
        joint = remove(problem.exact(), problem.prior, pruning.keep).delta_f
        np.testing.assert_allclose(pruning.delta_f, joint, rtol=1e-10)

    def test_keeps_one_of_two_that_stand_in_for_each_other(self):
        # The data determine the sum to be 0.9 +- 0.1. Either may go, both may not.
        cov = np.linalg.inv(100 * np.ones((2, 2)) + np.eye(2))
        loc = cov @ np.full(2, 90.0)
        q = as_float32(MultivariateNormal(loc, np.linalg.cholesky(cov)))
        prior = Normal(np.zeros(2, np.float32), np.ones(2, np.float32))
        assert np.sum(prune(q, prior).keep) == 1

    def test_vmap_is_a_loop(self):
        problems = [Regression(4, seed=s) for s in range(3)]
        trees = [as_float32((x.exact(), x.prior)) for x in problems]
        together = jax.jit(jax.vmap(reduction.prune_greedily))(
            *jax.tree.map(lambda *x: np.stack(x), *trees)
        )
        for i, tree in enumerate(trees):
            single = prune(*tree)
            np.testing.assert_array_equal(together.keep[i], single.keep)
            np.testing.assert_allclose(together.delta_f[i], single.delta_f, rtol=1e-5, atol=1e-5)


def test_diverging_expectation_is_infinite():
    # No marginal diverges, D = 4 - 3 = 1, but the direction (1, 1) does: 1 / 1.9 < 3 / 4.
    q = MultivariateNormal(jnp.zeros(2), np.linalg.cholesky(np.float32([[1.0, 0.9], [0.9, 1.0]])))
    one = jnp.ones(2)
    delta_f, reduced = reduce(q, Normal(0 * one, one), Normal(0 * one, 2 * one))
    assert delta_f == np.inf
    assert np.isnan(reduced.loc).all()
    assert np.isnan(reduced.scale_tril).all()
    almost = reduce(q, Normal(0 * one, one), Normal(0 * one, 1.4 * one))
    assert np.isfinite(almost.delta_f)


def extreme_cases(num: int = 400) -> tuple[MultivariateNormal, Normal, Normal]:
    """Correlated float32 posteriors whose elements have scales 21 decades apart."""
    rng = np.random.default_rng(6)
    pick = lambda *values: rng.choice(values, size=(num, 3)).astype(np.float32)  # noqa: E731
    correlation = np.array([[1, 0.6, -0.3], [0.6, 1, 0.4], [-0.3, 0.4, 1]])
    scale = pick(1e-18, 1e-9, 1e-3, 1.0, 1e3)
    q = MultivariateNormal(
        pick(0.0, 1.0, -1e6, 1e6),
        scale[..., None] * np.linalg.cholesky(correlation).astype(np.float32),
    )
    prior = Normal(pick(0.0, 1.5), pick(1e-3, 0.3, 1.0, 1e3))
    shrink = pick(0.0, 1e-12, 1e-6, 1e-3, 1.0)
    return q, prior, Normal(pick(0.0, -2.0), prior.scale * shrink)


def test_extreme_float32_scales_stay_finite():
    delta_f, reduced = reduce(*extreme_cases())
    assert delta_f.dtype == reduced.loc.dtype == jnp.float32
    assert np.isfinite(delta_f).all()
    assert np.isfinite(reduced.loc).all()
    assert np.isfinite(reduced.scale_tril).all()


def test_unchanged_prior_gives_exactly_zero_in_float32():
    q, p, _ = extreme_cases()
    delta_f, reduced = reduce(q, p, p)
    np.testing.assert_array_equal(delta_f, 0.0)
    np.testing.assert_array_equal(reduced.loc, q.loc)
    # A few roundings times the condition number of the correlation matrix, 7.
    row_scale = np.max(np.abs(q.scale_tril), axis=-1, keepdims=True)
    np.testing.assert_allclose(reduced.scale_tril / row_scale, q.scale_tril / row_scale, atol=1e-5)


floats = {"allow_nan": False, "allow_subnormal": False}
vectors = st.lists(st.floats(-2.0, 2.0, **floats), min_size=4, max_size=4).map(np.array)


@given(log_unit=vectors, offset=vectors)
def test_units_and_origin_do_not_matter(log_unit, offset):
    problem = Regression(seed=7)
    q, p = problem.exact(), problem.prior
    r = Normal(p.loc - 0.3, p.scale * np.array([0.2, 1.2, 1.0, 0.0]))
    unit = np.exp(log_unit)

    def converted(x):
        scale = unit[:, None] * x.scale_tril if hasattr(x, "scale_tril") else unit * x.scale
        return type(x)(offset + unit * x.loc, scale)

    with jax.enable_x64(new_val=True):
        both = reduce(q, p, r), reduce(*map(converted, (q, p, r)))
        here, there = jax.tree.map(np.asarray, both)
    # Units over four powers of e, and offsets of 2 over posterior scales of 0.01, cost digits.
    np.testing.assert_allclose(there.delta_f, here.delta_f, rtol=1e-8)
    np.testing.assert_allclose(there.reduced.loc, offset + unit * here.reduced.loc, atol=1e-8)
    expected = unit[:, None] * np.asarray(here.reduced.scale_tril)
    np.testing.assert_allclose(there.reduced.scale_tril, expected, rtol=1e-8, atol=1e-8)


@given(
    log_scale=st.lists(st.floats(-12, 1, **floats), min_size=3, max_size=3),
    shrink=st.lists(st.one_of(st.just(0.0), st.floats(0.001, 1.0)), min_size=3, max_size=3),
    correlation=st.floats(-0.4, 0.9),
)
def test_float32_agrees_with_float64(log_scale, shrink, correlation):
    scale = np.exp(log_scale)
    matrix = np.full((3, 3), correlation) + (1 - correlation) * np.eye(3)
    prior_scale = np.array([3.0, 5.0, 4.0])
    single = as_float32(
        (
            MultivariateNormal(
                scale * [0.3, -1.0, 2.0], scale[:, None] * np.linalg.cholesky(matrix)
            ),
            Normal(np.zeros(3), prior_scale),
            Normal(np.zeros(3), prior_scale * shrink),
        )
    )
    low = jax.tree.map(np.asarray, reduce(*single))
    with jax.enable_x64(new_val=True):
        high = jax.tree.map(np.asarray, reduce(*jax.tree.map(np.float64, single)))
    # Three logarithms of at most 14 and a quadratic form of at most 50, over a correlation
    # matrix with a condition number of at most 28.
    np.testing.assert_allclose(low.delta_f, high.delta_f, rtol=1e-5, atol=1e-4)
    spread = np.maximum(np.sqrt(np.diagonal(covariance(high.reduced))), 1e-30)
    np.testing.assert_allclose(low.reduced.loc / spread, high.reduced.loc / spread, atol=2e-4)
    relative = np.asarray(high.reduced.scale_tril) / spread[:, None]
    np.testing.assert_allclose(low.reduced.scale_tril / spread[:, None], relative, atol=2e-5)


@jax.jit
def along(t, arguments, direction):
    moved = jax.tree.map(lambda x, d: x + t * d, arguments, direction)
    delta_f, reduced = reduction.multivariate_normal(*moved)
    return delta_f + jnp.sum(jnp.sin(reduced.loc)) + jnp.sum(reduced.scale_tril)


gradient = jax.jit(jax.grad(along))


@pytest.mark.parametrize("name", ["unchanged", *NAMES])
def test_gradients_are_finite_differences(x64, name):
    problem = Regression()
    r = reduced_priors(problem.prior).get(name, problem.prior)
    # One direction in all parameters; a scale of zero stays.
    rng = np.random.default_rng(8)
    arguments = (problem.exact(), problem.prior, r)
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape) * (x != 0), arguments)
    slope = (along(1e-6, arguments, direction) - along(-1e-6, arguments, direction)) / 2e-6
    # Central differences with steps of 1e-6 are good to about 1e-7 of curvatures of 1e3.
    actual = gradient(0.0, arguments, direction)
    np.testing.assert_allclose(actual, slope, rtol=1e-5, atol=1e-5)


def test_batches_are_loops():
    problems = [Regression(seed=s) for s in range(3)]
    trees = [
        as_float32((x.exact(), x.prior, reduced_priors(x.prior)["all at once"])) for x in problems
    ]
    stacked = jax.tree.map(lambda *x: np.stack(x), *trees)
    for together in (reduce(*stacked), jax.vmap(reduce)(*stacked)):
        for i, tree in enumerate(trees):
            single = reduce(*tree)
            np.testing.assert_allclose(together.delta_f[i], single.delta_f, rtol=1e-4)
            np.testing.assert_allclose(
                together.reduced.scale_tril[i], single.reduced.scale_tril, rtol=1e-4, atol=1e-5
            )


def test_priors_and_masks_broadcast():
    q = MultivariateNormal(jnp.ones((2, 3)), 0.3 * jnp.broadcast_to(jnp.eye(3), (2, 3, 3)))
    prior = Normal(jnp.zeros(()), jnp.array(2.0))
    keep = jnp.array([True, False, True])
    delta_f, reduced = remove(q, prior, keep)
    alone = each(q, prior)
    assert delta_f.shape == (2,)
    assert alone.shape == reduced.loc.shape == (2, 3)
    np.testing.assert_allclose(delta_f, alone[:, 1], rtol=1e-5)


def test_float64_is_kept(x64):
    problem = Regression()
    delta_f, reduced = remove(problem.exact(), problem.prior, jnp.zeros(4, bool))
    assert delta_f.dtype == reduced.loc.dtype == reduced.scale_tril.dtype == jnp.float64


@pytest.mark.parametrize("apart", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("keep", [(0, 0, 1), (1, 1, 0), (0, 1, 1), (0, 0, 0)], ids=str)
def test_collinear_elements_keep_their_digits_in_float32(apart, keep):
    """Two variables all but the same: the covariance has condition numbers up to 1e8."""
    factor = np.float32([[1, 0, 0], [-1, apart, 0], [0.1, 0.1, 0.5]]).astype(float)
    loc, gone = np.float32([0.3, 0.4, 0.2]).astype(float), ~np.array(keep, bool)
    q, r = np.linalg.qr(factor[gone].T)
    solved = np.linalg.solve(r.T, loc[gone])
    exact = gone.sum() * np.log(10) - np.log(np.abs(np.diag(r))).sum() - 0.5 * solved @ solved
    mean = np.where(gone, 0.0, loc - factor @ q @ solved)
    rest = np.where(gone[:, None], 0.0, factor - factor @ q @ q.T)

    prior = Normal(np.zeros(3, np.float32), np.full(3, 10, np.float32))
    delta_f, reduced = remove(as_float32(MultivariateNormal(loc, factor)), prior, ~gone)
    np.testing.assert_allclose(delta_f, exact, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(reduced.loc, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(covariance(reduced), rest @ rest.T, rtol=1e-4, atol=1e-6)


def test_reductions_follow_one_another():
    problem = Regression()
    first = np.array([True, False, True, True])
    both = np.array([True, False, False, True])
    once = remove(problem.exact(), problem.prior, first)
    twice = remove(once.reduced, problem.prior, both)
    direct = remove(problem.exact(), problem.prior, both)
    np.testing.assert_allclose(once.delta_f + twice.delta_f, direct.delta_f, rtol=1e-4)
    np.testing.assert_allclose(twice.reduced.loc, direct.reduced.loc, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        covariance(twice.reduced), covariance(direct.reduced), rtol=1e-3, atol=1e-6
    )
    assert each(once.reduced, problem.prior)[1] == 0
    assert not prune(once.reduced, problem.prior).keep[1]


def test_masks_may_have_a_batch_and_variables_be_none():
    problem = Regression()
    masks = np.array([[True, False, True, True], [False, True, True, False]])
    found = remove(problem.exact(), problem.prior, masks)
    for i, mask in enumerate(masks):
        alone = remove(problem.exact(), problem.prior, mask)
        np.testing.assert_allclose(found.delta_f[i], alone.delta_f, rtol=1e-5)
        np.testing.assert_allclose(found.reduced.scale_tril[i], alone.reduced.scale_tril, atol=1e-6)
    none = MultivariateNormal(np.zeros(0, np.float32), np.zeros((0, 0), np.float32))
    empty = Normal(np.zeros(0, np.float32), np.zeros(0, np.float32))
    assert remove(none, empty, np.zeros(0, bool)).delta_f == 0
    assert prune(none, empty).delta_f == 0

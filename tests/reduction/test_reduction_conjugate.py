import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from bmrjax import reduction
from bmrjax.reduction import Beta, Categorical, Dirichlet, Gamma

pytestmark = pytest.mark.usefixtures("strict_promotion")

beta, gamma, dirichlet, categorical = map(
    jax.jit, (reduction.beta, reduction.gamma, reduction.dirichlet, reduction.categorical)
)


def cases(seed: int, num: int = 20) -> dict:
    """Posterior, prior and reduced prior of each family, from random counts."""
    rng = np.random.default_rng(seed)

    def positive(*shape):
        return np.exp(rng.normal(0, 1, (num, *shape)))

    def pairs(family):
        prior, counts = (positive(), positive()), (10 * positive(), 10 * positive())
        posterior = [a + n for a, n in zip(prior, counts, strict=True)]
        return family(*posterior), family(*prior), family(positive(), positive())

    prior, logits = positive(4), rng.normal(size=(3, num, 4))
    return {
        "beta": (beta, pairs(Beta)),
        "gamma": (gamma, pairs(Gamma)),
        "dirichlet": (
            dirichlet,
            (Dirichlet(prior + 10 * positive(4)), Dirichlet(prior), Dirichlet(positive(4))),
        ),
        "categorical": (categorical, tuple(Categorical(x) for x in logits)),
    }


FAMILIES = list(cases(0))


def as_float32(tree):
    return jax.tree.map(np.float32, tree)


def parameters(distribution):
    return [np.asarray(x) for x in jax.tree.leaves(distribution)]


@pytest.mark.parametrize("i", range(5))
@pytest.mark.parametrize("name", ["beta", "gamma"])
def test_agrees_with_quadrature(x64, name, i):
    reduce, (q, p, r) = cases(1)[name]

    def log_density(distribution, z):
        first, second = (x[i] for x in parameters(distribution))
        if name == "beta":
            return stats.beta.logpdf(z, first, second)
        return stats.gamma.logpdf(z, first, scale=1 / second)

    def integrand(x):
        # z = x^4, so that no density has a pole at zero that quadrature would miss.
        z, jacobian = x**4, 4 * x**3
        ratio = log_density(q, z) + log_density(r, z) - log_density(p, z)
        return np.exp(ratio) * jacobian

    expected = sum(
        integrate.quad(integrand, *ends, epsabs=0, epsrel=1e-11, limit=400)[0]
        for ends in ([(0, 0.8), (0.8, 1)] if name == "beta" else [(0, 1), (1, 4)])
    )
    np.testing.assert_allclose(reduce(q, p, r).delta_f[i], np.log(expected), rtol=1e-9, atol=1e-9)


class TestExactEvidence:
    """Observed counts: the evidence of each prior is a compound distribution in scipy."""

    def test_beta_of_binomial_counts(self, x64):
        _, (_, p, r) = cases(2)["beta"]
        heads, tosses = np.arange(20), 20
        q = Beta(p.alpha + heads, p.beta + tosses - heads)
        delta_f, reduced = beta(q, p, r)
        expected = stats.betabinom.logpmf(heads, tosses, r.alpha, r.beta)
        expected -= stats.betabinom.logpmf(heads, tosses, p.alpha, p.beta)
        np.testing.assert_allclose(delta_f, expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(reduced.alpha, r.alpha + heads, rtol=1e-10)
        np.testing.assert_allclose(reduced.beta, r.beta + tosses - heads, rtol=1e-10)

    def test_gamma_of_a_poisson_count(self, x64):
        _, (_, p, r) = cases(3)["gamma"]
        count = np.arange(20)
        q = Gamma(p.concentration + count, p.rate + 1.0)

        def log_evidence(prior):
            return stats.nbinom.logpmf(count, prior.concentration, prior.rate / (prior.rate + 1))

        delta_f, reduced = gamma(q, p, r)
        np.testing.assert_allclose(delta_f, log_evidence(r) - log_evidence(p), atol=1e-10)
        np.testing.assert_allclose(reduced.concentration, r.concentration + count, rtol=1e-10)
        np.testing.assert_allclose(reduced.rate, r.rate + 1, rtol=1e-10)

    def test_dirichlet_of_multinomial_counts(self, x64):
        _, (_, p, r) = cases(4)["dirichlet"]
        counts = np.random.default_rng(5).multinomial(30, [0.5, 0.3, 0.2, 0.0], size=20)
        delta_f, reduced = dirichlet(Dirichlet(p.concentration + counts), p, r)
        before, after = (
            stats.dirichlet_multinomial.logpmf(counts, x.concentration, 30) for x in (p, r)
        )
        np.testing.assert_allclose(delta_f, after - before, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(reduced.concentration, r.concentration + counts, rtol=1e-10)

    def test_categorical_of_a_likelihood(self, x64):
        _, (likelihood, p, r) = cases(6)["categorical"]
        prior, after = special.softmax(p.logits, -1), special.softmax(r.logits, -1)
        evidence = np.exp(likelihood.logits)
        # The posterior's logits have a constant of their own, as any network's would.
        q = Categorical(np.log(prior * evidence) + 3.0)
        delta_f, reduced = categorical(q, p, r)
        expected = np.log(np.sum(after * evidence, -1)) - np.log(np.sum(prior * evidence, -1))
        np.testing.assert_allclose(delta_f, expected, rtol=1e-10, atol=1e-10)
        joint = after * evidence
        np.testing.assert_allclose(
            special.softmax(reduced.logits, -1), joint / joint.sum(-1, keepdims=True), rtol=1e-10
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_unchanged_prior_changes_nothing_in_float32(name):
    reduce, (q, p, _) = cases(7)[name]
    q, p = as_float32(q), as_float32(p)
    delta_f, reduced = reduce(q, p, p)
    np.testing.assert_array_equal(delta_f, 0.0)
    for after, before in zip(parameters(reduced), parameters(q), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("name", FAMILIES)
def test_reducing_twice_is_reducing_once(x64, name):
    reduce, (q, p, first) = cases(8)[name]
    second = cases(9)[name][1][2]
    step = reduce(q, p, first)
    steps, whole = reduce(step.reduced, first, second), reduce(q, p, second)
    np.testing.assert_allclose(step.delta_f + steps.delta_f, whole.delta_f, rtol=1e-10, atol=1e-10)
    for actual, expected in zip(parameters(steps.reduced), parameters(whole.reduced), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


def test_units_of_a_gamma_do_not_matter(x64):
    _, trees = cases(10)["gamma"]
    converted = [Gamma(x.concentration, 60.0 * x.rate) for x in trees]
    here, there = gamma(*trees), gamma(*converted)
    np.testing.assert_allclose(there.delta_f, here.delta_f, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(there.reduced.rate, 60.0 * here.reduced.rate, rtol=1e-10)


def test_a_beta_is_a_dirichlet_of_two(x64):
    _, trees = cases(11)["beta"]
    pair = dirichlet(*(Dirichlet(np.stack([x.alpha, x.beta], -1)) for x in trees))
    np.testing.assert_allclose(beta(*trees).delta_f, pair.delta_f, rtol=1e-10)


def test_one_number_for_all_categories_counts_for_each():
    posterior = reduction.Dirichlet(jnp.array([31.0, 28.0, 1.0]))
    one, all_of_it = (
        reduction.dirichlet(
            posterior, reduction.Dirichlet(jnp.ones(n)), reduction.Dirichlet(jnp.full(n, 0.1))
        )
        for n in (1, 3)
    )
    # ln of B(a') B(α) / B(a) B(α̃).
    counts, log_beta = (
        np.array([30.0, 27, 0]),
        lambda a: special.gammaln(a).sum() - special.gammaln(a.sum()),
    )
    expected = log_beta(counts + 0.1) + log_beta(np.ones(3))
    expected -= log_beta(counts + 1) + log_beta(np.full(3, 0.1))
    assert one.delta_f == pytest.approx(expected, rel=1e-5)
    assert one.delta_f == all_of_it.delta_f
    posterior = reduction.Categorical(jnp.log(jnp.array([0.7, 0.2, 0.1])))
    without_last = reduction.Categorical(jnp.array([0.0, 0.0, -jnp.inf]))
    flat = [reduction.Categorical(jnp.zeros(n)) for n in (1, 3)]
    one, all_of_it = (reduction.categorical(posterior, p, without_last).delta_f for p in flat)
    assert one == all_of_it == pytest.approx(np.log(0.9 * 3 / 2))


def test_merging_categories_is_a_smaller_dirichlet(x64):
    # A reduced prior that keeps the proportions of two categories cannot see them apart.
    _, (q, p, r) = cases(12)["dirichlet"]
    r = Dirichlet(np.concatenate([r.concentration[:, :2], p.concentration[:, 2:]], -1))

    def merged(x):
        a = x.concentration
        return Dirichlet(np.concatenate([a[:, :2], a[:, 2:].sum(-1, keepdims=True)], -1))

    delta_f, fewer = dirichlet(q, p, r).delta_f, dirichlet(merged(q), merged(p), merged(r)).delta_f
    np.testing.assert_allclose(delta_f, fewer, rtol=1e-10, atol=1e-10)


def test_positive_favours_the_reduced_prior():
    fair = Beta(jnp.full(2, 50.0), jnp.full(2, 50.0))
    q = Beta(jnp.array([50.0, 90.0]), jnp.array([52.0, 12.0]))
    delta_f = beta(q, Beta(jnp.ones(2), jnp.ones(2)), fair).delta_f
    assert delta_f[0] > 0 > delta_f[1]


@pytest.mark.parametrize("name", ["beta", "gamma", "dirichlet"])
def test_diverging_expectation_is_infinite(name):
    reduce, trees = cases(13)[name]
    q, p, r = as_float32(trees)
    # The prior has more counts than the posterior: the parameters would be negative.
    p = jax.tree.map(lambda x: x + np.float32(1e3), p)
    delta_f, reduced = reduce(q, p, r)
    np.testing.assert_array_equal(delta_f, np.inf)
    assert all(np.isnan(x).all() for x in parameters(reduced))


class TestImpossibleCategories:
    def reduce(self, q, p, r):
        return categorical(*(Categorical(jnp.log(jnp.array(x))) for x in (q, p, r)))

    def test_a_category_is_removed(self):
        delta_f, reduced = self.reduce([0.7, 0.2, 0.1], [0.2, 0.4, 0.4], [1 / 3, 2 / 3, 0.0])
        np.testing.assert_allclose(delta_f, np.log(0.9 / 0.6), rtol=1e-5)
        np.testing.assert_allclose(np.exp(reduced.logits), [7 / 9, 2 / 9, 0], rtol=1e-5)

    def test_what_both_exclude_stays_excluded(self):
        delta_f, reduced = self.reduce([0.7, 0.3, 0.0], [0.5, 0.5, 0.0], [0.2, 0.4, 0.4])
        np.testing.assert_allclose(delta_f, np.log(0.7 * 0.4 + 0.3 * 0.8), rtol=1e-5)
        assert reduced.logits[2] == -np.inf

    def test_nothing_left_is_minus_infinity(self):
        delta_f, reduced = self.reduce([1.0, 0.0], [0.5, 0.5], [0.0, 1.0])
        assert delta_f == -np.inf
        assert np.isnan(reduced.logits).all()

    @pytest.mark.parametrize("after", [[0.5, 0.5], [1.0, 0.0]])
    def test_a_posterior_outside_its_prior_is_infinite(self, after):
        delta_f, reduced = self.reduce([0.5, 0.5], [1.0, 0.0], after)
        assert delta_f == np.inf
        assert np.isnan(reduced.logits).all()


scales = st.floats(-18, 3).map(lambda x: 10.0**x)


@given(
    prior=st.lists(scales, min_size=2, max_size=2),
    after=st.lists(scales, min_size=2, max_size=2),
    counts=st.lists(st.one_of(st.just(0.0), st.floats(0.0, 1e6)), min_size=2, max_size=2),
)
def test_extreme_float32_agrees_with_float64(prior, after, counts):
    p, r = np.float32(prior), np.float32(after)
    q = np.float32(p + np.float32(counts))

    # In float64 from the float32 values; counts as the difference that float32 can express.
    wide = [np.float64(x) for x in (q, p, r)]
    new = wide[2] + (wide[0] - wide[1])

    def log_beta(x):
        return special.gammaln(x).sum() - special.gammaln(x.sum())

    terms = [log_beta(new), -log_beta(wide[0]), log_beta(wide[1]), -log_beta(wide[2])]
    delta_f = beta(Beta(*q), Beta(*p), Beta(*r)).delta_f
    assert delta_f.dtype == jnp.float32
    # Half a dozen increments, each no larger than this, with a few roundings of 6e-8.
    size = 1e3 + np.max(np.abs(r - p)) * np.log(1e6)
    np.testing.assert_allclose(delta_f, sum(terms), rtol=1e-5, atol=2e-6 * size)

    delta_f, reduced = gamma(Gamma(*q), Gamma(*p), Gamma(*r))
    assert np.isfinite(delta_f)
    assert np.isfinite(parameters(reduced)).all()


@pytest.mark.parametrize("total", [1e2, 1e4, 1e6])
def test_large_counts_keep_their_precision_in_float32(total):
    # The difference of gammaln alone would be wrong by a whole nat at 1e6.
    shares = np.array([0.5, 0.3, 0.2])
    p, r = np.ones(3), np.array([3.0, 2.0, 0.5])
    q = p + np.round(total * shares)
    delta_f = dirichlet(*(Dirichlet(np.float32(x)) for x in (q, p, r))).delta_f
    low = gamma(
        Gamma(np.float32(q[0]), np.float32(total)),
        Gamma(np.float32(2), np.float32(1)),
        Gamma(np.float32(4), np.float32(2)),
    ).delta_f

    def log_beta(x):
        return special.gammaln(x).sum() - special.gammaln(x.sum())

    expected = log_beta(q + r - p) - log_beta(q) + log_beta(p) - log_beta(r)
    np.testing.assert_allclose(delta_f, expected, rtol=1e-5, atol=1e-5)
    a, b = q[0], total
    expected = special.gammaln(a + 2) - special.gammaln(a) - special.gammaln(4)
    expected += special.gammaln(2) + a * np.log(b) - (a + 2) * np.log(b + 1) + 4 * np.log(2)
    np.testing.assert_allclose(low, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_finite_differences(x64, name):
    reduce, (q, p, r) = cases(14, num=3)[name]

    @jax.jit
    def along(t, arguments, direction):
        moved = jax.tree.map(lambda x, d: x * jnp.exp(t * d), arguments, direction)
        delta_f, reduced = reduce(*moved)
        return jnp.sum(delta_f) + sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(reduced))

    gradient = jax.jit(jax.grad(along))
    for arguments in ((q, p, r), (q, p, p)):
        rng = np.random.default_rng(15)
        direction = jax.tree.map(lambda x, rng=rng: rng.normal(size=x.shape), arguments)
        slope = (along(1e-6, arguments, direction) - along(-1e-6, arguments, direction)) / 2e-6
        actual = gradient(0.0, arguments, direction)
        # Central differences with steps of 1e-6 are good to about 1e-7 of curvatures of 1e3.
        np.testing.assert_allclose(actual, slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_batches_and_vmap_are_loops(name):
    reduce, trees = cases(16, num=4)[name]
    trees = as_float32(trees)
    together, mapped = reduce(*trees), jax.vmap(reduce)(*trees)
    for i in range(4):
        single = reduce(*jax.tree.map(lambda x, i=i: x[i], trees))
        assert single.delta_f.shape == ()
        np.testing.assert_allclose(together.delta_f[i], single.delta_f, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(mapped.delta_f[i], single.delta_f, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_float64_is_kept(x64, name):
    reduce, trees = cases(17, num=2)[name]
    delta_f, reduced = reduce(*trees)
    assert delta_f.dtype == jnp.float64
    assert {x.dtype for x in jax.tree.leaves(reduced)} == {np.dtype("float64")}

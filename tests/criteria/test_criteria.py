import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import digamma, expit

from bmrjax import criteria
from bmrjax.criteria import SitePosteriors
from bmrjax.reduction import Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")

CRITERIA = {
    "spike-and-slab": criteria.SpikeAndSlab(),
    "horseshoe": criteria.RegularizedHorseshoe(0.1),
    "shrinkage": criteria.Shrinkage(),
    "snr": criteria.SignalToNoise(threshold=1.0),
}
SHAPES = {"a.weight": (6, 5), "a.bias": (6,), "b": ()}
LAYERS = {"a.weight": "a", "a.bias": "a", "b": "b"}


def make(seed, dtype=jnp.float32):
    key = jax.random.key(seed)
    q, p = {}, {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        k = jax.random.split(jax.random.fold_in(key, i), 2)
        loc = 2 * jax.random.normal(k[0], shape, dtype)
        loc = jnp.where(jax.random.uniform(k[1], shape) < 0.5, loc, 0)
        q[name] = Normal(loc, jnp.full(shape, 0.3, dtype))
        p[name] = Normal(jnp.zeros(shape, dtype), jnp.full(shape, 1.7, dtype))
    return q, p


@pytest.fixture(params=CRITERIA.values(), ids=CRITERIA)
def criterion(request):
    return request.param


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


class TestContract:
    def test_keeps_the_structure(self, criterion):
        q, p = make(0)
        decision = criterion(SitePosteriors(q, p, LAYERS))
        for values, dtype in ((decision.keep, jnp.bool_), (decision.delta_f, jnp.float32)):
            assert {n: v.shape for n, v in values.items()} == SHAPES
            assert all(v.dtype == dtype for v in values.values())
        for values in decision.statistics.values():
            assert list(values) == list(q)
        like, got = criterion.init(q), decision.memory
        assert jax.tree.structure(like) == jax.tree.structure(got)

    @pytest.mark.first_cases(2)
    def test_jit_equals_eager_and_vmap_equals_loop(self, criterion):
        def run(q, p):
            return criterion(SitePosteriors(q, p, LAYERS))

        both = [make(seed) for seed in range(3)]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *both)
        rows = [run(*one) for one in both]
        assert_close(jax.jit(run)(*both[0]), rows[0])
        assert_close(jax.vmap(run)(*stacked), jax.tree.map(lambda *x: jnp.stack(x), *rows))

    def test_traces_once(self, criterion):
        count = 0

        @jax.jit
        def run(found, keep, memory):
            nonlocal count
            count += 1
            return criterion(found, keep, memory)

        q, p = make(0)
        keep, memory = (
            {name: jnp.ones(shape, bool) for name, shape in SHAPES.items()},
            criterion.init(q),
        )
        for seed in range(4):
            decision = run(SitePosteriors(*make(seed), LAYERS), keep, memory)
            keep, memory = decision.keep, decision.memory
        assert count == 1

    @pytest.mark.first_cases(2)
    def test_keeps_float64(self, criterion, x64):
        q, p = make(0, jnp.float64)
        decision = criterion(SitePosteriors(q, p, LAYERS))
        assert all(v.dtype == jnp.float64 for v in decision.delta_f.values())

    def test_gradients_are_finite_differences(self, criterion, x64):
        q, p = make(0, jnp.float64)

        def total(q):
            decision = criterion(SitePosteriors(q, p, LAYERS))
            return sum(jnp.sum(values) for values in decision.delta_f.values())

        def moved(step):
            return jax.tree.map(lambda x, d: x + step * d, q, direction)

        direction, _ = make(1, jnp.float64)
        total = jax.jit(total)
        terms = jax.tree.map(lambda g, d: jnp.sum(g * d), jax.grad(total)(q), direction)
        slope = (total(moved(1e-6)) - total(moved(-1e-6))) / 2e-6
        # Central differences with steps of 1e-6 are good to about 1e-7.
        np.testing.assert_allclose(sum(jax.tree.leaves(terms)), slope, rtol=1e-6)

    def test_float32_gradients_are_finite_at_extremes(self, criterion):
        _, p = make(0)
        extremes = {n: Normal(jnp.full(s, 10.0), jnp.full(s, 1e-8)) for n, s in SHAPES.items()}

        def total(q):
            decision = criterion(SitePosteriors(q, p, LAYERS))
            return sum(jnp.sum(values) for values in decision.delta_f.values())

        for gradient in jax.tree.leaves(jax.jit(jax.grad(total))(extremes)):
            assert np.isfinite(gradient).all()

    def test_a_prior_of_one_scale_is_that_prior_everywhere(self, criterion):
        q, p = make(0)
        one = {
            n: Normal(jnp.zeros((1,) * len(s)), jnp.full((1,) * len(s), 1.7))
            for n, s in SHAPES.items()
        }
        found = criterion(SitePosteriors(q, one, LAYERS))
        assert_close(found, criterion(SitePosteriors(q, p, LAYERS)))

    def test_each_site_is_its_own_layer_by_default(self, criterion):
        q, p = make(0)
        own = criterion(SitePosteriors(q, p, {name: name for name in SHAPES}))
        assert_close(criterion(SitePosteriors(q, p)), own)

    def test_bad_arguments_are_named(self, criterion):
        q, p = make(0)
        with pytest.raises(TypeError, match=r"takes criteria.SitePosteriors\(.*got dict"):
            criterion(q, p)
        with pytest.raises(ValueError, match=r"no mask for the sites \['a.bias', 'a.weight'\]"):
            criterion(SitePosteriors(q, p, LAYERS), {"b": jnp.array(True)})  # noqa: FBT003

    def test_layers_do_not_meet(self, criterion):
        """What happens in one layer leaves another as it is, bit for bit."""
        q, p = make(0)
        other = q | {"b": Normal(jnp.array(40.0), jnp.array(0.01))}
        first = criterion(SitePosteriors(q, p, LAYERS))
        second = criterion(SitePosteriors(other, p, LAYERS))
        for name in ("a.weight", "a.bias"):
            np.testing.assert_array_equal(first.keep[name], second.keep[name])
            np.testing.assert_array_equal(first.delta_f[name], second.delta_f[name])
        assert first.delta_f["b"] != second.delta_f["b"]

    def test_dropped_stays_dropped(self, criterion):
        q, p = make(0)
        gone = {name: jnp.zeros(shape, bool) for name, shape in SHAPES.items()}
        strong = {n: Normal(jnp.full(s, 50.0), jnp.full(s, 0.1)) for n, s in SHAPES.items()}
        decision = criterion(SitePosteriors(strong, p, LAYERS), gone)
        assert not any(bool(mask.any()) for mask in decision.keep.values())

    def test_keeps_the_strong_and_drops_the_null(self, criterion):
        _, p = make(0)
        null = {n: Normal(jnp.zeros(s), jnp.full(s, 0.05)) for n, s in SHAPES.items()}
        strong = {n: Normal(jnp.full(s, 50.0), jnp.full(s, 0.05)) for n, s in SHAPES.items()}
        for q, expected in ((null, False), (strong, True)):
            decision = criterion(SitePosteriors(q, p, LAYERS))
            assert all(bool((mask == expected).all()) for mask in decision.keep.values())


PARTS = {"top": slice(0, 1), "rest": slice(1, None)}


def reference(q, p, alpha_0, beta_0, steps):
    """Algorithm 1 for one layer, in numpy, from the densities."""
    loc, scale = (np.concatenate([np.ravel(getattr(v, k)) for v in q]) for k in ("loc", "scale"))
    prior = np.concatenate([np.ravel(v.scale) for v in p])
    delta_f = np.log(prior / scale) - 0.5 * (loc / scale) ** 2
    alpha, beta = alpha_0, beta_0
    for _ in range(steps):
        included = expit(digamma(alpha) - digamma(beta) - delta_f)
        alpha, beta = included.sum() + alpha_0, (1 - included).sum() + beta_0
    return included, alpha, beta


@pytest.mark.parametrize(("alpha", "beta", "steps"), [(1.0, 1.0, 4), (0.5, 7.0, 1), (3.0, 2.0, 9)])
def test_spike_and_slab_is_algorithm_1(x64, alpha, beta, steps):
    q, p = make(3, jnp.float64)
    criterion = criteria.SpikeAndSlab(alpha, beta, num_steps=steps)
    state = criterion(SitePosteriors(q, p, LAYERS)).statistics
    names = ["a.weight", "a.bias"]
    included, a, b = reference([q[n] for n in names], [p[n] for n in names], alpha, beta, steps)
    got = np.concatenate([np.ravel(state["inclusion_prob"][n]) for n in names])
    np.testing.assert_allclose(got, included, rtol=1e-10)
    np.testing.assert_allclose(
        [state["alpha"]["a.bias"], state["beta"]["a.weight"]], [a, b], rtol=1e-10
    )


def test_spike_and_slab_pools_the_sites_of_a_layer(x64):
    """Cutting a site in two changes nothing, as long as both halves are one layer."""
    q, p = make(3, jnp.float64)
    q, p = q["a.weight"], p["a.weight"]
    halves = ({n: Normal(x.loc[s], x.scale[s]) for n, s in PARTS.items()} for x in (q, p))
    criterion = criteria.SpikeAndSlab()
    whole = criterion(SitePosteriors({"w": q}, {"w": p})).statistics
    q, p = halves
    pooled = criterion(SitePosteriors(q, p, {"top": "l", "rest": "l"})).statistics
    apart = criterion(SitePosteriors(q, p)).statistics
    for name, rows in PARTS.items():
        np.testing.assert_allclose(pooled["alpha"][name], whole["alpha"]["w"], rtol=1e-10)
        np.testing.assert_allclose(
            pooled["inclusion_prob"][name], whole["inclusion_prob"]["w"][rows], rtol=1e-10
        )
        assert abs(apart["alpha"][name] - whole["alpha"]["w"]) > 0.5


def test_spike_and_slab_counts_what_was_removed_as_excluded(x64):
    q, p = make(3, jnp.float64)
    q, p = {"w": q["a.weight"]}, {"w": p["a.weight"]}
    keep = jnp.arange(30).reshape(6, 5) % 3 != 0
    criterion = criteria.SpikeAndSlab(2.0, 0.5)
    state = criterion(SitePosteriors(q, p), {"w": keep}).statistics
    delta_f = np.log(1.7 / 0.3) - 0.5 * (np.asarray(q["w"].loc) / 0.3) ** 2
    alpha, beta = 2.0, 0.5
    for _ in range(4):
        included = np.where(keep, expit(digamma(alpha) - digamma(beta) - delta_f), 0.0)
        alpha, beta = 2.0 + included.sum(), 0.5 + 30 - included.sum()
    np.testing.assert_allclose(state["inclusion_prob"]["w"], included, rtol=1e-10)
    np.testing.assert_allclose((state["alpha"]["w"], state["beta"]["w"]), (alpha, beta), rtol=1e-10)


def test_spike_and_slab_may_count_what_was_removed_as_at_its_prior(x64):
    """As if nothing had been removed, and the removed had the posterior of the prior."""
    q, p = make(3, jnp.float64)
    q, p = {"w": q["a.weight"]}, {"w": p["a.weight"]}
    keep = jnp.arange(30).reshape(6, 5) % 3 != 0
    drifted = jax.tree.map(lambda x, y: jnp.where(keep, x, y), q, p)
    counted, fresh = criteria.SpikeAndSlab(removed="at prior"), criteria.SpikeAndSlab()
    found = counted(SitePosteriors(q, p), {"w": keep}).statistics
    expected = fresh(SitePosteriors(drifted, p)).statistics
    np.testing.assert_allclose(found["alpha"]["w"], expected["alpha"]["w"], rtol=1e-10)
    np.testing.assert_allclose(found["beta"]["w"], expected["beta"]["w"], rtol=1e-10)
    np.testing.assert_allclose(
        found["inclusion_prob"]["w"],
        jnp.where(keep, expected["inclusion_prob"]["w"], 0.0),
        rtol=1e-10,
    )


def test_spike_and_slab_fixed_point_is_stationary(x64):
    """The gradient of the free energy of equation 9 vanishes at the fixed point."""
    from jax.scipy.special import gammaln

    def betaln(a, b):  # JAX's own has an error of 1e-7 for large arguments
        return gammaln(a) + gammaln(b) - gammaln(a + b)

    q, p = make(1, jnp.float64)
    q, p = {"b": q["a.weight"]}, {"b": p["a.weight"]}
    criterion = criteria.SpikeAndSlab(1.3, 0.8, num_steps=500)
    decision = criterion(SitePosteriors(q, p))
    delta_f = decision.delta_f["b"]

    def free_energy(logit, log_alpha, log_beta):
        alpha, beta = jnp.exp(log_alpha), jnp.exp(log_beta)
        included = jax.nn.sigmoid(logit)
        digamma_sum = jax.scipy.special.digamma(alpha + beta)
        log_pi = jax.scipy.special.digamma(alpha) - digamma_sum
        log_not = jax.scipy.special.digamma(beta) - digamma_sum
        entropy = jax.scipy.special.entr(included) + jax.scipy.special.entr(1 - included)
        indicators = jnp.sum(
            -(1 - included) * delta_f - included * log_pi - (1 - included) * log_not - entropy
        )
        kl = betaln(1.3, 0.8) - betaln(alpha, beta)
        return indicators + kl + (alpha - 1.3) * log_pi + (beta - 0.8) * log_not

    logit = jax.scipy.special.logit(
        jnp.clip(decision.statistics["inclusion_prob"]["b"], 1e-12, 1 - 1e-12)
    )
    point = (
        logit,
        jnp.log(decision.statistics["alpha"]["b"]),
        jnp.log(decision.statistics["beta"]["b"]),
    )
    for gradient in jax.grad(free_energy, argnums=(0, 1, 2))(*point):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_spike_and_slab_vmaps_over_a_grid():
    q, p = make(2)
    alphas, betas = jnp.array([0.5, 1.0, 4.0]), jnp.array([1.0, 2.0, 9.0])

    def kept(alpha, beta):
        criterion = criteria.SpikeAndSlab(alpha, beta)
        return criterion(SitePosteriors(q, p)).statistics["inclusion_prob"]["a.weight"]

    grid = jax.jit(jax.vmap(kept))(alphas, betas)
    for i in range(3):
        alone = kept(float(alphas[i]), float(betas[i]))
        np.testing.assert_allclose(grid[i], alone, rtol=1e-5, atol=1e-6)


def test_spike_and_slab_survives_extremes():
    q = {"b": Normal(jnp.array([1e6, 0.0, 1e-8, 3.0]), jnp.array([1e-12, 1e-15, 1e2, 1e-3]))}
    p = {"b": Normal(jnp.zeros(4), jnp.ones(4))}
    criterion = criteria.SpikeAndSlab()
    decision = criterion(SitePosteriors(q, p))
    assert np.isfinite(decision.statistics["inclusion_prob"]["b"]).all()
    assert decision.keep["b"].tolist() == [True, False, True, True]


def test_spike_and_slab_survives_a_million_nulls_in_float32():
    """Counts of 1e6 beside probabilities of 1e-6: the fixed point must not saturate."""
    q = {"w": Normal(jnp.zeros(1_000_000).at[0].set(9.0), jnp.full(1_000_000, 0.05))}
    p = {"w": Normal(jnp.zeros(1), jnp.ones(1))}
    criterion = criteria.SpikeAndSlab(num_steps=20)
    decision = jax.jit(criterion)(SitePosteriors(q, p))
    assert decision.keep["w"].sum() == 1
    assert decision.keep["w"][0]
    included, alpha, _ = reference([jax.device_get(q["w"])], [jax.device_get(p["w"])], 1.0, 1.0, 20)
    # The sum of a million float32 probabilities of 1e-7 and one of 1.
    np.testing.assert_allclose(decision.statistics["alpha"]["w"], alpha, rtol=1e-5)
    np.testing.assert_allclose(
        decision.statistics["inclusion_prob"]["w"], included, rtol=1e-3, atol=1e-9
    )


def test_spike_and_slab_regrows_only_if_asked():
    q = {"b": Normal(jnp.array([9.0]), jnp.array([0.1]))}
    p = {"b": Normal(jnp.zeros(1), jnp.ones(1))}
    for regrow in (False, True):
        criterion = criteria.SpikeAndSlab(regrow=regrow)
        gone = {"b": jnp.array([False])}
        assert bool(criterion(SitePosteriors(q, p), gone).keep["b"][0]) is regrow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"num_steps": 0}, "num_steps must be at least"),
        ({"removed": "gone"}, "'excluded' or 'at prior', got 'gone'"),
    ],
)
def test_spike_and_slab_refuses_bad_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        criteria.SpikeAndSlab(**arguments)


def test_a_layer_map_must_name_every_site():
    q, p = make(0)
    criterion = criteria.SpikeAndSlab()
    with pytest.raises(ValueError, match=r"names no layer for the sites \['b'\]"):
        criterion(SitePosteriors(q, p, {"a.weight": "a", "a.bias": "a"}))


# --- the prior over masks -------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 3.0)])
def test_masks_have_the_probability_that_the_inclusion_rate_integrates_to(alpha, beta):
    keep = {
        "a.weight": jnp.arange(30).reshape(6, 5) < 7,
        "a.bias": jnp.zeros(6, bool),
        "b": jnp.ones((), bool),
    }
    expected = 0.0
    for included, size in ((7, 36), (1, 1)):

        def density(rate, included=included, size=size):
            prior = stats.beta(alpha, beta).pdf(rate)
            return prior * rate**included * (1 - rate) ** (size - included)

        expected += np.log(integrate.quad(density, 0, 1)[0])
    criterion = criteria.SpikeAndSlab(alpha, beta)
    assert criterion.mask_log_prob(keep, layers=LAYERS) == pytest.approx(expected, rel=1e-6)
    # Apart, the tensors of a layer have a rate each.
    assert criterion.mask_log_prob(keep) != pytest.approx(expected, rel=1e-2)
    with pytest.raises(ValueError, match="names no layer"):
        criterion.mask_log_prob(keep, layers={"b": "b"})


def test_a_criterion_without_a_prior_over_masks_charges_nothing():
    keep = {"w": jnp.array([True, False])}
    assert criteria.RegularizedHorseshoe().mask_log_prob(keep) == 0.0


@pytest.mark.parametrize(
    "criterion",
    [criteria.SpikeAndSlab(), criteria.Shrinkage(), criteria.RegularizedHorseshoe(0.1)],
    ids=lambda c: type(c).__name__,
)
def test_not_a_number_never_removes(criterion):
    q = {"b": Normal(jnp.array([jnp.nan, 3.0, 0.01]), jnp.full(3, 0.1))}
    p = {"b": Normal(jnp.zeros(3), jnp.ones(3))}
    decision = jax.jit(criterion)(SitePosteriors(q, p))
    np.testing.assert_array_equal(decision.keep["b"], [True, True, False])


@pytest.mark.parametrize(
    ("make_criterion", "message"),
    [
        (lambda bad: criteria.SpikeAndSlab(alpha=bad), "alpha must be positive, got -1"),
        (lambda bad: criteria.Shrinkage(bad), "variance must be at least 0, got -1"),
        (lambda bad: criteria.RegularizedHorseshoe(bad), "global_scale must be positive, got -1"),
        (lambda bad: criteria.DropoutRate(bad), r"threshold must be in \(0, 1\], got -1"),
    ],
)
@pytest.mark.parametrize("kind", [float, np.float32, jnp.array], ids=["float", "numpy", "jax"])
def test_bad_numbers_of_any_kind_are_refused(make_criterion, message, kind):
    with pytest.raises(ValueError, match=message):
        make_criterion(kind(-1.0))

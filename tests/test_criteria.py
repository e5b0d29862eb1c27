import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma, expit

from bmrjax import criteria
from bmrjax.reduction import Normal

CRITERIA = {"spike-and-slab": criteria.SpikeAndSlab()}
SHAPES = {"a.weight": (6, 5), "a.bias": (6,), "b": ()}
LAYERS = {"a.weight": "a", "a.bias": "a", "b": "b"}


def make(seed, dtype=jnp.float32):
    key = jax.random.key(seed)
    q, p = {}, {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        k = jax.random.split(jax.random.fold_in(key, i), 2)
        loc = 2 * jax.random.normal(k[0], shape, dtype) * (jax.random.uniform(k[1], shape) < 0.5)
        q[name] = Normal(loc.astype(dtype), jnp.full(shape, 0.3, dtype))
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
        decision = criterion(q, p, criterion.init(q), layers=LAYERS)
        for values, dtype in ((decision.keep, jnp.bool_), (decision.delta_f, jnp.float32)):
            assert {n: v.shape for n, v in values.items()} == SHAPES
            assert all(v.dtype == dtype for v in values.values())
        like, got = criterion.init(q), decision.state
        assert jax.tree.structure(like) == jax.tree.structure(got)

    def test_jit_equals_eager_and_vmap_equals_loop(self, criterion):
        def run(q, p):
            return criterion(q, p, criterion.init(q), layers=LAYERS)

        both = [make(seed) for seed in range(3)]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *both)
        rows = [run(*one) for one in both]
        assert_close(jax.jit(run)(*both[0]), rows[0])
        assert_close(jax.vmap(run)(*stacked), jax.tree.map(lambda *x: jnp.stack(x), *rows))

    def test_traces_once(self, criterion):
        count = 0

        @jax.jit
        def run(q, p, state):
            nonlocal count
            count += 1
            return criterion(q, p, state, layers=LAYERS)

        q, p = make(0)
        state = criterion.init(q)
        for seed in range(4):
            q, p = make(seed)
            state = run(q, p, state).state
        assert count == 1

    def test_keeps_float64(self, criterion, x64):
        q, p = make(0, jnp.float64)
        decision = criterion(q, p, criterion.init(q), layers=LAYERS)
        assert all(v.dtype == jnp.float64 for v in decision.delta_f.values())

    def test_dropped_stays_dropped(self, criterion):
        q, p = make(0)
        state = criterion.init(q)
        gone = {name: jnp.zeros_like(mask) for name, mask in state.keep.items()}
        strong = {n: Normal(jnp.full(s, 50.0), jnp.full(s, 0.1)) for n, s in SHAPES.items()}
        decision = criterion(strong, p, criterion.with_keep(state, gone), layers=LAYERS)
        assert not any(bool(mask.any()) for mask in decision.keep.values())

    def test_keeps_the_strong_and_drops_the_null(self, criterion):
        _, p = make(0)
        null = {n: Normal(jnp.zeros(s), jnp.full(s, 0.05)) for n, s in SHAPES.items()}
        strong = {n: Normal(jnp.full(s, 50.0), jnp.full(s, 0.05)) for n, s in SHAPES.items()}
        for q, expected in ((null, False), (strong, True)):
            decision = criterion(q, p, criterion.init(q), layers=LAYERS)
            assert all(bool((mask == expected).all()) for mask in decision.keep.values())


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
    state = criterion(q, p, criterion.init(q), layers=LAYERS).state
    names = ["a.weight", "a.bias"]
    included, a, b = reference([q[n] for n in names], [p[n] for n in names], alpha, beta, steps)
    got = np.concatenate([np.ravel(state.inclusion_prob[n]) for n in names])
    np.testing.assert_allclose(got, included, rtol=1e-10)
    np.testing.assert_allclose([state.alpha["a.bias"], state.beta["a.weight"]], [a, b], rtol=1e-10)


def test_spike_and_slab_fixed_point_is_stationary(x64):
    """The gradient of the free energy of equation 9 vanishes at the fixed point."""
    from jax.scipy.special import gammaln

    def betaln(a, b):  # JAX's own has an error of 1e-7 for large arguments
        return gammaln(a) + gammaln(b) - gammaln(a + b)

    q, p = make(1, jnp.float64)
    q, p = {"b": q["a.weight"]}, {"b": p["a.weight"]}
    criterion = criteria.SpikeAndSlab(1.3, 0.8, num_steps=500)
    decision = criterion(q, p, criterion.init(q))
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

    logit = jax.scipy.special.logit(jnp.clip(decision.state.inclusion_prob["b"], 1e-12, 1 - 1e-12))
    point = (logit, jnp.log(decision.state.alpha["b"]), jnp.log(decision.state.beta["b"]))
    for gradient in jax.grad(free_energy, argnums=(0, 1, 2))(*point):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_spike_and_slab_vmaps_over_a_grid():
    q, p = make(2)
    alphas, betas = jnp.array([0.5, 1.0, 4.0]), jnp.array([1.0, 2.0, 9.0])

    def kept(alpha, beta):
        criterion = criteria.SpikeAndSlab(alpha, beta)
        return criterion(q, p, criterion.init(q)).state.inclusion_prob["a.weight"]

    grid = jax.jit(jax.vmap(kept))(alphas, betas)
    for i in range(3):
        alone = kept(float(alphas[i]), float(betas[i]))
        np.testing.assert_allclose(grid[i], alone, rtol=1e-5, atol=1e-6)


def test_spike_and_slab_survives_extremes():
    q = {"b": Normal(jnp.array([1e6, 0.0, 1e-8, 3.0]), jnp.array([1e-12, 1e-15, 1e2, 1e-3]))}
    p = {"b": Normal(jnp.zeros(4), jnp.ones(4))}
    criterion = criteria.SpikeAndSlab()
    decision = criterion(q, p, criterion.init(q))
    assert np.isfinite(decision.state.inclusion_prob["b"]).all()
    assert decision.keep["b"].tolist() == [True, False, True, True]


def test_spike_and_slab_regrows_only_if_asked():
    q = {"b": Normal(jnp.array([9.0]), jnp.array([0.1]))}
    p = {"b": Normal(jnp.zeros(1), jnp.ones(1))}
    for regrow in (False, True):
        criterion = criteria.SpikeAndSlab(regrow=regrow)
        state = criterion.with_keep(criterion.init(q), {"b": jnp.array([False])})
        assert bool(criterion(q, p, state).keep["b"][0]) is regrow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"alpha": 0.0}, "alpha must be positive"), ({"num_steps": 0}, "num_steps must be at least")],
)
def test_spike_and_slab_refuses_bad_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        criteria.SpikeAndSlab(**arguments)


def test_a_layer_map_must_name_every_site():
    q, p = make(0)
    criterion = criteria.SpikeAndSlab()
    with pytest.raises(ValueError, match=r"names no layer for the sites \['b'\]"):
        criterion(q, p, criterion.init(q), layers={"a.weight": "a", "a.bias": "a"})

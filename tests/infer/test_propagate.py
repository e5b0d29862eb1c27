"""Means and variances through functions, against quadrature, exact cases and Monte Carlo."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from moments import (
    FUNCTIONS,
    KEY,
    assert_moments,
    draws,
    linear,
    moments,
    of_draws,
    sampled,
    source,
)
from scipy import integrate, stats

from bmrjax.infer.propagate import Context, NoRuleError, Uncertain, is_uncertain, propagate


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_functions_agree_with_quadrature(name):
    function = FUNCTIONS[name]
    mean, scale = np.array([-2.0, -0.3, 0.0, 1.5]), np.array([0.2, 1.0, 0.7, 1.4])
    found = moments(function, Uncertain(jnp.asarray(mean), jnp.asarray(scale**2)))
    for i, (m, s) in enumerate(zip(mean, scale, strict=True)):

        def moment(order, m=m, s=s):
            def integrand(x):
                return float(function(jnp.float32(x))) ** order * stats.norm.pdf(x, m, s)

            grid = np.linspace(m - 9 * s, m + 9 * s, 2001)
            values = np.asarray(function(jnp.asarray(grid, jnp.float32)), float) ** order
            return integrate.simpson(values * stats.norm.pdf(grid, m, s), x=grid)

        first, second = moment(1), moment(2)
        # Where there is a jump, or a pole near the real line, quadrature is only good to a few per cent.
        rough = {"chosen": 0.03, "division": 3e-3}.get(name, 2e-4)
        assert float(found.mean[i]) == pytest.approx(first, abs=rough)
        assert float(found.variance[i]) == pytest.approx(second - first**2, rel=1e-3, abs=2 * rough)


def test_linear_maps_are_exact():
    w, b = source((3, 4)), source((3,), 1)
    x = jax.random.normal(KEY, (5, 4))
    found = moments(lambda w, b: jax.vmap(lambda v: 2.0 * (w @ v) - b / 3.0)(x), w, b)
    np.testing.assert_allclose(found.mean, 2 * x @ w.mean.T - b.mean / 3, rtol=1e-5, atol=1e-5)
    exact = 4 * jnp.square(x) @ w.variance.T + b.variance / 9
    np.testing.assert_allclose(found.variance, exact, rtol=1e-5)


def test_moving_elements_about_moves_their_moments():
    w = source((4, 6))
    index = jnp.array([3, 0])

    def function(w):
        a, b = jnp.split(w.T.reshape(4, 6), 2, axis=1)
        both = jnp.concatenate([a, b[::-1], jnp.ones((1, 3))])
        return jnp.pad(both[index], ((0, 1), (0, 0)))

    found = moments(function, w)
    np.testing.assert_allclose(found.mean, function(w.mean), rtol=1e-6)
    expected = jnp.concatenate([function(w.variance)[:2], jnp.zeros((1, 3))])
    np.testing.assert_allclose(found.variance, expected, rtol=1e-6)


def perceptron(activation):
    def function(weights, x):
        for w, b in weights[:-1]:
            x = activation(x @ w.T + b)
        w, b = weights[-1]
        return x @ w.T + b

    return function


def layers(*sizes):
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    return [
        (source((n, m), 2 * i, 0.3), source((n,), 2 * i + 1, 0.3)) for i, (m, n) in enumerate(pairs)
    ]


def truth(function, weights, x, count=40_000):
    leaves, structure = jax.tree.flatten(weights, is_leaf=lambda v: isinstance(v, Uncertain))
    many = [draws(v, count, seed) for seed, v in enumerate(leaves)]
    return of_draws(lambda *v: function(jax.tree.unflatten(structure, v), x), *many)


@pytest.mark.parametrize("name", ["relu", "tanh", "swish"])
def test_one_hidden_layer_is_exact_under_moments(name):
    function, weights = perceptron(FUNCTIONS[name]), layers(3, 5, 2)
    x = jax.random.normal(KEY, (4, 3))
    found = moments(function, weights, x)
    assert_moments(found, truth(function, weights, x))


@pytest.mark.parametrize("name", ["relu", "gelu, tanh"])
def test_local_sampling_has_the_distribution_of_two_hidden_layers(name):
    function, weights = perceptron(FUNCTIONS[name]), layers(3, 4, 4, 2)
    x = jax.random.normal(KEY, (3, 3))
    found, exact = sampled(function, weights, x), truth(function, weights, x)
    np.testing.assert_allclose(found.mean(0), exact.mean(0), atol=0.06)
    np.testing.assert_allclose(found.std(0), exact.std(0), rtol=0.03)
    for level in (0.05, 0.5, 0.95):
        quantiles = jnp.quantile(found, level, axis=0), jnp.quantile(exact, level, axis=0)
        np.testing.assert_allclose(*quantiles, atol=0.12)
    # Each data point has noise of its own.
    assert abs(np.corrcoef(found[:, 0, 0], found[:, 1, 0])[0, 1]) < 0.03


def test_a_value_that_is_used_twice_is_sampled_once():
    w = source((6,))
    centred = sampled(lambda w: w - jnp.mean(w), w, count=200)
    np.testing.assert_allclose(centred.sum(-1), 0.0, atol=1e-5)
    squares = sampled(lambda w: jnp.tanh(w) * w - w * jnp.tanh(w), w, count=20)
    np.testing.assert_array_equal(squares, 0.0)


def test_a_sum_over_different_weights_adds_their_variances():
    b = source((3,))
    total = sampled(lambda b: jnp.sum(b), b)
    assert total.var() == pytest.approx(float(b.variance.sum()), rel=0.05)


class Convolution(eqx.Module):
    """A convolution, a nonlinearity, pooling, a linear layer."""

    conv: eqx.nn.Conv2d
    pool: eqx.Module
    linear: eqx.nn.Linear

    def __init__(self, pool):
        self.conv = eqx.nn.Conv2d(1, 2, kernel_size=3, key=KEY)
        self.pool = pool
        self.linear = eqx.nn.Linear(8, 2, key=KEY)

    def __call__(self, x):
        return self.linear(self.pool(jax.nn.relu(self.conv(x))).ravel())


@pytest.mark.parametrize("pool", [eqx.nn.AvgPool2d(2, 2), eqx.nn.MaxPool2d(2, 2)])
def test_convolutions_and_pooling(pool):
    network = Convolution(pool)
    arrays, rest = eqx.partition(network, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    weights = [source(v.shape, seed, 0.2) for seed, v in enumerate(leaves)]
    x = jax.random.normal(KEY, (3, 1, 6, 6))

    def function(weights, x):
        built = eqx.combine(jax.tree.unflatten(structure, weights), rest)
        return jax.vmap(built)(x)

    exact = truth(function, weights, x, 10_000)
    found = moments(function, weights, x)
    local = sampled(function, weights, x, count=4000)
    # Positions share a filter, which both leave out of what they know about the pooled ones.
    for mean, spread in ((found.mean, found.variance**0.5), (local.mean(0), local.std(0))):
        np.testing.assert_allclose(mean, exact.mean(0), atol=0.35)
        assert np.all((spread / exact.std(0) > 0.6) & (spread / exact.std(0) < 1.2))


def test_the_larger_of_two_is_exact():
    pair = source((2, 5))
    pool = eqx.nn.MaxPool1d(2, 2)
    found = moments(lambda v: pool(v.T), pair)
    assert_moments(Uncertain(found.mean[:, 0], found.variance[:, 0]), draws(pair, 200_000).max(1))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda u, a, h: (n := jnp.tanh(u)) + jax.nn.sigmoid(a) * (h - n),
        lambda u, a, h: (n := jnp.tanh(u)) * n + u,
        lambda u, a, h: (
            (n := jnp.tanh(u)) * jnp.exp(-jnp.square(n)) + 0.3 * jnp.sin(u) + 0 * (a + h)
        ),
    ],
    ids=["gate", "function and its source", "two functions of one"],
)
def test_what_a_shared_variable_goes_into(function):
    weights = source((3, 5, 4), spread=0.5)
    x = jnp.asarray([0.5, -1.0, 0.3, 0.8])

    def network(w):
        return function(*(w @ x))

    assert_moments(moments(network, weights), of_draws(network, draws(weights, 400_000)), rtol=1e-2)


def test_a_recurrent_network():
    cell = eqx.nn.GRUCell(2, 4, key=KEY)
    leaves, structure = jax.tree.flatten(eqx.filter(cell, eqx.is_array))
    weights = [Uncertain(0.5 * v, jnp.full(v.shape, 0.02), distinct=True) for v in leaves]
    rest = eqx.filter(cell, eqx.is_array, inverse=True)
    xs = jax.random.normal(KEY, (3, 8, 2))

    def function(weights, xs):
        built = eqx.combine(jax.tree.unflatten(structure, weights), rest)

        def one(xs):
            state, path = jax.lax.scan(lambda h, x: (built(x, h),) * 2, jnp.zeros(4), xs)
            return state, path.sum()

        return jax.vmap(one)(xs)

    exact = truth(function, weights, xs, 10_000)
    found = moments(function, weights, xs)
    local = sampled(function, weights, xs, count=4000)
    # With new noise in each step in place of one draw for all, only the variance changes much.
    for mean, spread in (
        (found[0].mean, found[0].variance ** 0.5),
        (local[0].mean(0), local[0].std(0)),
    ):
        np.testing.assert_allclose(mean, exact[0].mean(0), atol=0.03)
        assert np.all((spread / exact[0].std(0) > 0.5) & (spread / exact[0].std(0) < 1.3))
    assert isinstance(found[1], Uncertain)


def test_branches():
    w = source((3,))

    def function(w, which):
        return jax.lax.cond(which > 0, lambda w: 2.0 * w, lambda w: jnp.ones(3), w)

    for which, mean, variance in ((1, 2 * w.mean, 4 * w.variance), (-1, jnp.ones(3), jnp.zeros(3))):
        found = moments(function, w, jnp.asarray(which))
        np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
        np.testing.assert_allclose(found.variance, variance, rtol=1e-6)


def test_an_operation_without_a_rule_is_named():
    w = source((3, 3))
    with pytest.raises(NoRuleError, match="'sort'"):
        moments(lambda w: jnp.sort(w), w)
    with pytest.raises(
        NoRuleError, match=r"'reduce_max' \(a softmax .* Use FitOptions\(estimator='local'"
    ):
        moments(lambda w: jax.nn.softmax(w), w)
    ordered = sampled(lambda w: jnp.sort(w), w, count=50)
    assert np.all(np.diff(ordered) >= 0)


@pytest.mark.parametrize("mode", ["local", "moments"])
def test_gradients_are_finite_at_no_variance(mode):
    def loss(variance):
        w = Uncertain(jnp.zeros((2, 2)), variance, distinct=True)
        found = propagate(perceptron(jax.nn.relu), mode, KEY, [(w, w), (w, w)][:1], jnp.ones(2))
        return jnp.sum(found.mean if isinstance(found, Uncertain) else found)

    assert np.isfinite(jax.jit(jax.grad(loss))(jnp.zeros((2, 2)))).all()


def gated(a, b, c):
    return a + jax.nn.sigmoid(b) * (c - a)


@pytest.mark.parametrize(("function", "count"), [(jnp.tanh, 1), (gated, 3)], ids=["tanh", "gate"])
def test_gradients_of_an_integral_are_those_of_its_sums(x64, function, count):
    """The slopes come from sums of their own; differences of the value know nothing of these."""
    keys = jax.random.split(KEY, 2 * count)
    parts = [jax.random.normal(k, (3, 4)) for k in keys]
    parts[count:] = [jnp.square(p) + 0.1 for p in parts[count:]]

    def value(parts):
        sources = [Uncertain(m, v) for m, v in zip(parts[:count], parts[count:], strict=True)]
        found = propagate(function, "moments", KEY, *sources)
        return jnp.sum(jnp.sin(found.mean)) + jnp.sum(jnp.sqrt(found.variance))

    check_grads(jax.jit(value), (parts,), order=1, modes=("fwd", "rev"))


def test_what_a_function_knows_besides_has_its_gradient(x64):
    mean, variance = jnp.array([0.3, -1.0]), jnp.array([0.4, 0.9])

    def value(slope):
        found = moments(
            lambda x: jnp.tanh(slope * jax.nn.sigmoid(x)) * x, Uncertain(mean, variance)
        )
        return jnp.sum(found.mean**2 + found.variance)

    check_grads(jax.jit(value), (jnp.array([0.7, -0.2]),), order=1, modes=("fwd", "rev"))
    batched = of_draws(jax.grad(value), jnp.array([[0.7, -0.2], [0.1, 2.0]]))
    np.testing.assert_allclose(batched[0], jax.grad(value)(jnp.array([0.7, -0.2])), rtol=1e-9)


def test_a_gate_needs_no_more_than_the_moments_of_what_it_weighs():
    """Exact: n + z (h - n) is affine in each of three independent variables."""
    weights, n, h = source((50, 3), 1), source((50,), 2), source((50,), 3)
    found = moments(lambda w, n, h: n + jax.nn.sigmoid(w.sum(1)) * (h - n), weights, n, h)
    gate = moments(lambda w: jax.nn.sigmoid(w.sum(1)), weights)
    other = 1 - gate.mean
    np.testing.assert_allclose(
        found.mean, other * n.mean + gate.mean * h.mean, rtol=1e-5, atol=1e-6
    )
    exact = n.variance * (other**2 + gate.variance) + h.variance * (gate.mean**2 + gate.variance)
    exact += gate.variance * (h.mean - n.mean) ** 2
    np.testing.assert_allclose(found.variance, exact, rtol=1e-4)


def test_a_product_that_is_bent_afterwards_keeps_its_factors():
    """With exp(z) h a gate's tails count: its mean and variance say too little of it."""
    weights, h = source((200, 3), 1, 0.2), source((200,), 2, 0.4)
    found = moments(lambda w, h: jnp.tanh(jnp.exp(w.sum(1)) * h), weights, h)
    exact = of_draws(
        lambda w, h: jnp.tanh(jnp.exp(w.sum(-1)) * h),
        draws(weights, 10_000, 3),
        draws(h, 10_000, 4),
    )
    # Two variables have few nodes: some elements are off by more, but not most.
    assert np.abs(found.mean - exact.mean(0)).mean() < 0.012


def test_a_norm_is_positive():
    x = Uncertain(jnp.linspace(-1, 1, 16), jnp.full(16, 0.3), distinct=True)
    assert_moments(moments(jnp.linalg.norm, x), of_draws(jnp.linalg.norm, draws(x, 20_000)))
    for layer in (eqx.nn.LayerNorm(16), eqx.nn.RMSNorm(16)):
        found, exact = moments(layer, x), of_draws(layer, draws(x, 20_000))
        np.testing.assert_allclose(found.mean, exact.mean(0), atol=0.05)
        # Numerator and denominator go together; as independent ones they spread too far.
        ratio = np.asarray(found.variance / exact.var(0))
        assert (ratio > 0.9).all()
        assert (ratio < 1.6).all()

    def fast(x):
        return x * jax.lax.rsqrt(jnp.maximum(jnp.mean(x**2) - jnp.mean(x) ** 2, 0) + 1e-6)

    with pytest.raises(NoRuleError, match="'rsqrt'"):
        moments(fast, x)
    zero = Uncertain(jnp.zeros(4), jnp.zeros(4), distinct=True)
    slope = jax.grad(lambda m: moments(lambda x: jnp.sum(x**2), Uncertain(m, zero.mean)).mean)
    np.testing.assert_array_equal(jax.jit(slope)(jnp.zeros(4)), 0.0)


def test_a_mask_in_a_loop_has_no_slope_and_the_rest_has(x64):
    mask = jnp.array([[True, False, True]] * 2)

    def last(mean, where):
        def step(h, inputs):
            a, keep = inputs
            return jnp.where(keep, jnp.tanh(a * h), h), None

        x = Uncertain(mean, jnp.full(mean.shape, 0.3))
        start = jnp.ones((2, 3))
        found = propagate(
            lambda x, m: jax.lax.scan(step, start, (x, m))[0], "moments", KEY, x, where
        )
        return jnp.sum(found.mean**2) + jnp.sum(found.variance)

    check_grads(
        jax.jit(lambda m: last(m, mask)), (jnp.full((2, 3), 0.7),), order=1, modes=("fwd", "rev")
    )
    slope = jax.jit(jax.grad(last))(jnp.full((2, 3), 0.7), mask)
    assert (slope[:, 1] == 0).all()
    assert (slope[:, 0] != 0).all()


def test_a_new_axis_copies_nothing():
    w = source((3,))
    found = propagate(lambda w: jnp.sum(w[:, None] * jnp.ones((3, 1)), 0), "local", KEY, w)
    np.testing.assert_allclose(found.variance, w.variance.sum()[None], rtol=1e-6)
    drawn = propagate(lambda w: jnp.sum(jnp.broadcast_to(w, (2, 3)), 0), "local", KEY, w)
    assert not is_uncertain(drawn)  # copies go together


def test_a_loop_of_no_steps():
    x = source((3,))
    for mode in ("local", "moments"):
        found = propagate(
            lambda x: jax.lax.scan(lambda h, a: (h + a, None), x, jnp.zeros((0, 3)))[0],
            mode,
            KEY,
            x,
        )
        np.testing.assert_array_equal(found.mean, x.mean)


def test_an_output_beside_does_not_change_what_a_gate_gives():
    w, v = linear()
    z = Uncertain(jnp.array([1.0, 1.5, 2.0]), jnp.full(3, 0.2))

    def both(w, z):
        u = w @ v
        n = jnp.tanh(u)
        return n * z + n, v @ u

    beside, alone = moments(both, w, z)[0], moments(lambda w, z: both(w, z)[0], w, z)
    np.testing.assert_allclose(beside.variance, alone.variance, rtol=1e-4)
    exact = of_draws(lambda w, z: both(w, z)[0], draws(w, 20_000), draws(z, 20_000, 2))
    assert_moments(beside, exact, rtol=3e-2)


def test_a_sample_of_elements_is_one_of_the_array():
    x = source((4, 2))
    function, moved = propagate(lambda x: (jnp.exp(x), jnp.exp(x).T[1]), "moments", KEY, x)
    ctx = Context("moments", KEY)
    np.testing.assert_array_equal(ctx.draw(moved), ctx.draw(function)[:, 1])
    assert (ctx.draw(moved) > 0).all()


STACKS = {
    "stack": lambda h: jnp.stack([h, 2 * h]).ravel() @ jnp.arange(6.0),
    "unstack": lambda h: jnp.unstack(h)[0] + 2 * jnp.unstack(h)[1],
    "tile": lambda h: jnp.tile(h, 2) @ jnp.arange(6.0),
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks_and_tiles_are_sampled_as_one(name):
    function, value = STACKS[name], source((3,))
    exact = of_draws(function, draws(value, 20_000))
    found = sampled(function, value)
    np.testing.assert_allclose(found.mean(), exact.mean(), atol=0.1)
    np.testing.assert_allclose(found.var(), exact.var(), rtol=0.05)
    assert np.isclose(moments(function, value).mean, exact.mean(), atol=0.1)


def test_a_stack_of_parts_keeps_its_variance():
    value = source((3,))
    found = moments(lambda h: jnp.stack([h[0], h[2]]) @ jnp.ones(2), value)
    np.testing.assert_allclose(found.variance, value.variance[0] + value.variance[2], rtol=1e-6)


COPIES = {
    "repeated": lambda h: jnp.repeat(h, 2, axis=-1) @ jnp.ones(4),
    "broadcast": lambda h: jnp.broadcast_to(h[:, None], (4, 3, 2)).sum((1, 2)),
    "picked twice": lambda h: h[:, jnp.array([0, 0, 1])] @ jnp.ones(3),
    "a gate": lambda h: jnp.tanh(h[:, :1] * jnp.ones(5)).sum(-1),
    "stretched": lambda h: (h[:, :1] + jnp.zeros((4, 3))) @ jnp.ones(3),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_a_result_have_one_sample(name):
    function, weight = COPIES[name], source((3, 2))
    x = jax.random.normal(jax.random.key(5), (4, 3))
    exact = of_draws(lambda w: function(x @ w), draws(weight, 20_000))
    found = sampled(lambda w: function(x @ w), weight)
    np.testing.assert_allclose(found.var(0), exact.var(0), rtol=0.15)


def test_a_bias_is_still_sampled_for_each_datum():
    bias = source((2,))
    found = propagate(lambda b: jnp.ones((4, 2)) + b, "local", KEY, bias)
    np.testing.assert_allclose(found.variance, jnp.broadcast_to(bias.variance, (4, 2)), rtol=1e-6)

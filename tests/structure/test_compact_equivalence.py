"""`compact` and networks that it must leave as they are, or count right."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox.nn import Linear
from flax import nnx

import bmrjax as bmr

KEYS = jax.random.split(jax.random.key(0), 8)


def test_what_divides_by_a_width_of_zero_keeps_one() -> None:
    class Attention(eqx.Module):
        q: Linear
        k: Linear
        v: Linear

        def __call__(self, x):
            q, k, v = (jax.vmap(f)(x) for f in (self.q, self.k, self.v))
            return jax.nn.softmax(q @ k.T / jnp.sqrt(q.shape[-1])) @ v

    network = Attention(*(Linear(3, 4, use_bias=False, key=k) for k in KEYS[:3]))
    network = eqx.tree_at(lambda n: n.q.weight, network, jnp.zeros((4, 3)))
    x = jax.random.normal(KEYS[5], (4, 3))
    found = bmr.compact(network, x)
    np.testing.assert_allclose(found.network(x), network(x), rtol=1e-5)
    assert found.network.q.weight.size < network.q.weight.size


def test_a_network_that_gives_no_number_is_refused() -> None:
    class Bad(eqx.Module):
        a: Linear

        def __call__(self, x):
            return self.a(x) * jnp.nan

    with pytest.raises(ValueError, match="nothing but NaN"):
        bmr.compact(Bad(Linear(3, 2, key=KEYS[0])), jnp.ones(3))


def test_weights_divided_by_a_norm_of_zero_are_named_and_the_advice_helps() -> None:
    class Normed(eqx.Module):
        v: jax.Array
        last: Linear
        smallest: float = 0.0

        def __call__(self, x):
            norm = jnp.linalg.norm(self.v, axis=1, keepdims=True)
            return self.last(jax.nn.relu(self.v / jnp.maximum(norm, self.smallest) @ x))

    v = jax.random.normal(KEYS[0], (8, 3)).at[:2].set(0)
    last = Linear(8, 2, key=KEYS[1])
    with pytest.raises(ValueError, match=r"nothing but NaN.* jnp\.maximum\(norm, 1e-12\)"):
        bmr.compact(Normed(v, last), jnp.ones(3))
    network = Normed(v, last, 1e-12)
    small = bmr.compact(network, jnp.ones(3)).network
    assert small.v.shape == (6, 3)
    np.testing.assert_allclose(small(jnp.ones(3)), network(jnp.ones(3)), rtol=1e-5)


def test_branches_that_the_example_does_not_choose_stay() -> None:
    class Experts(eqx.Module):
        router: Linear
        w1: jax.Array
        w2: jax.Array

        def __call__(self, x):
            h = jax.nn.relu(jnp.einsum("ehi,i->eh", self.w1, x))
            return jnp.einsum("eoh,eh->eo", self.w2, h)[jnp.argmax(self.router(x))]

    router = Linear(3, 2, key=KEYS[4])
    router = eqx.tree_at(lambda r: r.bias, router, jnp.array([5.0, 0.0]))
    w2 = jax.random.normal(KEYS[6], (2, 2, 6)).at[0, :, 3:].set(0).at[1, :, :3].set(0)
    network = Experts(router, jax.random.normal(KEYS[5], (2, 6, 3)), w2)
    small = bmr.compact(network, jnp.ones(3)).network
    chosen = set()
    for x in 8 * jax.random.normal(KEYS[7], (20, 3)):
        chosen.add(int(jnp.argmax(network.router(x))))
        np.testing.assert_allclose(small(x), network(x), rtol=1e-4, atol=1e-4)
    assert chosen == {0, 1}
    # What neither expert reads may go.
    both = eqx.tree_at(lambda n: n.w2, network, w2.at[:, :, 5].set(0))
    assert bmr.compact(both, jnp.ones(3)).network.w1.shape == (2, 5, 3)


def test_the_step_that_a_length_chooses_may_be_another() -> None:
    class Recurrent(eqx.Module):
        cell: eqx.nn.GRUCell
        head: Linear

        def __call__(self, x, length):
            h, states = jnp.zeros(4), []
            for row in x:
                h = self.cell(row, h)
                states.append(h)
            return self.head(jnp.take(jnp.stack(states), length - 1, axis=0))

    network = Recurrent(eqx.nn.GRUCell(2, 4, key=KEYS[0]), Linear(4, 2, key=KEYS[1]))
    weight = network.head.weight.at[:, 1].set(0.0)
    network = eqx.tree_at(lambda n: n.head.weight, network, weight)
    x = jax.random.normal(KEYS[2], (5, 2))
    small = bmr.compact(network, x, jnp.array(1)).network
    for length in range(1, 6):
        np.testing.assert_allclose(small(x, length), network(x, length), rtol=1e-5, atol=1e-6)


def test_a_unit_that_is_read_by_its_place_stays() -> None:
    class Gated(eqx.Module):
        a: Linear
        b: Linear

        def __call__(self, x):
            h = jax.nn.relu(self.a(x))
            return self.b(h) + 100 * jax.nn.relu(h[0] - 50)

    network = Gated(Linear(3, 6, key=KEYS[3]), Linear(6, 2, key=KEYS[4]))
    weight = network.b.weight.at[:, np.array([0, 2, 4])].set(0.0)
    network = eqx.tree_at(lambda n: n.b.weight, network, weight)
    small = bmr.compact(network, jnp.full(3, 0.5)).network
    assert small.a.weight.shape == (4, 3)
    for x in 100 * jax.random.normal(KEYS[7], (20, 3)):
        np.testing.assert_allclose(small(x), network(x), rtol=1e-5, atol=1e-3)


def test_tokens_are_drawn_too() -> None:
    class Tokens(eqx.Module):
        e: eqx.nn.Embedding
        q: Linear
        k: Linear
        v: Linear

        def __call__(self, t):
            q, k, v = (jax.vmap(f)(jax.vmap(self.e)(t)) for f in (self.q, self.k, self.v))
            return (jax.nn.softmax(q @ k.T / jnp.sqrt(q.shape[-1])) @ v)[-1]

    made = (Linear(8, 6, key=k) for k in KEYS[1:4])
    network = Tokens(eqx.nn.Embedding(7, 8, key=KEYS[0]), *made)
    network = eqx.tree_at(
        lambda n: (n.q.weight, n.q.bias),
        network,
        (3 * network.q.weight.at[3:].set(0), network.q.bias.at[3:].set(0)),
    )
    found = bmr.compact(network, jnp.zeros(5, int))
    # The code divides by the root of fewer dimensions: what is left of the queries is smaller in proportion.
    assert found.network.q.weight.shape == (3, 8)
    np.testing.assert_allclose(
        found.network.q.weight, network.q.weight[:3] * np.sqrt(3 / 6), rtol=1e-5
    )
    tokens = jnp.array([3, 1, 6, 2, 5])
    np.testing.assert_allclose(found.network(tokens), network(tokens), rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_small_outputs_and_half_precision_are_compared_as_others(scale: float, kind) -> None:
    class Mean(eqx.Module):
        a: Linear
        b: Linear
        s: float = eqx.field(static=True)

        def __call__(self, x):
            h = jnp.tanh(self.a(x))
            return self.s * self.b(h) / jnp.sqrt(jnp.asarray(h.shape[-1], h.dtype))

    network = Mean(Linear(3, 16, key=KEYS[0]), Linear(16, 2, use_bias=False, key=KEYS[1]), scale)
    weight = network.b.weight.at[:, 13:].set(0.0)
    network = eqx.tree_at(lambda n: n.b.weight, network, weight)
    network = jax.tree.map(lambda a: a.astype(kind) if eqx.is_inexact_array(a) else a, network)
    found = bmr.compact(network, jnp.ones(3, kind))
    assert found.network.a.weight.shape == (16, 3)
    assert found.error <= float(jnp.finfo(kind).eps)


def test_half_precision_still_gets_smaller() -> None:
    network = bmr.zoo.MLP(4, (16, 16), 2, key=KEYS[0])
    weight = network.layers[1].weight.at[:, 5:].set(0.0)
    network = eqx.tree_at(lambda n: n.layers[1].weight, network, weight)
    network = jax.tree.map(
        lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, network
    )
    found = bmr.compact(network, jnp.ones(4, jnp.bfloat16))
    assert found.network.layers[0].weight.shape == (5, 4)


@pytest.mark.slow
def test_flops_of_a_scan_grow_with_its_length() -> None:
    network = bmr.zoo.GRU(2, 8, 3, key=KEYS[0])
    short, long = (bmr.compact(network, jnp.ones((n, 2))).before.flops for n in (4, 40))
    assert 9 < long / short <= 10


def test_numpy_weights_are_refused() -> None:
    network = bmr.zoo.MLP(4, (8,), 2, key=KEYS[0])
    network = jax.tree.map(lambda a: np.asarray(a) if eqx.is_array(a) else a, network)
    with pytest.raises(TypeError, match=r"jnp\.asarray"):
        bmr.compact(network, jnp.ones(4))


def test_stacked_layers_of_equinox() -> None:
    class Stacked(eqx.Module):
        layers: Linear
        head: Linear

        def __call__(self, x):
            dynamic, static = eqx.partition(self.layers, eqx.is_array)

            def step(x, layer):
                return jnp.tanh(eqx.combine(layer, static)(x)), None

            return self.head(jax.lax.scan(step, x, dynamic)[0])

    layers = eqx.filter_vmap(lambda k: Linear(6, 6, key=k))(KEYS[:3])
    network = Stacked(layers, Linear(6, 2, key=KEYS[4]))
    x = jax.random.normal(KEYS[5], (6,))
    np.testing.assert_allclose(bmr.compact(network, x).network(x), network(x), rtol=1e-6)


def test_stacked_layers_of_flax() -> None:
    class Stacked(nnx.Module):
        def __init__(self):
            @nnx.split_rngs(splits=3)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def make(rngs):
                return nnx.Linear(6, 6, rngs=rngs)

            self.layers = make(nnx.Rngs(0))

        def __call__(self, x):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def forward(x, layer):
                return jnp.tanh(layer(x))

            return forward(x, self.layers)

    network = Stacked()
    found = bmr.compact(network, jnp.ones((2, 6)))
    assert (found.network.layers.in_features, found.network.layers.out_features) == (6, 6)


def test_tied_weights_of_equinox() -> None:
    class Tied(eqx.Module):
        shared: eqx.nn.Shared

        def __init__(self, key):
            e = eqx.nn.Embedding(7, 4, key=key)
            l = Linear(4, 7, use_bias=False, key=key)  # noqa: E741
            self.shared = eqx.nn.Shared((e, l), lambda p: p[1].weight, lambda p: p[0].weight)

        def __call__(self, t):
            e, l = self.shared()  # noqa: E741
            return jax.vmap(lambda i: l(e(i)))(t)

    network = Tied(KEYS[2])
    weight = network.shared.pytree[0].weight.at[:, 1].set(0.0)
    network = eqx.tree_at(lambda n: n.shared.pytree[0].weight, network, weight)
    tokens = jnp.array([1, 2, 6])
    found = bmr.compact(network, tokens)
    np.testing.assert_allclose(found.network(tokens), network(tokens), rtol=1e-5)
    assert found.network.shared.pytree[0].weight.shape == (7, 3)


def test_outputs_that_are_true_or_false() -> None:
    class Class(eqx.Module):
        a: Linear
        b: Linear

        def __call__(self, x):
            y = self.b(jax.nn.relu(self.a(x)))
            return {"y": y, "yes": y > 0, "which": jnp.argmax(y)}

    network = Class(Linear(3, 5, key=KEYS[0]), Linear(5, 2, key=KEYS[1]))
    weight = network.b.weight.at[:, 2:].set(0.0)
    network = eqx.tree_at(lambda n: n.b.weight, network, weight)
    assert bmr.compact(network, jnp.ones(3)).network.a.weight.shape == (2, 3)


def test_stacks_and_tiles_are_seen_through() -> None:
    class Stack(eqx.Module):
        a: Linear
        b: Linear

        def __call__(self, x):
            h = jnp.stack([jnp.tanh(self.a(v)) for v in x])
            first, *_ = jnp.unstack(h)
            return jax.vmap(self.b)(jnp.tile(h, (2, 1))) + self.b(first)

    network = Stack(Linear(3, 6, key=KEYS[0]), Linear(6, 2, key=KEYS[1]))
    weight = network.b.weight.at[:, 3:].set(0.0)
    network = eqx.tree_at(lambda n: n.b.weight, network, weight)
    x = jax.random.normal(KEYS[5], (4, 3))
    small = bmr.compact(network, x).network
    assert small.a.weight.shape == (3, 3)
    np.testing.assert_allclose(small(x), network(x), rtol=1e-5)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("cell", [nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.SimpleCell])
def test_recurrent_cells_of_flax(cell) -> None:
    class Recurrent(nnx.Module):
        def __init__(self):
            self.rnn = nnx.RNN(cell(3, 5, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(carry=0))
            self.head = nnx.Linear(5, 2, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return self.head(self.rnn(x))

    network = Recurrent()
    # Unit 3 reaches neither the others nor the head.
    for _, module in nnx.iter_modules(network):
        if isinstance(module, nnx.Linear) and module.in_features == 5:
            module.kernel[...] = module.kernel[...].at[3].set(0.0)
    x = jax.random.normal(KEYS[5], (2, 4, 3))
    found = bmr.compact(network, x)
    np.testing.assert_allclose(found.network(x), network(x), rtol=1e-5, atol=1e-6)
    assert found.network.rnn.cell.hidden_features == 4


def test_sizes_of_transposed_convolutions() -> None:
    class Images(eqx.Module):
        a: eqx.nn.Conv1d
        b: eqx.nn.ConvTranspose1d
        c: eqx.nn.Conv1d

        def __call__(self, x):
            return self.c(jax.nn.relu(self.b(jax.nn.relu(self.a(x)))))

    network = Images(
        eqx.nn.Conv1d(1, 6, 3, key=KEYS[0]),
        eqx.nn.ConvTranspose1d(6, 4, 3, key=KEYS[1]),
        eqx.nn.Conv1d(4, 1, 3, key=KEYS[2]),
    )
    network = eqx.tree_at(
        lambda n: (n.b.weight, n.c.weight),
        network,
        (network.b.weight.at[:, 3:].set(0.0), network.c.weight.at[:, 2:].set(0.0)),
    )
    small = bmr.compact(network, jnp.ones((1, 9))).network
    assert small.b.weight.shape == (2, 3, 3)
    assert (small.b.in_channels, small.b.out_channels) == (3, 2)


def test_inputs_that_are_no_arrays_are_refused() -> None:
    network = bmr.zoo.MLP(4, (8,), 2, key=KEYS[0])
    normed = eqx.nn.Sequential([eqx.nn.BatchNorm(5, "batch", mode="ema")])
    with pytest.raises(ValueError, match=r"layers with state, so give the pair \(network, state\)"):
        bmr.compact(normed, jnp.ones(5))
    with pytest.raises(ValueError, match="MLP does not run on"):
        bmr.compact(network, {"x": jnp.ones(4)})
    with pytest.raises(TypeError, match="State"):
        bmr.compact((network, network), jnp.ones(4))

"""Layers are found among operations; what goes in and comes out gives the gradients of their weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax.trained.traced import trace


class Residual(eqx.Module):
    """A perceptron with a shortcut, one layer of it used twice."""

    first: eqx.nn.Linear
    shared: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(5, 6, key=a)
        self.shared = eqx.nn.Linear(6, 6, key=b)
        self.last = eqx.nn.Linear(6, 3, use_bias=False, key=c)

    def __call__(self, x):
        h = jnp.tanh(self.first(x))
        h = h + jnp.tanh(self.shared(h))
        return self.last(h + jnp.tanh(self.shared(h)))


class Convolutions(eqx.Module):
    """Strides, padding, dilation, groups, and a transposed convolution."""

    layers: list

    def __init__(self, key):
        a, b, c, d = jax.random.split(key, 4)
        self.layers = [
            eqx.nn.Conv2d(2, 4, 3, stride=2, padding=1, key=a),
            eqx.nn.Conv2d(4, 8, (3, 2), groups=2, dilation=2, padding=2, key=b),
            eqx.nn.ConvTranspose2d(8, 3, 2, stride=2, key=c),
            eqx.nn.Conv2d(3, 3, 3, groups=3, key=d),
        ]

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x.ravel()


class Attention(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm

    def __init__(self, key):
        self.attention = eqx.nn.MultiheadAttention(2, 6, key=key)
        self.norm = eqx.nn.LayerNorm(6)

    def __call__(self, x):
        h = jax.vmap(self.norm)(x)
        return (x + self.attention(h, h, h)).sum(0)


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(3, 4, key=a)
        self.head = eqx.nn.Linear(4, 2, key=b)

    def __call__(self, xs):
        last, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(4), xs)
        return self.head(last)


class Stacked(eqx.Module):
    """Two networks side by side: products with a batch axis."""

    members: eqx.nn.MLP

    def __init__(self, key):
        make = eqx.filter_vmap(lambda key: eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=key))
        self.members = make(jax.random.split(key, 2))

    def __call__(self, x):
        return eqx.filter_vmap(lambda member, x: member(x), in_axes=(eqx.if_array(0), None))(
            self.members, x
        ).ravel()


class Channels(nnx.Module):
    """Channels last, as Flax has them."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 4, (3, 3), feature_group_count=2, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.out = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.norm(self.conv(x))).mean((1, 2)))


KEY = jax.random.key(0)
NETWORKS = {
    "residual": (lambda: Residual(KEY), (5,), 3),
    "convolutions": (lambda: Convolutions(KEY), (2, 8, 8), 4),
    "attention": (lambda: Attention(KEY), (4, 6), 4),
    "recurrent": (lambda: Recurrent(KEY), (5, 3), 3),
    "stacked": (lambda: Stacked(KEY), (3,), 2),
    "nnx": (lambda: Channels(nnx.Rngs(0)), (6, 6, 2), 2),
}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_inputs_times_gradients_are_the_gradients_of_the_weights(name):
    make, shape, layers = NETWORKS[name]
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, *shape)))
    found = trace(make(), (x,))
    assert len(found.layers) == layers
    arrays, row = found.parts.arrays, (jnp.asarray(x[1]),)

    @jax.jit
    def both(arrays):
        outputs, ends = found.capture.run(arrays, row)
        _, back = found.capture.gradients(arrays, row)
        direction = jnp.cos(jnp.arange(outputs.size, dtype=outputs.dtype)).reshape(outputs.shape)

        def loss(arrays):
            return jnp.vdot(direction, found.capture.outputs(arrays, row))

        return outputs, ends, back(direction), jax.grad(loss)(arrays)

    outputs, ends, gradients, exact = both(arrays)
    plain = found.parts.call(arrays, row if name != "nnx" else (row[0][None],))
    np.testing.assert_allclose(outputs, np.reshape(plain, outputs.shape), atol=1e-5)
    for layer, (inputs, results), g in zip(found.layers, ends, gradients, strict=True):
        mine = jnp.einsum("tgo,tgi->goi", g, inputs)
        theirs = np.asarray(exact[layer.array]).ravel()[layer.index]
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
        weights = np.asarray(arrays[layer.array]).ravel()[layer.index]
        np.testing.assert_allclose(results, jnp.einsum("goi,tgi->tgo", weights, inputs), atol=2e-5)
        if layer.bias is not None:
            array, places = layer.bias
            bias = np.asarray(exact[array]).ravel()[places]
            np.testing.assert_allclose(g.sum(0), bias, atol=2e-5)


def test_biases_are_found():
    found = trace(Residual(KEY), (np.ones((1, 5), np.float32),))
    assert [layer.bias is not None for layer in found.layers] == [True, True, False]
    assert [len(layer.uses) for layer in found.layers] == [1, 2, 1]
    found = trace(Convolutions(KEY), (np.ones((1, 2, 8, 8), np.float32),))
    assert all(layer.bias is not None for layer in found.layers)
    assert [layer.index.shape for layer in found.layers] == [
        (1, 4, 18),
        (2, 4, 12),
        (1, 3, 32),
        (3, 1, 9),
    ]


class Odd(eqx.Module):
    """Weights that cannot be judged, each for another reason."""

    tied: jax.Array
    scaled: jax.Array
    table: jax.Array
    long: jax.Array
    factor: jax.Array
    unused: jax.Array
    fine: jax.Array

    def __call__(self, x):
        x = self.tied.T @ jnp.tanh(self.tied @ x)
        x = (2 * self.scaled) @ x
        x = x + self.table[jnp.argmax(x)]
        x = jax.lax.fori_loop(0, jnp.sum(x > 0) + 1, lambda i, h: jnp.tanh(self.long @ h), x)
        return self.fine @ (x * self.factor)


class Borrowed(eqx.Module):
    """A bias that something else reads too, and an offset per place."""

    first: eqx.nn.Linear
    second: jax.Array
    offset: jax.Array

    def __call__(self, x):
        h = jnp.tanh(self.first(x)) * jnp.sum(self.first.bias)
        return (jnp.stack([h, 2 * h]) @ self.second + self.offset).sum(0)


def test_a_bias_that_something_else_reads_does_not_move():
    network = Borrowed(eqx.nn.Linear(3, 4, key=KEY), jnp.ones((4, 2)), jnp.ones((2, 2)))
    found = trace(network, (np.ones((1, 3), np.float32),))
    assert [layer.name for layer in found.layers] == ["first.weight", "second"]
    assert [layer.bias for layer in found.layers] == [None, None]


def test_what_cannot_be_judged_has_a_reason():
    keys = jax.random.split(KEY, 5)
    square = [jax.random.normal(key, (3, 3)) for key in keys]
    network = Odd(square[0], square[1], square[2], square[3], jnp.ones(3), jnp.ones(2), square[4])
    found = trace(network, (np.ones((1, 3), np.float32),))
    assert [layer.name for layer in found.layers] == ["fine"]
    assert "`while`" in found.refused["table"]  # before the loop, which gives no gradients
    assert "two layouts" in found.refused["tied"]
    assert "`mul`" in found.refused["scaled"]
    assert "`while`" in found.refused["long"]
    assert "`mul`" in found.refused["factor"]
    assert found.refused["unused"] == "no output depends on it"


def test_a_network_without_layers_is_refused():
    class Scale(eqx.Module):
        factor: jax.Array

        def __call__(self, x):
            return self.factor * x

    with pytest.raises(
        ValueError, match="no array of the network can be judged. factor: it is read by"
    ):
        trace(Scale(jnp.ones(3)), (np.ones((1, 3), np.float32),))


def test_normalised_weights_that_are_zero_do_no_harm():
    """A row of zeros is 0 / 0 in `equinox.nn.WeightNorm` as it comes."""
    a, b = jax.random.split(jax.random.key(0))
    first = eqx.nn.WeightNorm(eqx.nn.Linear(3, 6, key=a))
    zeros = first.layer.weight.at[2].set(0)
    first = eqx.tree_at(lambda n: n.layer.weight, first, zeros)
    network = eqx.nn.Sequential(
        [first, eqx.nn.Lambda(jnp.tanh), eqx.nn.Linear(6, 2, use_bias=False, key=b)]
    )
    x = jax.random.normal(jax.random.key(1), (300, 3))
    assert np.isnan(network(x[0])).any()
    # What the network is without the row: its bias alone goes through.
    weight = first.layer.weight / jnp.linalg.norm(first.layer.weight, axis=1, keepdims=True)
    weight = jnp.where(jnp.isnan(weight), 0, weight * first.g)
    y = jnp.tanh(x @ weight.T + first.layer.bias) @ network.layers[2].weight.T
    y = y + 0.05 * jax.random.normal(jax.random.key(2), y.shape)
    found = bmr.reduce_network(network, (x, y), keep=0.6)
    assert set(found.masks) == {"layers.2.weight"}
    outputs = jax.vmap(found.network_at(0))(x)
    np.testing.assert_allclose(outputs, y, atol=0.3)
    assert np.isfinite(jax.vmap(found.network)(x)).all()


@pytest.mark.slow
def test_a_network_in_bfloat16_is_reduced_as_in_float32():
    network = eqx.nn.MLP(6, 1, 16, 1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (400, 6))
    y = jax.vmap(network)(x) + 0.2 * jax.random.normal(jax.random.key(2), (400, 1))
    masks = []
    for dtype in (jnp.float32, jnp.bfloat16):
        narrow = jax.tree.map(lambda a: a.astype(dtype) if eqx.is_array(a) else a, network)  # noqa: B023
        data = x.astype(dtype), y.astype(dtype)
        found = bmr.reduce_network(narrow, data, held_out=data, keep=0.85)
        assert jax.vmap(found.network)(data[0]).dtype == dtype
        masks.append(np.concatenate([mask.ravel() for mask in found.masks.values()]))
    assert np.mean(masks[0] == masks[1]) > 0.9


class Heads(eqx.Module):
    """A mean and a logarithm of a standard deviation, as networks often return them."""

    body: eqx.nn.Linear
    mean: eqx.nn.Linear
    spread: eqx.nn.Linear

    def __call__(self, x):
        h = jnp.tanh(self.body(x))
        return {"mean": self.mean(h)[0], "log": (self.spread(h),)}


def test_a_loss_takes_several_outputs_as_the_network_returns_them():
    keys = jax.random.split(jax.random.key(0), 4)
    made = [
        eqx.nn.Linear(*sizes, key=key)
        for sizes, key in zip([(6, 12), (12, 1), (12, 1)], keys, strict=False)
    ]
    network = Heads(*made)
    x = jax.random.normal(keys[3], (300, 6))
    y = jax.vmap(network)(x)["mean"] + 0.5 * jax.random.normal(keys[0], (300,))

    def loss(outputs, target):
        (log,) = outputs["log"]
        return jnp.sum(0.5 * jnp.square((target - outputs["mean"]) / jnp.exp(log)) + log)

    class Flat(eqx.Module):
        heads: Heads

        def __call__(self, x):
            found = self.heads(x)
            return jnp.concatenate([found["log"][0], found["mean"][None]])

    def flat_loss(outputs, target):
        return loss({"mean": outputs[1], "log": (outputs[:1],)}, target)

    data = {"data": (x[:200], y[:200]), "held_out": (x[200:], y[200:]), "keep": 0.85}
    found = bmr.reduce_network(network, loss=loss, **data)
    same = bmr.reduce_network(Flat(network), loss=flat_loss, **data)
    for name, mask in found.masks.items():
        np.testing.assert_array_equal(mask, same.masks[f"heads.{name}"])
    assert set(found.network(x[0])) == {"mean", "log"}
    with pytest.raises(
        TypeError, match=r"a tree of arrays, float32\(1,\), float32\(\) per row.*loss="
    ):
        bmr.reduce_network(network, (x, y))


class Wrapped(eqx.Module):
    """A network that returns its one array within a tuple."""

    network: eqx.nn.MLP
    more: tuple

    def __call__(self, x):
        return (self.network(x), *self.more)


def test_one_array_in_a_tuple_is_an_array_to_the_losses():
    network = eqx.nn.MLP(6, 3, 12, 1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (200, 6))
    y = jnp.argmax(jax.vmap(network)(x), -1)
    data = {"data": (x, y), "held_out": (x, y), "keep": 0.85}
    plain = bmr.reduce_network(network, **data)
    for more, loss in (((), None), ((None,), bmr.trained.CrossEntropy())):
        found = bmr.reduce_network(Wrapped(network, more), loss=loss, **data)
        for name, mask in plain.masks.items():
            np.testing.assert_array_equal(found.masks[f"network.{name}"], mask)
        outputs = found.network(x[0])
        assert len(outputs) == 1 + len(more)
        assert outputs[0].shape == (3,)


def test_a_function_takes_a_tuple_of_one_as_the_network_returns_it():
    network = Wrapped(eqx.nn.MLP(6, "scalar", 12, 1, key=jax.random.key(0)), (None,))
    x = jax.random.normal(jax.random.key(1), (200, 6))
    y = jax.vmap(network)(x)[0] + 0.1

    def loss(outputs, target):
        value, nothing = outputs
        assert nothing is None
        return jnp.square(value - target) / 0.02

    found = bmr.reduce_network(network, (x, y), held_out=(x, y), keep=0.85, loss=loss)
    assert found.network(x[0])[1] is None

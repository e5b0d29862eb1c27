"""Smaller networks: the same outputs, nothing left that could go, and reasons for what stays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import structure, zoo

KEY = jax.random.key(0)


class Residual(eqx.Module):
    """Convolutions with batch normalisation, a skip, a depthwise filter, concatenation, and flattening."""

    first: eqx.nn.Conv2d
    first_norm: eqx.nn.BatchNorm
    inner: eqx.nn.Conv2d
    inner_norm: eqx.nn.BatchNorm
    outer: eqx.nn.Conv2d
    depthwise: eqx.nn.Conv2d
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.first = eqx.nn.Conv2d(3, 8, 3, padding=1, use_bias=False, key=keys[0])
        self.first_norm = eqx.nn.BatchNorm(8, "batch", mode="batch")
        self.inner = eqx.nn.Conv2d(8, 12, 3, use_bias=False, padding=1, key=keys[1])
        self.inner_norm = eqx.nn.BatchNorm(12, "batch", mode="batch")
        self.outer = eqx.nn.Conv2d(12, 8, 1, key=keys[2])
        self.depthwise = eqx.nn.Conv2d(8, 8, 3, padding=1, groups=8, key=keys[3])
        self.head = eqx.nn.Linear(16 * 9, 5, key=keys[4])

    def __call__(self, x, state):
        x, state = self.first_norm(self.first(x), state)
        y, state = self.inner_norm(self.inner(jax.nn.relu(x)), state)
        x = x + self.outer(jax.nn.relu(y))
        x = jnp.concatenate([x, jax.nn.swish(self.depthwise(x))])
        return self.head(eqx.nn.MaxPool2d(2, 2)(x).ravel()), state


class Convolutional(nnx.Module):
    """Flax NNX convolutions, batch normalisation and attention."""

    def __init__(self, rngs):
        self.first = nnx.Conv(1, 6, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.second = nnx.Conv(6, 8, (3, 3), rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 8, 8, rngs=rngs, decode=False)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.first(x)))
        x = nnx.avg_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        return self.head((x + self.attention(x)).mean(1))


def stateful(network, **options):
    return eqx.nn.make_with_state(network)(**options, key=KEY)


def tiny_vit():
    return zoo.ViT(image_size=8, depth=2, width=16, heads=4, hidden=12, key=KEY)


def tiny_mixer():
    return zoo.MLPMixer(image_size=8, depth=1, width=16, token_hidden=8, channel_hidden=12, key=KEY)


IMAGE = (1, 8, 8)
ZOO = {
    "MLP": (lambda: zoo.MLP(64, (20, 15), 5, key=KEY), IMAGE),
    "LeNet-5": (lambda: zoo.LeNet5(conv_features=(4, 6, 12), hidden=10, key=KEY), (1, 28, 28)),
    "LeNet-5-Caffe": (
        lambda: zoo.LeNet5Caffe(conv_features=(4, 6), hidden=12, key=KEY),
        (1, 28, 28),
    ),
    "VGG": (
        lambda: stateful(zoo.VGG, image_size=8, features=(4, 8), depths=(1, 2), hidden=10),
        (3, 8, 8),
    ),
    "ResNet": (
        lambda: stateful(zoo.ResNet, blocks=(1, 1), width=6, small_images=True),
        (3, 8, 8),
    ),
    "ResNet of bottlenecks": (
        lambda: stateful(zoo.ResNet, blocks=(1, 1), width=4, bottleneck=True),
        (3, 16, 16),
    ),
    "GRU": (lambda: zoo.GRU(2, 8, 3, key=KEY), (4, 2)),
    "ViT": (tiny_vit, IMAGE),
    "Mixer": (tiny_mixer, IMAGE),
    "residual": (lambda: stateful(Residual), (3, 6, 6)),
    "NNX MLP": (lambda: zoo.NNXMLP(64, (20, 15), 5, rngs=nnx.Rngs(0)), (2, *IMAGE)),
    "NNX ViT": (
        lambda: zoo.NNXViT(image_size=8, depth=1, width=16, heads=4, hidden=12, rngs=nnx.Rngs(0)),
        (2, *IMAGE),
    ),
    "NNX convolutional": (lambda: Convolutional(nnx.Rngs(0)), (2, 8, 8, 1)),
}


# The rest take long to compile twice.
REPEATED = ("MLP", "LeNet-5-Caffe", "VGG", "ResNet", "GRU", "Mixer")


def masked(network, seed, fraction=0.35):
    """Return the network with random rows, columns and single weights at zero, and biases other than zero.

    Axes of one size lose the same indices, so that what has to go together sometimes does.
    """
    rng = np.random.default_rng(seed)

    def gone(size, part):
        found = np.random.default_rng([seed, size]).random(size) < part
        found[-1] = True
        return found

    def zero(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        if leaf.ndim < 2 or min(leaf.shape[:2]) == 1:
            found = leaf + 0.1 * rng.standard_normal(leaf.shape)
            return jnp.asarray(found * (rng.random(leaf.shape) > 0.2), leaf.dtype)
        mask = rng.random(leaf.shape) > 0.3
        for axis in (0, 1) if leaf.ndim == 2 else (0, 1, -2, -1):
            kept = ~gone(leaf.shape[axis], fraction if leaf.ndim == 2 else fraction / 2)
            mask = mask & kept.reshape(
                [-1 if i == axis % leaf.ndim else 1 for i in range(leaf.ndim)]
            )
        return leaf * jnp.asarray(mask, leaf.dtype)

    if isinstance(network, tuple):
        # Running statistics too: means other than zero, and variances that stay positive.
        noise = lambda a: a + 0.1 * np.float32(abs(rng.standard_normal(a.shape)))  # noqa: E731
        state = jax.tree.map(lambda a: noise(a) if eqx.is_inexact_array(a) else a, network[1])
        return jax.tree.map(zero, network[0]), state
    if isinstance(network, eqx.Module):
        return jax.tree.map(zero, network)
    graph, state = nnx.split(network)
    return nnx.merge(graph, jax.tree.map(zero, state))


@eqx.filter_jit
def run_equinox(network, x):
    if isinstance(network, tuple):
        return eqx.nn.inference_mode(network[0])(x, network[1])[0]
    return eqx.nn.inference_mode(network)(x)


def run(network, x):
    if not isinstance(network, nnx.Module):
        return run_equinox(network, x)
    network.eval()
    return nnx.jit(lambda network, x: network(x))(network, x)


# Of networks of one kind, the others are left to `make all-checks`.
ALIKE = ("LeNet-5", "ResNet of bottlenecks", "NNX ViT")


@pytest.mark.first_cases(5)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(pytest.param(name, 0, marks=[pytest.mark.slow] if name in ALIKE else []) for name in ZOO),
        ("MLP", 1),
        pytest.param("Mixer", 1, marks=pytest.mark.slow),
    ],
)
def test_outputs_are_those_of_the_masked_network(name, seed):
    build, shape = ZOO[name]
    network = masked(build(), seed)
    found = bmr.compact(network, jnp.ones(shape), drop_inputs=True)
    x = 3 * jax.random.normal(jax.random.key(9), shape)
    exact = run(network, x)
    np.testing.assert_allclose(run(found.network, x), exact, atol=1e-5 * (1 + np.abs(exact).max()))
    assert found.error <= 1e-5
    assert found.after.parameters < found.before.parameters
    assert found.after.flops < found.before.flops
    if name in REPEATED and seed == 0:
        # Nothing is left that could go.
        again = bmr.compact(found.network, jnp.ones(shape), drop_inputs=True)
        assert again.after.parameters == found.after.parameters


def test_units_go_in_a_cascade():
    """What feeds only dead units is dead, what is fed by constants only is constant."""
    network = zoo.MLP(6, (5, 4, 3), 2, key=KEY)
    first, second, third, last = (np.array(layer.weight) for layer in network.layers)
    last[:, 0] = 0  # unit 0 of the third layer is not read
    third[1:, 2] = 0  # so nor is unit 2 of the second, which only unit 0 reads
    first[3] = 0  # unit 3 of the first is constant,
    second[1, [0, 1, 2, 4]] = 0  # and so is unit 1 of the second, which reads nothing else
    network = eqx.tree_at(
        lambda n: [layer.weight for layer in n.layers],
        network,
        list(map(jnp.asarray, (first, second, third, last))),
    )
    network = eqx.tree_at(lambda n: n.layers[0].bias, network, jnp.arange(5.0))
    found = bmr.compact(network, jnp.ones(6))
    assert [layer.weight.shape for layer in found.network.layers] == [
        (4, 6),
        (2, 4),
        (2, 2),
        (2, 2),
    ]
    x = jax.random.normal(KEY, (6,))
    np.testing.assert_allclose(found.network(x), network(x), rtol=1e-5, atol=1e-6)
    assert "layers.0.weight: 5x6 -> 4x6" in str(found)
    assert len({line.index(" ->") for line in str(found).splitlines()[:4]}) == 1  # in columns


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype):
    network = zoo.MLP(6, (5, 4), 2, key=KEY)
    network = eqx.tree_at(
        lambda n: (n.layers[1].weight, n.layers[1].bias),
        network,
        (network.layers[1].weight.at[:, 1].set(0).at[2].set(0), jnp.arange(4.0)),
    )
    network = jax.tree.map(lambda a: a.astype(dtype) if eqx.is_array(a) else a, network)
    found = bmr.compact(network, jnp.ones(6, dtype)).network
    assert [layer.weight.shape for layer in found.layers] == [(4, 6), (3, 4), (2, 3)]
    assert {layer.weight.dtype for layer in found.layers} == {jnp.dtype(dtype)}
    x = jax.random.normal(KEY, (6,), dtype)
    close = 16 * float(jnp.finfo(dtype).eps)
    exact = np.asarray(network(x), np.float32)
    np.testing.assert_allclose(
        np.asarray(found(x), np.float32), exact, atol=close * abs(exact).max()
    )


def test_a_network_that_ignores_its_input_becomes_its_bias():
    network = zoo.MLP(6, (5,), 2, key=KEY)
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.zeros((5, 6)))
    network = eqx.tree_at(lambda n: n.layers[0].bias, network, jnp.arange(5.0))
    found = bmr.compact(network, jnp.ones(6), drop_inputs=True)
    assert found.network.network.layers[1].weight.shape == (2, 0)
    assert found.inputs.size == 0
    np.testing.assert_allclose(found.network(jnp.ones(6)), network(jnp.ones(6)), rtol=1e-6)


def test_inputs_that_nothing_reads_go():
    network = zoo.MLP(64, (5,), 2, key=KEY)
    weight = network.layers[0].weight * (jnp.arange(64) % 2)
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, weight)
    found = bmr.compact(network, jnp.ones(IMAGE), drop_inputs=True)
    np.testing.assert_array_equal(found.inputs, np.arange(1, 64, 2))
    assert isinstance(found.network, structure.SelectInputs)
    whole = bmr.compact(network, jnp.ones(64))  # the class stays the user's
    assert isinstance(whole.network, zoo.MLP)
    assert whole.network.layers[0].weight.shape == (5, 64)
    assert "the input has them" in str(whole)


def test_a_constant_channel_in_front_of_zero_padding_stays():
    """At the border a padded convolution sees zeros: no bias can stand for the constant."""

    class Two(eqx.Module):
        first: eqx.nn.Conv2d
        second: eqx.nn.Conv2d

        def __call__(self, x):
            return self.second(jax.nn.relu(self.first(x)))

    def build(padding):
        keys = jax.random.split(KEY)
        first = eqx.nn.Conv2d(1, 4, 3, key=keys[0])
        first = eqx.tree_at(
            lambda c: (c.weight, c.bias), first, replace_fn=lambda a: a.at[0].set(0)
        )
        first = eqx.tree_at(lambda c: c.weight, first, replace_fn=lambda a: a.at[1].set(0))
        first = eqx.tree_at(lambda c: c.bias, first, replace_fn=lambda a: a.at[1].set(2.0))
        return Two(first, eqx.nn.Conv2d(4, 2, 3, padding=padding, key=keys[1]))

    padded = bmr.compact(build(1), jnp.ones((1, 8, 8)))
    assert padded.network.first.weight.shape == (
        3,
        1,
        3,
        3,
    )  # the zero channel goes, the constant stays
    assert "no bias can take that up" in str(padded)
    inside = bmr.compact(build(0), jnp.ones((1, 8, 8)))
    assert inside.network.first.weight.shape == (2, 1, 3, 3)


def test_features_of_a_normalised_residual_stream_stay_with_a_reason():
    network = tiny_vit()
    for where in (
        lambda n: n.head.weight,
        lambda n: n.blocks[0].mlp.hidden.weight,
        lambda n: n.blocks[1].mlp.hidden.weight,
        *(
            lambda n, i=i, k=k: getattr(n.blocks[i].attention, k).weight
            for i in (0, 1)
            for k in ("query", "key", "value")
        ),
    ):
        network = eqx.tree_at(where, network, replace_fn=lambda w: w.at[:, 0].set(0))
    found = bmr.compact(network, jnp.ones(IMAGE))
    assert found.network.head.weight.shape == network.head.weight.shape
    assert "head.weight: 1 of axis 1 stay: a sum or mean over all of them" in str(found)


def test_heads_and_blocks_go_whole():
    network = tiny_vit()
    columns = np.ones(16)
    columns[4:8] = 0
    network = eqx.tree_at(
        lambda n: n.blocks[1].attention.output.weight, network, replace_fn=lambda w: w * columns
    )
    for part in ("attention", "mlp"):
        network = eqx.tree_at(
            lambda n, part=part: getattr(n.blocks[0], part).output.weight,
            network,
            replace_fn=jnp.zeros_like,
        )
    first, second = bmr.compact(network, jnp.ones(IMAGE)).network.blocks
    assert second.attention.heads == 3
    assert second.attention.query.weight.shape == (12, 16)
    assert second.attention.query.out_features == 12
    assert second.attention.output.weight.shape == (16, 12)
    assert first.mlp.hidden.weight.shape == (0, 16)
    assert first.attention.heads == 1  # a reshape to no head is an error


def test_what_the_code_cannot_do_without_stays():
    class Fixed(eqx.Module):
        first: eqx.nn.Linear
        second: eqx.nn.Linear
        third: eqx.nn.Linear

        def __call__(self, x):
            x = jax.nn.relu(self.first(x)).reshape(8)  # the size is in the code
            return self.third(jax.nn.relu(self.second(x)))

    keys = jax.random.split(KEY, 3)
    network = Fixed(*(eqx.nn.Linear(8, 8, key=k) for k in keys))
    for part in ("second", "third"):
        network = eqx.tree_at(
            lambda n, part=part: getattr(n, part).weight,
            network,
            replace_fn=lambda w: w.at[:, 3:].set(0),
        )
    found = bmr.compact(network, jnp.ones(8))
    assert found.network.second.weight.shape == (3, 8)
    assert "first.weight: axis 0 stays: its code does not run without them" in str(found)


class Gated(eqx.Module):
    """A module that keeps a size in an attribute."""

    inner: eqx.nn.Linear
    outer: eqx.nn.Linear
    width: int = eqx.field(static=True)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)) * jnp.ones(self.width))


def gated():
    keys = jax.random.split(KEY)
    network = Gated(eqx.nn.Linear(3, 6, key=keys[0]), eqx.nn.Linear(6, 2, key=keys[1]), 6)
    return eqx.tree_at(lambda n: n.outer.weight, network, replace_fn=lambda w: w.at[:, :4].set(0))


def test_sizes_in_attributes_are_found():
    found = bmr.compact(gated(), jnp.ones(3))
    assert found.network.width == 2
    assert found.network.inner.weight.shape == (2, 3)


def test_sizes_in_attributes_can_be_told(monkeypatch):
    monkeypatch.setattr(structure.sizes, "SIZE_RULES", dict(structure.sizes.SIZE_RULES))
    sizes = structure.sizes_of(f"{Gated.__module__}.Gated")
    sizes(lambda old, new: {})
    found = bmr.compact(gated(), jnp.ones(3))
    assert found.network.width == 6
    assert "structure.sizes_of" in str(found)
    sizes(lambda old, new: {"width": new.inner.weight.shape[0]})
    assert bmr.compact(gated(), jnp.ones(3)).network.width == 2
    sizes(lambda old, new, split: {"width": split("inner.weight", 0, (6,))[0]})
    assert bmr.compact(gated(), jnp.ones(3)).network.width == 2


def test_a_product_of_weights_loses_its_rank():
    class LowRank(eqx.Module):
        left: jax.Array
        right: jax.Array

        def __call__(self, x):
            return (self.left @ self.right) @ x

    left, right = jax.random.normal(KEY, (2, 4, 4))
    network = LowRank(left.at[:, 0].set(0), right.at[1].set(0))
    found = bmr.compact(network, jnp.ones(4))
    assert found.network.left.shape == (4, 2)
    assert found.network.right.shape == (2, 4)


def test_a_network_of_which_nothing_may_go_says_why():
    found = bmr.compact(zoo.MLP(4, (3,), 2, key=KEY), jnp.ones(4))
    assert found.after.parameters == found.before.parameters
    assert "every neuron, channel and head varies with the input and is read" in str(found)


def test_bad_input_is_refused():
    network = zoo.MLP(4, (3,), 2, key=KEY)
    with pytest.raises(TypeError, match="expected an Equinox"):
        bmr.compact(lambda x: x, jnp.ones(3))
    with pytest.raises(ValueError, match="one data point each"):
        bmr.compact(network, jnp.ones((2, 7)))
    broken = eqx.tree_at(lambda n: n.layers[0].bias, network, jnp.full(3, jnp.nan))
    with pytest.raises(ValueError, match=r"'layers.0.bias' has values that are not finite"):
        bmr.compact(broken, jnp.ones(4))

"""How networks are called: dicts, keys, random streams, and what a call leaves behind."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from flax import nnx

import bmrjax as bmr

KEYS = jax.random.split(jax.random.key(0), 8)
PRIOR = bmr.priors.Flat()


def zeroed(network, where, columns):
    return eqx.tree_at(where, network, replace_fn=lambda w: w.at[:, columns].set(0))


def drawn(network, *args, seed=0):
    """Run a network with random weights in a program."""

    def program(*args):
        return bmr.random_module("net", network, PRIOR)(*args)

    return numpyro.handlers.seed(program, jax.random.key(seed))(*args)


class OfDict(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, batch):
        return self.second(jax.nn.relu(self.first(batch["x"]) * batch["scale"]))


def test_dicts_are_inputs():
    network = OfDict(eqx.nn.Linear(3, 6, key=KEYS[0]), eqx.nn.Linear(6, 2, key=KEYS[1]))
    network = zeroed(network, lambda n: n.second.weight, slice(4))
    example = {"x": jnp.ones(3), "scale": jnp.array(2.0)}
    found = bmr.compact(network, example)
    assert found.network.first.weight.shape == (2, 3)
    np.testing.assert_allclose(found.network(example), network(example), rtol=1e-5)
    groups = bmr.structure.unit_groups(network, example)
    assert len(groups.kinds[0].groups) == 6
    batch = {"x": jnp.ones((5, 3)), "scale": jnp.ones(5)}
    assert drawn(network, batch).shape == (5, 2)
    assert found.latency(batch_sizes=(2,), repeats=1)[0].batch_size == 2
    with pytest.raises(TypeError, match="arrays, or dicts and tuples of arrays, got str"):
        bmr.compact(network, {"x": jnp.ones(3), "scale": "large"})


class NeedsKey(eqx.Module):
    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    second: eqx.nn.Linear

    def __call__(self, x, *, key):
        key, _ = jax.random.split(key)
        return self.second(self.dropout(jax.nn.relu(self.first(x)), key=key))


def needs_key():
    return NeedsKey(
        eqx.nn.Linear(3, 6, key=KEYS[0]), eqx.nn.Dropout(0.5), eqx.nn.Linear(6, 2, key=KEYS[1])
    )


def test_a_key_that_a_call_requires_is_made():
    network = zeroed(needs_key(), lambda n: n.second.weight, slice(4))
    found = bmr.compact(network, jnp.ones(3)).network
    assert found.first.weight.shape == (2, 3)
    off = eqx.nn.inference_mode
    x = jax.random.normal(KEYS[2], (3,))
    np.testing.assert_allclose(
        off(found)(x, key=KEYS[3]), off(network)(x, key=KEYS[4]), rtol=1e-5, atol=1e-6
    )
    assert len(bmr.structure.unit_groups(network, jnp.ones(3)).kinds[0].groups) == 6


def test_a_network_that_requires_a_key_runs_in_programs():
    network, x = needs_key(), jax.random.normal(KEYS[2], (40, 3))
    # Dropout draws from the program's key, for each row, and is off in inference.
    first, second = (drawn(network, x, seed=s) for s in (0, 1))
    assert not np.allclose(first, second)

    def program(x):
        net = bmr.random_module("net", network, None)
        return net(x)

    with bmr.handlers.inference():
        outputs = [numpyro.handlers.seed(program, k)(x) for k in KEYS[:2]]
    np.testing.assert_array_equal(*outputs)
    np.testing.assert_allclose(
        outputs[0],
        jax.vmap(lambda x: eqx.nn.inference_mode(network)(x, key=KEYS[0]))(x),
        rtol=1e-5,
        atol=1e-6,
    )


class TakesRngs(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 6, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)
        self.second = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x, *, rngs):
        return self.second(self.dropout(nnx.relu(self.first(x)), rngs=rngs))


def test_random_streams_that_a_call_requires_are_made():
    network = TakesRngs(nnx.Rngs(0))
    network.second.kernel[...] = network.second.kernel[...].at[:4].set(0)
    x = jax.random.normal(KEYS[2], (5, 3))
    found = bmr.compact(network, x).network
    assert found.first.kernel.shape == (3, 2)
    network.eval()
    found.eval()
    np.testing.assert_allclose(
        found(x, rngs=nnx.Rngs(1)), network(x, rngs=nnx.Rngs(2)), rtol=1e-5, atol=1e-6
    )
    first, again, second = (drawn(network, x, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, second)


class Sowing(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 6, rngs=rngs)
        self.second = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x):
        h = nnx.relu(self.first(x))
        self.sow(nnx.Intermediate, "hidden", h)
        return self.second(h)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_what_a_call_sowed_is_left_out():
    network = Sowing(nnx.Rngs(0))
    network.second.kernel[...] = network.second.kernel[...].at[:4].set(0)
    x = jax.random.normal(KEYS[2], (5, 3))
    exact = network(x)
    small = bmr.compact(network, x).network
    assert small.first.kernel.shape == (3, 2)
    assert not hasattr(small, "hidden")
    assert hasattr(network, "hidden")
    np.testing.assert_allclose(small(x), exact, rtol=1e-5, atol=1e-6)
    assert len(bmr.structure.unit_groups(network, x).kinds[0].groups) == 6
    assert drawn(network, x).shape == (5, 2)


class DropBlock(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(nnx.relu(self.linear(x)))


class StackedNNX(nnx.Module):
    """Four layers with dropout made by vmap, run by scan."""

    def __init__(self, rngs):
        @nnx.split_rngs(splits=4)
        @nnx.vmap(in_axes=0, out_axes=0)
        def build(rngs):
            return DropBlock(rngs)

        self.blocks = build(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x, block):
            return block(x)

        return run(x, self.blocks)


def test_stacked_layers_with_dropout_draw_in_programs():
    network, x = StackedNNX(nnx.Rngs(0)), jax.random.normal(KEYS[2], (5, 4))
    first, again, second = (drawn(network, x, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, second)


class Stacked(eqx.Module):
    mlps: eqx.nn.MLP
    attention: eqx.nn.MultiheadAttention

    def __init__(self, key):
        keys = jax.random.split(key)
        self.mlps = eqx.filter_vmap(lambda k: eqx.nn.MLP(4, 4, 6, 2, key=k))(
            jax.random.split(keys[0], 3)
        )
        self.attention = eqx.filter_vmap(lambda k: eqx.nn.MultiheadAttention(2, 4, key=k))(
            jax.random.split(keys[1], 3)
        )

    def __call__(self, x):
        dynamic, static = eqx.partition((self.mlps, self.attention), eqx.is_array)

        def step(x, layer):
            mlp, attention = eqx.combine(layer, static)
            return jax.vmap(mlp)(x) + attention(x, x, x), None

        return jax.lax.scan(step, x, dynamic)[0]


def test_stacked_networks_of_equinox_get_smaller():
    network = Stacked(KEYS[0])
    network = eqx.tree_at(
        lambda n: (n.mlps.layers[1].weight, n.mlps.layers[2].weight),
        network,
        replace_fn=lambda w: w.at[:, :, :2].set(0),
    )
    network = eqx.tree_at(
        lambda n: n.attention.output_proj.weight,
        network,
        replace_fn=lambda w: w.at[:, :, :2].set(0),
    )
    found = bmr.compact(network, jnp.ones((3, 4)))
    small = found.network
    assert small.mlps.layers[1].weight.shape == (3, 4, 4)
    assert small.mlps.width_size == 4
    assert small.attention.num_heads == 1
    assert small.attention.query_proj.weight.shape == (3, 2, 4)
    assert small.attention.query_proj.out_features == 2
    x = jax.random.normal(KEYS[3], (3, 4))
    np.testing.assert_allclose(small(x), network(x), rtol=1e-5, atol=1e-5)


class Normalised(eqx.Module):
    first: eqx.nn.WeightNorm
    second: eqx.nn.WeightNorm

    def __init__(self, key):
        keys = jax.random.split(key)
        self.first = eqx.nn.WeightNorm(eqx.nn.Linear(3, 6, key=keys[0]))
        self.second = eqx.nn.WeightNorm(eqx.nn.Linear(6, 2, key=keys[1]))

    def __call__(self, x):
        return self.second(jax.nn.relu(self.first(x)))


def test_normalised_weights_at_zero_count_as_zero():
    network = Normalised(KEYS[0])
    zero = eqx.tree_at(
        lambda n: (n.first.layer.weight, n.second.layer.weight, n.first.layer.bias),
        network,
        (
            network.first.layer.weight.at[:2].set(0),
            network.second.layer.weight.at[0].set(0).at[:, :3].set(0),
            network.first.layer.bias.at[:2].set(0),
        ),
    )
    x = jax.random.normal(KEYS[3], (3,))
    assert np.isnan(zero(x)).any()  # 0 / 0 in the layer's own code
    found = bmr.compact(zero, jnp.ones(3)).network
    assert found.first.layer.weight.shape == (3, 3)
    h = jax.nn.relu(network.first(x))[3:]
    v = zero.second.layer.weight[1:, 3:]
    row = v * network.second.g[1:] / jnp.linalg.norm(v)
    expected = jnp.concatenate([jnp.zeros(1), row @ h]) + network.second.layer.bias
    np.testing.assert_allclose(found(x), expected, rtol=1e-5, atol=1e-6)


def test_what_the_norm_of_a_weight_reads_stays_with_a_reason():
    network = Normalised(KEYS[0])
    network = eqx.tree_at(
        lambda n: (n.first.layer.weight, n.first.layer.bias),
        network,
        replace_fn=lambda a: a.at[:2].set(0),
    )
    found = bmr.compact(network, jnp.ones(3))
    assert found.network.first.layer.weight.shape == (6, 3)
    assert "second.layer.weight: 2 of axis 1 stay: a sum over a weight" in str(found)


def test_normalised_weights_at_zero_train():
    network = Normalised(KEYS[0])
    weight = network.first.layer.weight.at[:2].set(0)
    network = eqx.tree_at(lambda n: n.first.layer.weight, network, weight)

    def loss(weight):
        data = {"net.first.layer.weight": weight}

        def program(x):
            return bmr.random_module("net", network, PRIOR)(x)

        seeded = numpyro.handlers.seed(program, KEYS[0])
        return jnp.sum(numpyro.handlers.substitute(seeded, data)(jnp.ones((4, 3))) ** 2)

    value, slope = jax.value_and_grad(loss)(weight)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()
    assert np.abs(slope[2:]).max() > 0

"""The weights that read each element of an input, and those that lead to an output."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bmrjax.structure.input_weights import input_weights
from bmrjax.zoo import NNXMLP


class Blocks(eqx.Module):
    """Standardises its input, and adds the output of each hidden layer to what the layer reads."""

    first: eqx.nn.Linear
    hidden: list
    last: eqx.nn.Linear
    mean: jax.Array

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.first = eqx.nn.Linear(6, 5, key=keys[0])
        self.hidden = [eqx.nn.Linear(5, 5, key=k) for k in keys[1:3]]
        self.last = eqx.nn.Linear(5, 2, key=keys[3])
        self.mean = jax.random.normal(keys[4], (6,))

    def __call__(self, x):
        h = jnp.tanh(self.first((jnp.ravel(x) - self.mean) / 2.0))
        for layer in self.hidden:
            h = h + jnp.tanh(layer(h))
        return self.last(h)


class WideAndDeep(eqx.Module):
    """Reads its input twice."""

    wide: eqx.nn.Linear
    deep: eqx.nn.MLP

    def __init__(self, key):
        self.wide = eqx.nn.Linear(6, 2, use_bias=False, key=key)
        self.deep = eqx.nn.MLP(6, 2, width_size=4, depth=1, activation=jnp.tanh, key=key)

    def __call__(self, x):
        return self.wide(x) + self.deep(x)


class Flax(nnx.Module):
    """A normalisation with running statistics before the first layer."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(6, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](jnp.tanh(self.layers[0](self.norm(x))))


def without(network, rng, fraction):
    """Return a network in which a part of the elements of its matrices are zero."""

    def thinned(a):
        if not (eqx.is_array(a) and jnp.issubdtype(a.dtype, jnp.floating) and a.ndim == 2):
            return a
        return a * (rng.uniform(size=a.shape) > fraction)

    if isinstance(network, nnx.Module):
        graph, state = nnx.split(network)
        return nnx.merge(graph, jax.tree.map(thinned, state))
    return jax.tree.map(thinned, network)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [Blocks, WideAndDeep, Flax, "shape"])
def test_an_input_without_weights_that_lead_on_does_not_move_the_outputs(kind, seed):
    rng = np.random.default_rng(seed)
    key = jax.random.key(seed)
    if kind is Flax:
        network = Flax(nnx.Rngs(seed))
        network.eval()
    else:
        network = (Blocks if kind == "shape" else kind)(key)
    network = without(network, rng, 0.75)
    x = jax.random.normal(key, (6,))
    if kind is Flax:
        found = input_weights(network, jnp.stack([x, -x, 2 * x]))
        moves = jax.jacobian(lambda x: network(x[None])[0])(x)
    else:
        found = input_weights(network, x.reshape(2, 3) if kind == "shape" else x)
        moves = jax.jacobian(network)(x)
    assert (
        found.weights.shape
        == found.leads.shape
        == (6 if kind is WideAndDeep else found.weights.shape[0], 6)
    )
    np.testing.assert_array_equal(found.leads.any(0), np.abs(np.asarray(moves)).max(0) > 0)


def test_the_seeds_have_inputs_of_both_kinds():
    networks = [
        without(Blocks(jax.random.key(s)), np.random.default_rng(s), 0.75) for s in range(4)
    ]
    used = [input_weights(network, jnp.ones(6)).leads.any(0) for network in networks]
    assert 0 < np.mean(used) < 1
    # Of some, weights are left that lead nowhere.
    left = [np.asarray(network.first.weight != 0).any(0) for network in networks]
    assert (np.array(left) & ~np.array(used)).any()


def test_weights_have_their_names_and_the_units_of_every_layer_that_reads():
    network = WideAndDeep(jax.random.key(0))
    found = input_weights(network, jnp.ones(6))
    assert found.names == ("wide.weight", "deep.layers.0.weight")
    expected = np.concatenate([network.wide.weight, network.deep.layers[0].weight])
    np.testing.assert_array_equal(found.weights, expected)
    kernel = NNXMLP(3, [5], 2, rngs=nnx.Rngs(0))
    found = input_weights(kernel, jnp.ones((2, 3)))
    np.testing.assert_array_equal(found.weights, kernel.layers[0].kernel[...].T)
    assert found.names == ("layers.0.kernel",)


class Reading(eqx.Module):
    """Reads its input as a function says."""

    linear: eqx.nn.Linear
    how: str = eqx.field(static=True)

    def __call__(self, x, *more):
        h = self.linear(jax.nn.softmax(x) if self.how == "softmax" else x)
        if self.how == "sum":
            return h + x.sum()
        if self.how == "product":
            return h * (x @ x)
        return (h, x) if self.how == "output" else h


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("softmax", "the operation 'reduce_max', which is not a dense layer, reads its input"),
        ("sum", "the operation 'reduce_sum', which is not a dense layer"),
        ("product", "its input is multiplied with what depends on it"),
        ("output", "its input is an output"),
        ("two", "it takes 2 arrays, and not one"),
    ],
)
def test_other_readers_are_refused(how, message):
    network = Reading(eqx.nn.Linear(3, 2, key=jax.random.key(0)), how)
    with pytest.raises(ValueError, match=message):
        input_weights(network, *[jnp.ones(3)] * (2 if how == "two" else 1))


def test_a_convolution_and_rows_of_a_sequence_are_refused():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="'conv_general_dilated', which is not a dense layer"):
        input_weights(eqx.nn.Conv2d(1, 2, 3, key=key), jnp.ones((1, 8, 8)))
    each = eqx.nn.Sequential([eqx.nn.Lambda(eqx.filter_vmap(eqx.nn.Linear(3, 2, key=key)))])
    with pytest.raises(ValueError, match="'dot_general', which is not a dense layer"):
        input_weights(each, jnp.ones((4, 3)))

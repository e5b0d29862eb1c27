"""Flax NNX modules that hold arrays which are no variables: data of the network, which no training moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import codec, nn, structure


class Centred(nnx.Module):
    """Two dense layers; what is subtracted before them, and multiplied between them, are plain arrays."""

    def __init__(self, rngs):
        self.mean = jnp.array([0.1, 0.2, 0.3])
        self.gain = jnp.linspace(1.0, 2.0, 8)
        self.first = nnx.Linear(3, 8, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x - self.mean)) * self.gain)


class Normed(nnx.Module):
    """A dense layer with normalised weights, whose scales Flax keeps as a plain array, and another."""

    def __init__(self, rngs):
        self.first = nnx.WeightNorm(nnx.Linear(3, 8, rngs=rngs), rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


MEAN = np.float32([0.1, 0.2, 0.3])
X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)


def test_a_plain_array_has_a_name_and_is_no_parameter():
    network = Centred(nnx.Rngs(0))

    arrays = structure.named_arrays(network)
    report = bmr.compact(network, X[:2])

    np.testing.assert_array_equal(arrays["mean"], MEAN)
    assert report.before.parameters == 3 * 8 + 8 + 8 + 1


def test_compact_cuts_a_plain_array_with_its_units():
    network = Centred(nnx.Rngs(0))
    network.last.kernel[...] = network.last.kernel[...].at[2:5].set(0.0)

    small = bmr.compact(network, X[:2]).network

    np.testing.assert_array_equal(small.gain, np.delete(network.gain, [2, 3, 4]))
    np.testing.assert_allclose(small(X), network(X), atol=1e-6)


def test_a_network_with_a_plain_array_is_reduced_and_keeps_it():
    network = Centred(nnx.Rngs(0))
    data = X, 2 * X[:, :1]

    found = bmr.reduce_network(network, data, keep=0.5, held_out=data)
    smaller = bmr.reduce_network(network, data, keep=0.5, held_out=data, units=True)

    np.testing.assert_array_equal(found.network.mean, MEAN)
    np.testing.assert_array_equal(smaller.network.mean, MEAN)
    assert smaller.network.gain.shape == smaller.network.first.bias.shape
    assert found.not_judged["mean"] == "it is not trained"
    assert set(found.masks) == {"first.kernel", "last.kernel"}


def test_scales_of_a_weight_norm_are_cut_with_its_units():
    network = Normed(nnx.Rngs(0))
    network.last.kernel[...] = network.last.kernel[...].at[2:5].set(0.0)

    small = bmr.compact(network, X[:2]).network

    (scale,) = small.first.scales.values()
    assert scale.shape == (5,)
    np.testing.assert_allclose(small(X), network(X), atol=1e-6)


@pytest.mark.parametrize("make", [Centred, Normed])
def test_weights_with_plain_arrays_are_saved_and_loaded(make, tmp_path):
    network, other = make(nnx.Rngs(0)), make(nnx.Rngs(1))
    plain = lambda path, leaf: isinstance(leaf, jax.Array)  # noqa: E731
    nnx.update(network, jax.tree.map(lambda x: x + 1, nnx.state(network, plain)))
    expected = network(X)

    nn.save_weights(network, tmp_path / "weights.safetensors")
    loaded = nn.load_weights(other, tmp_path / "weights.safetensors")

    np.testing.assert_allclose(loaded(X), expected, atol=1e-6)


@pytest.mark.parametrize("make", [Centred, Normed])
def test_networks_with_plain_arrays_are_exported(make, tmp_path):
    report = bmr.export.stablehlo(
        make(nnx.Rngs(0)), X[:2], tmp_path / "network", platforms=["cpu"], repeats=0
    )

    assert report.error < 1e-6


@pytest.mark.parametrize("make", [Centred, Normed])
def test_files_of_networks_with_plain_arrays_need_no_name_of_flax(make):
    network = make(nnx.Rngs(0))

    data = codec.encode(network, quantiser=codec.Uniform(1e-5), dense="float32")
    found = codec.decode(data, allow=[__name__])

    np.testing.assert_allclose(found(X), network(X), atol=1e-3)

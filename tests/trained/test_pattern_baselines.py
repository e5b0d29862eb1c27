"""Baselines within blocks of a pattern such as 2:4."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr

METHODS = ("magnitude", "wanda", "obd", "posterior_damage", "obs_uniform", "obs_global", "random")


@pytest.fixture(scope="module")
def perceptron():
    rng = np.random.default_rng(0)
    x, noise = (rng.normal(size=(400, n)).astype(np.float32) for n in (10, 2))
    network = eqx.nn.MLP(10, 2, 12, 1, key=jax.random.key(0))
    return network, (x, np.asarray(jax.vmap(network)(x)) + 0.05 * noise)


@pytest.mark.parametrize("method", METHODS)
def test_each_block_keeps_n_of_m(perceptron, method):
    network, data = perceptron
    (found,) = bmr.trained.reduce_by(network, data, method, pattern=(2, 4))

    first, second = (found.masks[f"layers.{i}.weight"] for i in (0, 1))
    assert (first[:, :8].reshape(12, 2, 4).sum(-1) == 2).all()
    assert first[:, 8:].all()  # two inputs make no block
    assert (second.reshape(2, 3, 4).sum(-1) == 2).all()
    weights = np.asarray(found.network.layers[0].weight)
    np.testing.assert_array_equal(weights != 0, first)
    assert found.kept == pytest.approx((12 * 6 + 2 * 6) / (12 * 10 + 2 * 12))


def test_magnitude_keeps_the_largest_of_each_block(perceptron):
    network, data = perceptron
    (found,) = bmr.trained.reduce_by(network, data, "magnitude", pattern=(1, 4))

    blocks = np.abs(np.asarray(network.layers[0].weight))[:, :8].reshape(12, 2, 4)
    mask = found.masks["layers.0.weight"][:, :8].reshape(12, 2, 4)
    np.testing.assert_array_equal(mask.argmax(-1), blocks.argmax(-1))
    np.testing.assert_array_equal(mask.sum(-1), 1)


def test_channels_of_a_convolution_are_the_block_at_each_place():
    network = eqx.nn.Conv2d(4, 3, 2, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(60, 4, 5, 5)).astype(np.float32)
    data = x, np.asarray(jax.vmap(network)(x)) + 0.1

    (found,) = bmr.trained.reduce_by(network, data, "wanda", pattern=(2, 4))

    np.testing.assert_array_equal(found.masks["weight"].sum(1), 2)


def test_optimal_brain_surgeon_is_nearer_than_magnitude(perceptron):
    network, (x, y) = perceptron

    def gap(method):
        (found,) = bmr.trained.reduce_by(network, (x, y), method, pattern=(2, 4))
        return float(jnp.mean((jax.vmap(found.network)(x) - y) ** 2))

    assert gap("obs_uniform") < 0.8 * gap("magnitude")
    assert gap("obs_uniform") == pytest.approx(gap("obs_global"), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give keep or a pattern"),
        ({"keep": [0.5], "pattern": (2, 4)}, "give keep or a pattern"),
        ({"pattern": (4, 2)}, "reduce_by: pattern is"),
        ({"pattern": (2.5, 4)}, "reduce_by: pattern is"),
        ({"pattern": 2}, "reduce_by: pattern is"),
        ({"pattern": "2:4"}, "reduce_by: pattern is"),
        ({"pattern": (2, 4), "units": True}, "single weights"),
    ],
)
def test_what_is_no_pattern_is_refused(perceptron, options, words):
    with pytest.raises(ValueError, match=words):
        bmr.trained.reduce_by(*perceptron, "magnitude", **options)


def test_one_share_is_to_be_a_list(perceptron):
    with pytest.raises(TypeError, match=r"list of shares, such as \[0.5\]"):
        bmr.trained.reduce_by(*perceptron, "magnitude", keep=0.5)

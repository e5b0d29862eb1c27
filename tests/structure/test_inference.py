"""Networks compiled for this machine: another form of the same operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bmrjax import zoo
from bmrjax.structure import compile_fastest, inference
from bmrjax.structure.shifted import shifted


def operation(function, *args):
    (eqn,) = jax.make_jaxpr(function)(*args).eqns
    return eqn


@pytest.mark.parametrize(
    "options",
    [
        {"window_strides": (1, 1), "padding": "VALID"},
        {"window_strides": (2, 1), "padding": ((1, 2), (0, 1)), "rhs_dilation": (1, 2)},
        {
            "window_strides": (1, 2),
            "padding": "SAME",
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        },
    ],
)
def test_convolutions_are_sums_of_shifted_images(options):
    last = "dimension_numbers" in options
    x = jax.random.normal(jax.random.key(0), (4, 9, 8, 2) if last else (4, 2, 9, 8))
    w = jax.random.normal(jax.random.key(1), (3, 3, 2, 5) if last else (5, 2, 3, 3))

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, **options)

    form = shifted(operation(convolve, x, w))
    np.testing.assert_allclose(form(x, w), convolve(x, w), atol=1e-5)


@pytest.mark.parametrize(("start", "combine"), [(-jnp.inf, lax.max), (0.0, lax.add)])
def test_pooling_is_over_shifted_images(start, combine):
    x = jax.random.normal(jax.random.key(0), (2, 3, 7, 6))

    def pool(x):
        padding = ((0, 0), (0, 0), (1, 1), (0, 1))
        return lax.reduce_window(x, start, combine, (1, 1, 3, 2), (1, 1, 2, 2), padding)

    np.testing.assert_allclose(shifted(operation(pool, x))(x), pool(x), atol=1e-6)


def test_other_operations_have_no_such_form():
    x, w = jnp.ones((2, 4, 8, 8)), jnp.ones((4, 2, 3, 3))

    def grouped(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", feature_group_count=2)

    def wide(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID")

    assert shifted(operation(grouped, x, w)) is None
    assert shifted(operation(wide, jnp.ones((2, 32, 8, 8)), jnp.ones((4, 32, 3, 3)))) is None
    assert shifted(operation(jnp.sin, x)) is None


@pytest.mark.parametrize("faster", [True, False])
def test_outputs_are_the_networks_in_either_form(faster, monkeypatch):
    monkeypatch.setattr(inference, "_faster", lambda *args: faster)
    network = zoo.LeNet5Caffe(conv_features=(2, 3), hidden=4, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, 1, 28, 28))
    found = compile_fastest(jax.vmap(network), x)(x)
    np.testing.assert_allclose(found, jax.vmap(network)(x), atol=1e-5)


def test_other_shapes_are_run_too(monkeypatch):
    monkeypatch.setattr(inference, "_faster", lambda *args: True)
    network = zoo.LeNet5Caffe(conv_features=(2, 3), hidden=4, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, 1, 28, 28))
    fast = compile_fastest(jax.vmap(network), x)
    np.testing.assert_allclose(fast(x[:2]), fast(x)[:2], atol=1e-5)

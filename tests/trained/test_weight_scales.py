"""How far weights of a trained network can move, and what rounding them to eight bits costs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.export.eight_bits import Int8, weights_to_round
from bmrjax.export.network_function import network_function


def cross_entropy(network, x, y):
    return -jax.nn.log_softmax(jax.vmap(network)(x))[jnp.arange(len(y)), y].mean()


@pytest.fixture(scope="module")
def digits():
    """A perceptron on digits, trained by gradient descent; its training and held-out rows."""
    data = bmr.data.load_dataset("digits")
    train, held_out = data.split_train(validation=0.25)
    mlp = eqx.nn.MLP(64, 10, width_size=32, depth=1, key=jax.random.key(0))
    network = eqx.nn.Sequential([eqx.nn.Lambda(jnp.ravel), mlp])

    @eqx.filter_jit
    def step(network):
        gradient = eqx.filter_grad(cross_entropy)(network, *train)
        return eqx.apply_updates(network, jax.tree.map(lambda g: -0.5 * g, gradient))

    for _ in range(100):
        network = step(network)
    return network, train, held_out


def test_scales_of_a_linear_regression_are_exact():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(500, 3)) * [1.0, 2.0, 0.5]).astype(np.float32)
    y = (x @ np.array([[1.0, 0.5, -2.0]]).T + rng.normal(size=(500, 1))).astype(np.float32)
    network = eqx.nn.Linear(3, 1, use_bias=False, key=jax.random.key(0))
    network = eqx.tree_at(lambda n: n.weight, network, jnp.asarray(np.linalg.lstsq(x, y)[0].T))

    found = bmr.reduce_network(network, (x, y), held_out=(x, y), keep=0.67)

    variance = np.mean((y - x @ np.asarray(network.weight).T) ** 2)
    (prior,) = found.prior_precision.values()
    precision = np.sum(np.square(x), 0) / variance / found.temperature + prior
    scale = found.posterior_scales()["weight"]
    np.testing.assert_allclose(
        scale, np.where(found.masks["weight"], precision**-0.5, 0), rtol=1e-3
    )


def test_the_cost_of_independent_errors_is_predicted(digits):
    network, train, held_out = digits
    found = bmr.reduce_network(network, train, held_out=held_out, keep=0.8)
    arrays = bmr.structure.named_arrays(found.network)
    scales = found.posterior_scales()
    rng = np.random.default_rng(0)
    rows = len(train[0])

    def cost(size):
        """Nats that errors of so many standard deviations cost, prior included."""
        moved, prior = [], 0.0
        for name, array in arrays.items():
            error = size * scales.get(name, 0.0) * rng.normal(size=array.shape)
            moved.append(array + error.astype(np.float32))
            prior += 0.5 * found.prior_precision.get(name, 0.0) * float(np.sum(error**2))
        dynamic, static = eqx.partition(found.network, eqx.is_array)
        other = eqx.combine(jax.tree.unflatten(jax.tree.structure(dynamic), moved), static)
        rise = cross_entropy(other, *train) - cross_entropy(found.network, *train)
        return rows * float(rise) / found.temperature + prior

    count = sum(int((scale > 0).sum()) for scale in scales.values())
    # Errors and their negatives, so that the slope at a network that is not at its minimum drops out.
    measured = np.mean([cost(sign * 0.05) for _ in range(20) for sign in (1, -1)])
    assert measured == pytest.approx(0.5 * 0.05**2 * count, rel=0.25)


def test_scales_say_which_arrays_are_rounded(digits):
    network, train, held_out = digits
    found = bmr.reduce_network(network, train, held_out=held_out, keep=0.5)
    made = network_function("test", found.network, held_out[0][0])
    scales = found.posterior_scales()

    one, none = (
        weights_to_round(made, set(made.names), Int8(posterior_scale=scales, nats=nats))
        for nats in (1.0, 1e-9)
    )

    assert set(one) == {name for name in scales if scales[name].size >= 256}
    assert not none
    for name, array in one.items():
        assert array.nats > 0
        assert not array.values[scales[name] == 0].any()


def test_scales_of_units_fit_the_smaller_network(digits):
    network, train, held_out = digits
    found = bmr.reduce_network(network, train, held_out=held_out, units=True, keep=0.5)
    arrays = bmr.structure.named_arrays(found.network)

    scales = found.posterior_scales()

    assert len(scales) == 2
    for name, scale in scales.items():
        assert scale.shape == arrays[name].shape
        assert np.isfinite(scale).all()
    made = network_function("test", found.network, held_out[0][0])
    assert weights_to_round(made, set(made.names), Int8(posterior_scale=scales, nats=1.0))

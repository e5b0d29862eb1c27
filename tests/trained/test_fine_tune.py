"""Training between rounds: masks are held, later rounds fit the trained network, and it pays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr

# Long for what they add; `make all-checks` runs them.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def given():
    """Return a network, and rows of which it knows the function but for their noise."""
    network = eqx.nn.MLP(4, 2, 16, 2, jnp.tanh, key=jax.random.key(0))
    network = jax.tree.map(lambda a: 2 * a if eqx.is_inexact_array(a) else a, network)
    x = np.asarray(jax.random.normal(jax.random.key(1), (800, 4)))
    y = np.asarray(jax.vmap(network)(jnp.asarray(x)))
    y = y + 0.05 * np.asarray(jax.random.normal(jax.random.key(2), y.shape))
    return network, (x[:600], y[:600]), (x[600:], y[600:])


def error(network, rows):
    return float(np.mean((np.asarray(jax.vmap(network)(jnp.asarray(rows[0]))) - rows[1]) ** 2))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("options", "most"), [({"keep": 0.1}, 0.85), ({"keep": 0.2, "units": True}, 1.25)]
)
def test_the_built_in_one_holds_masks_and_is_as_good_as_a_last_fit(given, options, most):
    """Without it, the weights are fitted to the outputs of the dense network, which have no noise."""
    network, data, held_out = given
    plain = bmr.reduce_network(network, data, held_out=held_out, **options)
    tuned = bmr.reduce_network(
        network,
        data,
        held_out=held_out,
        fine_tune=bmr.trained.FineTune(epochs=10, learning_rate=3e-3, batch_size=50),
        **options,
    )
    assert tuned.kept == pytest.approx(plain.kept, abs=0.02)
    exact = held_out[0], np.asarray(jax.vmap(network)(jnp.asarray(held_out[0])))
    assert error(tuned.network, exact) < most * error(plain.network, exact)
    measured = tuned.path[tuned.chosen].metrics["mse"]
    assert measured == pytest.approx(error(tuned.network, held_out), rel=0.02)
    if "units" not in options:
        for name, mask in tuned.masks.items():
            layer = tuned.network.layers[int(name.split(".")[1])]
            np.testing.assert_array_equal(np.asarray(layer.weight) != 0, mask)


def test_a_function_of_ones_own(given):
    network, data, held_out = given
    seen = []

    def nudge(network, masks):
        seen.append({name: mask.copy() for name, mask in masks.items()})
        for name, mask in masks.items():
            layer = network.layers[int(name.split(".")[1])]
            assert not np.asarray(layer.weight)[~mask].any()
        # Masks need not be held here.
        return jax.tree.map(lambda a: a + 1e-3 if eqx.is_inexact_array(a) else a, network)

    found = bmr.reduce_network(network, data, held_out=held_out, keep=0.5, fine_tune=nudge)
    assert len(seen) == len(found.path) - 1
    for masks, point in zip(seen, found.path[1:], strict=True):
        kept = sum(mask.sum() for mask in masks.values())
        assert kept == round(point.kept * sum(mask.size for mask in masks.values()))
    for name, mask in found.masks.items():
        np.testing.assert_array_equal(mask, seen[-1][name])
        layer = found.network.layers[int(name.split(".")[1])]
        assert not np.asarray(layer.weight)[~mask].any()


def test_what_is_refused(given):
    network, data, _ = given

    def smaller(network, masks):
        del masks
        return eqx.tree_at(lambda n: n.layers[0].bias, network, network.layers[0].bias[:-1])

    with pytest.raises(ValueError, match="with the arrays that it got"):
        bmr.reduce_network(network, data, keep=0.5, fine_tune=smaller)
    with pytest.raises(ValueError, match="learning_rate is positive"):
        bmr.trained.FineTune(learning_rate=0.0)
    with pytest.raises(ValueError, match="fine-tuning left weights that are not finite"):
        bmr.reduce_network(
            network, data, keep=0.5, fine_tune=bmr.trained.FineTune(learning_rate=1e30)
        )

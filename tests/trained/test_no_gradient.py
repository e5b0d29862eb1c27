"""Layers that no gradient reaches: left alone if they matter, removed if they do not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr

# Long for what they add; `make all-checks` runs them.
pytestmark = pytest.mark.slow

X = jax.random.normal(jax.random.key(0), (800, 6))


class Detached(eqx.Module):
    """A network behind features that pass no gradient, beside units that are dead."""

    features: eqx.nn.Linear
    dead: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self):
        self.features = eqx.nn.Linear(6, 16, key=jax.random.key(1))
        dead = eqx.nn.Linear(6, 4, key=jax.random.key(2))
        self.dead = eqx.tree_at(lambda layer: layer.bias, dead, jnp.full(4, -100.0))
        self.out = eqx.nn.Linear(20, 1, key=jax.random.key(3))

    def __call__(self, x):
        features = jax.lax.stop_gradient(jax.nn.relu(self.features(x)))
        return self.out(jnp.concatenate([features, jax.nn.relu(self.dead(x))]))


class Steps(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return jnp.round(3 * self.layer(x))


def data_of(network):
    noise = 0.1 * jax.random.normal(jax.random.key(4), (800, 1))
    return X, jax.vmap(network)(X) + noise


def test_what_is_behind_stop_gradient_is_left_alone_and_said_so():
    network = Detached()
    with pytest.warns(bmr.FitWarning, match="no-gradient: features.weight was left alone"):
        found = bmr.reduce_network(network, data_of(network), keep=0.5, held_out=data_of(network))
    assert sorted(found.masks) == ["dead.weight", "out.weight"]
    assert "no gradient" in found.not_judged["features.weight"]
    np.testing.assert_array_equal(found.network.features.weight, network.features.weight)
    assert found.masks["dead.weight"].sum() < 6  # nothing is lost with them


def in_steps(x):
    return jnp.round(3 * x) / 3


with_own = jax.custom_vjp(in_steps)
with_own.defvjp(lambda x: (in_steps(x), None), lambda _, g: (g,))


class Straight(eqx.Module):
    """A network behind steps that have a gradient, one of their own or one that JAX finds."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear
    own: bool

    def __call__(self, x):
        x = self.first(x)
        return self.last(with_own(x) if self.own else x + jax.lax.stop_gradient(in_steps(x) - x))


def test_the_gradient_that_the_finding_advises_is_used():
    layers = (
        eqx.nn.Linear(6, 8, key=jax.random.key(6)),
        eqx.nn.Linear(8, 1, key=jax.random.key(7)),
    )
    own, advised = (Straight(*layers, own) for own in (True, False))
    data = data_of(own)
    with pytest.warns(bmr.FitWarning, match=r"custom_vjp are not used"):
        found = bmr.reduce_network(own, data, keep=0.5, held_out=data)
    assert list(found.masks) == ["last.weight"]
    found = bmr.reduce_network(advised, data, keep=0.5, held_out=data)
    assert sorted(found.masks) == ["first.weight", "last.weight"]


def test_a_network_without_any_gradient_is_refused():
    network = Steps(eqx.nn.Linear(6, 1, key=jax.random.key(5)))
    for units in (False, True):
        with pytest.raises(ValueError, match="nothing to judge: no gradient of the loss"):
            bmr.reduce_network(network, data_of(network), keep=0.5, units=units)


class Half(eqx.Module):
    """Units of which half pass no gradient."""

    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __call__(self, x):
        h = jax.nn.relu(self.hidden(x))
        return self.out(jnp.concatenate([jax.lax.stop_gradient(h[:8]), h[8:]]))


def test_a_layer_with_some_outputs_behind_stop_gradient_is_left_alone_too():
    keys = jax.random.split(jax.random.key(6))
    network = Half(eqx.nn.Linear(6, 16, key=keys[0]), eqx.nn.Linear(16, 1, key=keys[1]))
    with pytest.warns(bmr.FitWarning, match="no-gradient: hidden.weight"):
        found = bmr.reduce_network(network, data_of(network), keep=0.6, held_out=data_of(network))
    assert sorted(found.masks) == ["out.weight"]


@pytest.mark.slow
def test_units_that_only_rare_rows_wake_do_not_hold_their_layer_back():
    keys = jax.random.split(jax.random.key(7))
    hidden = eqx.nn.Linear(6, 16, key=keys[0])
    hidden = eqx.tree_at(lambda layer: layer.bias, hidden, hidden.bias.at[:4].set(-20.0))
    network = eqx.nn.Sequential(
        [hidden, eqx.nn.Lambda(jax.nn.relu), eqx.nn.Linear(16, 1, key=keys[1])]
    )
    x, _ = data_of(network)
    rare = x.at[:40].multiply(100.0)  # rows to choose by, of which a few wake the four
    assert not bool(jnp.any(jax.vmap(hidden)(x)[:, :4] > 0))
    assert bool(jnp.any(jax.vmap(hidden)(rare)[:, :4] > 0))
    held_out = rare, jax.vmap(network)(rare)
    found = bmr.reduce_network(network, data_of(network), keep=0.6, held_out=held_out)
    assert len(found.masks) == 2
    assert not [each for each in found.findings if each.code == "no-gradient"]

"""Layers in and before a loop of unknown length: no gradient goes back through it, and they stay."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.trained.traced import trace

X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)


class Looped(eqx.Module):
    """A dense layer, another that a loop repeats, and a third behind the loop."""

    first: eqx.nn.Linear
    inside: eqx.nn.Linear
    last: eqx.nn.Linear
    kind: str

    def __init__(self, kind):
        keys = jax.random.split(jax.random.key(0), 3)
        self.first = eqx.nn.Linear(3, 8, key=keys[0])
        self.inside = eqx.nn.Linear(8, 8, key=keys[1])
        self.last = eqx.nn.Linear(8, 1, key=keys[2])
        self.kind = kind

    def __call__(self, x):
        _, h = eqxi.while_loop(
            lambda carry: carry[0] < 3,
            lambda carry: (carry[0] + 1, jnp.tanh(self.inside(carry[1]))),
            (jnp.array(0), self.first(x)),
            max_steps=16,
            kind=self.kind,
        )
        return self.last(h)


class Ends(eqx.Module):
    """A network whose outputs are those of the loop."""

    inner: Looped

    def __call__(self, x):
        return jax.lax.while_loop(lambda h: (h > 1).any(), lambda h: h / 2, self.inner.first(x))


def data_of(network):
    return X, np.asarray(jax.vmap(network)(X)) + 0.1


@pytest.mark.parametrize("kind", ["lax", "checkpointed"])
def test_layers_behind_the_loop_are_judged_and_others_are_not(kind):
    network = Looped(kind)

    found = bmr.reduce_network(network, data_of(network), keep=0.5, held_out=data_of(network))

    assert list(found.masks) == ["last.weight"]
    assert "no gradient goes back through" in found.not_judged["first.weight"]
    assert "inside a `while`" in found.not_judged["inside.weight"]
    np.testing.assert_array_equal(found.network.first.weight, network.first.weight)


def test_a_loop_of_bounded_length_is_looked_into():
    network = Looped("bounded")

    traced = trace(network, [X])

    assert {layer.name for layer in traced.layers} == {
        "first.weight",
        "inside.weight",
        "last.weight",
    }
    assert not traced.no_gradient


def test_a_network_with_nothing_behind_the_loop_is_refused_with_the_cause():
    network = Ends(Looped("lax"))

    with pytest.raises(ValueError, match=r"first.weight: a `while`, a loop .*; through a `scan`"):
        bmr.reduce_network(network, data_of(network), keep=0.5)


def test_fine_tuning_moves_what_is_behind_the_loop():
    network = Looped("lax")
    data = data_of(network)

    found = bmr.reduce_network(
        network, data, keep=0.5, held_out=data, fine_tune=bmr.trained.FineTune(epochs=1)
    )

    np.testing.assert_array_equal(found.network.inside.weight, network.inside.weight)
    np.testing.assert_array_equal(found.network.first.bias, network.first.bias)
    assert (np.asarray(found.network.last.bias) != network.last.bias).all()

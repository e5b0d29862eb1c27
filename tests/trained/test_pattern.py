"""Inputs that are in no block of a pattern stay, and it is said."""

import equinox as eqx
import jax
import numpy as np

import bmrjax as bmr
from bmrjax.trained.traced import trace
from bmrjax.trained.weight_rows import outside_blocks


def test_a_layer_of_fewer_inputs_than_a_block_stays_and_is_named():
    rng = np.random.default_rng(0)
    x, noise = (rng.normal(size=(400, n)).astype(np.float32) for n in (4, 1))
    network = eqx.nn.MLP(4, 1, 10, 2, key=jax.random.key(0))
    data = x, np.asarray(jax.vmap(network)(x)) + 0.05 * noise

    found = bmr.reduce_network(network, data, held_out=data, pattern=(4, 8))

    assert found.masks["layers.0.weight"].all()
    assert found.masks["layers.1.weight"].sum() == 10 * 6
    said = {name: why for name, why in found.not_judged.items() if "inputs" in name}
    rest = "the last 2 of 10 inputs stay: they make no whole block of 8 of the pattern 4:8"
    assert said == {
        "layers.0.weight[inputs]": "all 4 inputs stay: they are fewer than a block of 8 of the pattern 4:8",
        "layers.1.weight[inputs]": rest,
        "layers.2.weight[inputs]": rest,
    }


def test_channels_of_all_parts_of_a_wide_layer_are_counted():
    network = eqx.nn.Conv1d(1203, 2, 3, padding=1, key=jax.random.key(0))
    layers = trace(network, [np.ones((1, 1203, 4), np.float32)], 8).layers

    assert len(layers) > 1
    (why,) = outside_blocks(layers, (), (4, 8)).values()
    assert why.startswith("the last 3 of 1203 inputs stay")
    assert not outside_blocks(layers, set(range(len(layers))), (4, 8))

"""`compact_for_any`: what adds nothing, whatever the elements that are kept are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax import structure, zoo
from bmrjax.structure.compact import compact_for_any
from bmrjax.structure.network_arrays import parts_of

NETWORKS = {
    "perceptron": (lambda key: zoo.MLP(7, (16, 12), 3, key=key), (7,)),
    "LeNet-5-Caffe": (lambda key: zoo.LeNet5Caffe(key=key), (1, 28, 28)),
    "ViT": (
        lambda key: zoo.ViT(image_size=8, depth=1, width=16, heads=4, hidden=12, key=key),
        (1, 8, 8),
    ),
}


def filled(masks, shapes, seed):
    """Return arrays with any values where masks are True, and zeros elsewhere."""
    rng = np.random.default_rng(seed)
    return {
        name: np.where(masks[name], rng.standard_normal(shape), 0).astype(np.float32)
        for name, shape in shapes.items()
    }


def outputs(network, arrays, x):
    parts = parts_of(network)
    return parts.call([jnp.asarray(arrays[name]) for name in parts.names], [x])


@pytest.mark.parametrize("name", NETWORKS)
def test_one_smaller_network_stands_for_all_values(name):
    build, shape = NETWORKS[name]
    network = build(jax.random.key(0))
    units = structure.unit_groups(network, jnp.ones(shape))
    shapes = {path: a.shape for path, a in structure.named_arrays(network).items()}
    gone = np.zeros(units.count, bool)
    for kind in units.kinds:
        gone[list(kind.groups[: len(kind.groups) // 2])] = True
    masks = {path: ~gone[np.asarray(units.ids[f"net.{path}"])] for path in shapes}
    parts = parts_of(network)
    values = filled(masks, shapes, 0)
    masked = parts.build([jnp.asarray(values[path]) for path in parts.names])
    small = compact_for_any(masked, jnp.ones(shape), varies=masks)
    assert small.after.parameters < 0.8 * small.before.parameters
    x = jax.random.normal(jax.random.key(1), shape)
    for seed in range(3):
        values = filled(masks, shapes, seed)
        exact = outputs(network, values, x)
        assert float(jnp.std(exact)) > 1e-3
        found = outputs(small.network, small.cut(values), x)
        np.testing.assert_allclose(found, exact, atol=1e-5 * (1 + np.abs(exact).max()))


def test_zeros_that_training_can_change_are_no_reason():
    """`compact` takes what is zero now; here only masks count."""
    network = zoo.MLP(4, (8,), 2, key=jax.random.key(0))
    parts = parts_of(network)
    zeros = parts.build([jnp.zeros_like(a) for a in parts.arrays])
    assert compact_for_any(zeros, jnp.ones(4), varies={}).after.parameters == 58
    assert bmr.compact(zeros, jnp.ones(4)).after.parameters < 58


def test_a_layer_keeps_one_unit():
    network = zoo.MLP(4, (8,), 2, key=jax.random.key(0))
    parts = parts_of(network)
    nothing = {"layers.1.weight": jnp.zeros((2, 8), bool)}
    arrays = [a * (a.shape != (2, 8)) for a in parts.arrays]
    small = compact_for_any(parts.build(arrays), jnp.ones(4), varies=nothing)
    assert small.network.layers[0].weight.shape == (1, 4)

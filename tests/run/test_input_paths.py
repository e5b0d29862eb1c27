"""Which inputs of a chain of layers still lead to an output."""

import numpy as np
import pytest

from bmrjax.run.input_paths import input_paths


def test_a_weight_leads_on_only_through_kept_weights_of_every_later_layer():
    keep = {
        "net.layers.10.weight": np.array([[1, 0]], bool),
        "net.layers.0.weight": np.array([[1, 0, 1], [1, 1, 0]], bool),
        "net.layers.2.weight": np.array([[1, 0], [1, 1]], bool),
        "net.layers.2.bias": np.array([1, 1], bool),
    }
    paths = input_paths(keep)
    assert paths is not None
    assert paths.site == "net.layers.0.weight"
    # Only unit 0 of layer 2 is read, which reads only unit 0 of the first layer.
    np.testing.assert_array_equal(paths.leads, [[1, 0, 1], [0, 0, 0]])
    one = input_paths({"net.layers.0.weight": np.array([[0, 1]], bool)})
    np.testing.assert_array_equal(one.leads, [[0, 1]])


@pytest.mark.parametrize(
    "shapes",
    [{}, {"beta": (3,)}, {"net.layers.0.weight": (2, 3, 3, 3)}]
    + [{"net.layers.0.weight": (4, 3), "net.layers.1.weight": (1, 64)}],
)
def test_other_networks_have_none(shapes):
    assert input_paths({name: np.ones(shape, bool) for name, shape in shapes.items()}) is None

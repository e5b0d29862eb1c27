"""Anything but a network is refused by the name of the function, and with what to give instead."""

import equinox as eqx
import flax.linen
import jax
import numpy as np
import numpyro
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import codec, nn, structure

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = X[:, :1]


class Linen(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        return flax.linen.Dense(1)(flax.linen.relu(flax.linen.Dense(8)(x)))


def drawn(network, path):
    program = lambda: nn.random_module("net", network, bmr.priors.Flat())  # noqa: E731
    return numpyro.handlers.seed(program, jax.random.key(0))()


CALLS = {
    "reduce_network": lambda network, path: bmr.reduce_network(network, (X, Y)),
    "compact": lambda network, path: bmr.compact(network, X[0]),
    "unit_groups": lambda network, path: structure.unit_groups(network, X[0]),
    "named_arrays": lambda network, path: structure.named_arrays(network),
    "encode": lambda network, path: codec.encode(network),
    "save_weights": lambda network, path: nn.save_weights(network, path),
    "export.stablehlo": lambda network, path: bmr.export.stablehlo(network, X[0], path),
    r"random_module\('net'\)": drawn,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_linen_module_is_refused_with_what_makes_one_of_nnx(name, tmp_path):
    with pytest.raises(TypeError, match=rf"{name}: expected .* got Linen.*nnx\.bridge\.ToNNX"):
        CALLS[name](Linen(), tmp_path / "file")


def test_what_the_message_says_of_linen_works():
    module = Linen()
    variables = module.init(jax.random.key(1), X[:2])

    network = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(X[:2])
    nnx.update(network, variables["params"])
    small = bmr.compact(network, X[:2])

    np.testing.assert_allclose(small.network(X), module.apply(variables, X), atol=1e-6)


@pytest.fixture(scope="module")
def reductions():
    network = eqx.nn.MLP(4, 1, 4, 1, key=jax.random.key(0))
    data = X, Y
    return [
        bmr.reduce_network(network, data, keep=0.5, held_out=data, units=units)
        for units in (False, True)
    ]


@pytest.mark.filterwarnings("ignore::bmrjax.FitWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_reduction_is_refused_with_its_attribute(name, reductions, tmp_path):
    for found in reductions:
        with pytest.raises(TypeError, match=rf"{name}: expected .*Reduction. Give .*\.network"):
            CALLS[name](found, tmp_path / "file")

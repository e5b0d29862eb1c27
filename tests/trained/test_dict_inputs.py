"""Networks whose arguments are dicts and other pytrees of arrays, in `reduce_network`."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr

WORDS, LENGTH, WIDTH, ROWS = 12, 6, 8, 300


class Bert(eqx.Module):
    """Ids and a mask to the logits of two classes, by one layer of attention."""

    words: eqx.nn.Embedding
    places: jax.Array
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key, 6)
        self.words = eqx.nn.Embedding(WORDS, WIDTH, key=keys[0])
        self.places = 0.1 * jax.random.normal(keys[1], (LENGTH, WIDTH))
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[2])
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.up = eqx.nn.Linear(WIDTH, 16, key=keys[3])
        self.down = eqx.nn.Linear(16, WIDTH, key=keys[4])
        self.head = eqx.nn.Linear(WIDTH, 2, key=keys[5])

    def __call__(self, tokens: dict[str, Any]) -> Any:
        """Return logits; ``tokens`` has ``ids`` and ``mask``, as tokenisers give them."""
        seen = tokens["mask"].astype(bool)
        x = jax.vmap(self.words)(tokens["ids"]) + self.places
        x = x + self.attention(x, x, x, mask=jnp.broadcast_to(seen, (LENGTH, LENGTH)))
        h = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norm)(x)))
        x = x + jax.vmap(self.down)(h)
        weights = seen / seen.sum()
        return self.head(weights @ x)


def tokens(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, WORDS, (ROWS, LENGTH)),
        "mask": (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (ROWS, 1))).astype(int),
    }


class ByArrays(eqx.Module):
    """The same network, as one of two arguments."""

    network: Bert

    def __call__(self, ids: Any, mask: Any) -> Any:
        return self.network({"ids": ids, "mask": mask})


@pytest.mark.parametrize("units", [False, True])
def test_a_network_of_a_dict_is_reduced_as_one_of_its_arrays(units):
    network, given = Bert(jax.random.key(0)), tokens(0)
    y = np.asarray(jax.vmap(network)(given)).argmax(1)
    options: Any = {"units": units, "keep": 0.6, "seed": 1}
    found = bmr.reduce_network(network, (given, y), **options)
    arrays = (given["ids"], given["mask"])
    other = bmr.reduce_network(ByArrays(network), (arrays, y), **options)
    assert isinstance(found.network, Bert)
    assert found.kept == other.kept < 0.61
    outputs = jax.vmap(found.network)(given)
    np.testing.assert_allclose(outputs, jax.vmap(other.network)(*arrays), rtol=1e-5, atol=1e-6)
    if units:
        assert found.network_at(0).up.weight.shape == (16, WIDTH)
        assert found.compact.after.parameters < found.compact.before.parameters


class Graph(NamedTuple):
    """Nodes, and which of them are neighbours."""

    nodes: Any
    edges: Any


class Passing(nnx.Module):
    """One step of message passing between the nodes of each graph, beside a plain argument."""

    def __init__(self, rngs: nnx.Rngs):
        self.send, self.put = nnx.Linear(3, 12, rngs=rngs), nnx.Linear(12, 1, rngs=rngs)

    def __call__(self, graph: Graph, scale: Any) -> Any:
        heard = nnx.relu(jnp.einsum("bij,bjd->bid", graph.edges, self.send(graph.nodes)))
        return self.put(heard.sum(1)) * scale


class Alone(Passing):
    """The same without the plain argument."""

    def __call__(self, graph: Graph) -> Any:
        return super().__call__(graph, 1.0)


@pytest.mark.parametrize("alone", [False, True])
def test_a_named_tuple_is_one_argument(alone):
    rng = np.random.default_rng(0)
    nodes = rng.normal(size=(ROWS, 5, 3)).astype(np.float32)
    graph = Graph(nodes, (rng.random((ROWS, 5, 5)) < 0.4).astype(np.float32))
    network = (Alone if alone else Passing)(nnx.Rngs(0))
    inputs: Any = graph if alone else (graph, np.ones((ROWS, 1), np.float32))
    called = network(graph) if alone else network(*inputs)
    y = np.asarray(called) + 0.1 * rng.normal(size=(ROWS, 1)).astype(np.float32)
    found = bmr.reduce_network(network, (inputs, y), keep=0.5, units=True)
    assert found.kept <= 0.5
    assert found.network.send.kernel.shape[1] < 12


class TestWhatDoesNotFit:
    def test_a_leaf_without_rows_says_what_to_do(self):
        given = tokens(0) | {"layers": 3}
        with pytest.raises(TypeError, match="pytrees of such arrays; got int.* module around"):
            bmr.reduce_network(Bert(jax.random.key(0)), (given, np.zeros(ROWS, int)))

    def test_no_array(self):
        with pytest.raises(TypeError, match="inputs of data have no array"):
            bmr.reduce_network(Bert(jax.random.key(0)), ({}, np.zeros(ROWS, int)))

    def test_held_out_rows_of_another_structure(self):
        y, given = np.zeros(ROWS, int), tokens(0)
        held_out = {"ids": given["ids"], "seen": given["mask"]}
        with pytest.raises(ValueError, match="held_out must be like data.*'seen'.*'mask'"):
            bmr.reduce_network(Bert(jax.random.key(0)), (given, y), held_out=(held_out, y))

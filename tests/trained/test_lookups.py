"""Embeddings are judged by what looks them up; rows that nothing looks up stay as they are."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax.trained import lookups
from bmrjax.trained.traced import trace

KEY = jax.random.key(0)
TOKENS = 7


def one_by_one(table, ids):
    """Look words up as Equinox's embedding does."""
    return jax.vmap(table)(ids)


def first(table, ids):
    return table(ids[0])[None]


def taken(table, ids):
    """Look words up in two dimensions, by `jax.numpy.take`."""
    rows = jnp.take(table.weight, ids.reshape(2, -1), axis=0, mode="clip")
    return rows.reshape(-1, rows.shape[-1])


class Bag(eqx.Module):
    """Words in any order."""

    table: eqx.nn.Embedding
    head: eqx.nn.Linear
    look_up: Callable = eqx.field(static=True)

    def __init__(self, key, tokens=TOKENS, look_up=one_by_one):
        a, b = jax.random.split(key)
        self.table = eqx.nn.Embedding(tokens, 4, key=a)
        self.head = eqx.nn.Linear(4, 2, key=b)
        self.look_up = look_up

    def __call__(self, ids):
        return self.head(jnp.tanh(self.look_up(self.table, ids)).mean(0))


class Recurrent(eqx.Module):
    """Words with their places, in order."""

    table: eqx.nn.Embedding
    places: jax.Array
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b, c, d = jax.random.split(key, 4)
        self.table = eqx.nn.Embedding(TOKENS, 4, key=a)
        self.places = jax.random.normal(d, (20, 4))
        self.cell = eqx.nn.GRUCell(4, 4, key=b)
        self.head = eqx.nn.Linear(4, 2, key=c)

    def __call__(self, ids):
        xs = jax.vmap(self.table)(ids) + self.places[jnp.arange(len(ids))]
        return self.head(jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(4), xs)[0])


class Flax(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(TOKENS, 4, rngs=rngs)
        self.out = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, ids):
        return self.out(jnp.tanh(self.table(ids)).mean(1))


NETWORKS = {
    "bag": (lambda: Bag(KEY), "table.weight"),
    "one": (lambda: Bag(KEY, look_up=first), "table.weight"),
    "taken": (lambda: Bag(KEY, look_up=taken), "table.weight"),
    "recurrent": (lambda: Recurrent(KEY), "table.weight"),
    "flax": (lambda: Flax(nnx.Rngs(0)), "table.embedding"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_lookup_is_a_layer_with_the_rows_as_inputs(name):
    make, table = NETWORKS[name]
    ids = np.random.default_rng(0).integers(0, TOKENS, (3, 6))
    found = trace(make(), (ids,))
    (k,) = [k for k, layer in enumerate(found.layers) if layer.name == table]
    layer, arrays, row = found.layers[k], found.parts.arrays, (jnp.asarray(ids[1]),)
    assert layer.is_table
    assert layer.index.shape == (1, 4, TOKENS)
    outputs, ends = found.capture.run(arrays, row)
    plain = found.parts.call(arrays, row if name != "flax" else (row[0][None],))
    np.testing.assert_allclose(outputs, np.reshape(plain, outputs.shape), atol=1e-6)
    used = ids[1][:1] if name == "one" else ids[1]
    np.testing.assert_array_equal(ends[k][0][:, 0], np.eye(TOKENS)[used])
    _, back = found.capture.gradients(arrays, row)
    direction = jnp.arange(1.0, 3.0)
    exact = jax.grad(lambda a: jnp.vdot(direction, found.capture.outputs(a, row)))(arrays)
    mine = jnp.einsum("tgo,tgi->goi", back(direction)[k], ends[k][0])
    np.testing.assert_allclose(mine, exact[layer.array].ravel()[layer.index], atol=1e-6)
    if name == "recurrent":
        assert found.refused["places"] == "it is multiplied by what does not depend on the input"


def test_numbers_outside_of_a_table_are_looked_up_as_before():
    ids = np.array([[0, TOKENS + 3, -1, 2], [-20, TOKENS, 1, 1]])
    for network in (Flax(nnx.Rngs(0)), Bag(KEY), Bag(KEY, look_up=taken)):
        found = trace(network, (ids,))
        for row in ids:
            plain = network(row[None]) if isinstance(network, Flax) else network(row)
            mine = found.capture.outputs(found.parts.arrays, (jnp.asarray(row),))
            np.testing.assert_array_equal(mine, np.reshape(plain, mine.shape))


def test_tokens_may_be_bytes_and_the_table_larger():
    network = Bag(KEY, tokens=300, look_up=taken)
    ids = np.array([[3, 255, 0, 7]], np.uint8)
    found = trace(network, (ids,))
    mine = found.capture.outputs(found.parts.arrays, (jnp.asarray(ids[0]),))
    assert found.layers[0].is_table
    np.testing.assert_allclose(mine, network(ids[0]), atol=1e-6)


def test_a_table_loses_what_says_nothing_and_keeps_rows_that_nobody_looks_up():
    network = Bag(KEY, tokens=12)
    # Two of four features of each word are noise; the words 10 and 11 are in no data.
    weight = network.table.weight.at[:, 2:].multiply(0.01)
    network = eqx.tree_at(lambda n: n.table.weight, network, weight)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 10, (600, 5))
    y = np.asarray(jax.vmap(network)(ids))
    y = (y + 0.1 * rng.normal(size=y.shape)).astype(np.float32)
    found = bmr.reduce_network(network, (ids, y), keep=0.6, leave=("head.*",))
    mask = np.asarray(found.masks["table.weight"])
    assert mask[10:].all()
    assert mask[:10, :2].mean() > 0.9
    assert mask[:10, 2:].mean() < 0.4
    assert found.not_judged["table.weight[rows]"].startswith("2 of its rows")
    np.testing.assert_array_equal(found.network.table.weight[10:], weight[10:])
    assert found.kept == pytest.approx(0.6, abs=0.03)
    assert found.path[found.chosen].measured < 0.05
    (other,) = bmr.trained.reduce_by(network, (ids, y), "magnitude", keep=[0.5])
    assert np.asarray(other.network.table.weight[10:] != 0).all()


def test_a_table_that_is_large_or_read_otherwise_stays(monkeypatch):
    class Tied(eqx.Module):
        table: eqx.nn.Embedding

        def __call__(self, ids):
            return self.table.weight @ jnp.tanh(jax.vmap(self.table)(ids)).mean(0)

    ids = np.ones((1, 4), int)
    with pytest.raises(ValueError, match="two layouts"):
        trace(Tied(Bag(KEY).table), (ids,))
    monkeypatch.setattr(lookups, "LARGEST_TABLE", TOKENS - 1)
    found = trace(Bag(KEY), (ids,))
    assert "gather" in found.refused["table.weight"]

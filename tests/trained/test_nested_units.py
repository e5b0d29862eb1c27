"""Units that share an axis: heads and their dimensions, groups of a convolution and the channels within."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import attention
from flax import nnx

import bmrjax as bmr
from bmrjax.trained.traced import trace
from bmrjax.trained.unit_graph import unit_graph

KEYS = jax.random.split(jax.random.key(0), 4)
IMAGE = np.ones((2, 1, 8, 8), np.float32)


class Attends(eqx.Module):
    """Attention over five tokens, and a layer that reads their mean."""

    inner: eqx.Module
    head: eqx.nn.Linear

    def __call__(self, x):
        given = (x, x, x) if isinstance(self.inner, eqx.nn.MultiheadAttention) else (x,)
        return self.head((x + self.inner(*given)).mean(0))


class Grouped(eqx.Module):
    """A convolution in two groups of three channels, between two others."""

    first: eqx.nn.Conv2d
    grouped: eqx.nn.Conv2d
    last: eqx.nn.Linear

    def __init__(self):
        self.first = eqx.nn.Conv2d(1, 6, 3, padding=1, key=KEYS[0])
        self.grouped = eqx.nn.Conv2d(6, 8, 3, padding=1, groups=2, key=KEYS[1])
        self.last = eqx.nn.Linear(8, 3, key=KEYS[2])

    def __call__(self, x):
        x = self.grouped(jax.nn.relu(self.first(x)))
        return self.last(jax.nn.relu(x).mean((1, 2)))


def fused():
    return Attends(attention.FusedAttention(12, 3, key=KEYS[0]), eqx.nn.Linear(12, 4, key=KEYS[1]))


def separate():
    inner = eqx.nn.MultiheadAttention(3, 12, qk_size=4, vo_size=5, key=KEYS[0])
    return Attends(inner, eqx.nn.Linear(12, 4, key=KEYS[1]))


def released_by(network, x):
    """Return how many units there are of each kind, and the parameters that the first one takes along."""
    graph = unit_graph(trace(network, (x,), unroll=True))
    released = graph.parameters.released(np.zeros(len(graph.names), bool))
    return {
        kind: (int(mine.sum()), float(released[mine][0]))
        for i, kind in enumerate(graph.kinds)
        for mine in [graph.kind == i]
    }, graph


# Queries, keys and values of 4 x 12 and their biases, and the 12 x 4 that read them.
FUSED_HEAD = 3 * (48 + 4) + 48


@pytest.mark.parametrize("of", [attention.ViT, attention.GPT])
def test_heads_of_a_fused_layer(of):
    x = IMAGE if of is attention.ViT else np.array([[1, 4, 7, 2, 0]] * 2)
    kinds, graph = released_by(of(KEYS[0]), x)
    assert kinds["blocks.0.attn.qkv.weight"] == (3, FUSED_HEAD)
    assert "blocks.0.attn.qkv.weight[4:8,16:20,28:32]" in graph.names


def test_heads_of_a_fused_layer_of_flax():
    x = np.ones((2, 8, 8, 1), np.float32)
    kinds, _ = released_by(attention.NNXViT(nnx.Rngs(0)), x)
    assert kinds["attn.qkv.kernel"] == (3, FUSED_HEAD)


def test_heads_and_dimensions_of_values():
    kinds, graph = released_by(separate(), np.ones((2, 5, 12), np.float32))
    together = "inner.query_proj.weight + inner.key_proj.weight + inner.value_proj.weight"
    # Of a head: 4 x 12 for query and key, 5 x 12 for value, 12 x 5 that read it.
    assert kinds[together] == (3, 2 * 48 + 60 + 60)
    # Of a dimension in all three heads: 12 of each for value, and 12 that read it.
    assert kinds["inner.value_proj.weight"] == (5, 3 * (12 + 12))
    assert "inner.value_proj.weight[0:11:5]" in graph.names


def test_a_head_and_a_dimension_overlap():
    _, graph = released_by(separate(), np.ones((2, 5, 12), np.float32))
    names = np.array([name.startswith("inner.value") for name in graph.names])
    gone = np.zeros(len(names), bool)
    gone[np.flatnonzero(names)[0]] = True  # a dimension
    gone[np.flatnonzero(~names)[0]] = True  # a head
    whole = graph.parameters.total(np.zeros(len(names), bool))
    # What lies in both is counted once.
    assert whole - graph.parameters.total(gone) == 216 + 72 - (12 + 12)


def test_groups_and_channels_within():
    kinds, _ = released_by(Grouped(), np.ones((2, 1, 6, 6), np.float32))
    # A group: 3 x 9 + 3 before, 4 x 27 + 4 of its own, and 4 x 3 that read it.
    assert (2, 27 + 3 + 108 + 4 + 12) in kinds.values()
    # The same channel of both groups, before: 2 x (9 + 1), and 2 x 4 x 9 that read them.
    assert (3, 20 + 72) in kinds.values()
    # The same output of both groups: 2 x (27 + 1), and 2 x 3 that read them.
    assert (4, 56 + 6) in kinds.values()


def mean_squares(network, x):
    """Return what a network is to predict: its own outputs with noise."""
    y = np.asarray(jax.vmap(network)(jnp.asarray(x)))
    noise = np.random.default_rng(1).normal(size=y.shape)
    return (y + 0.2 * y.std() * noise).astype(np.float32)


@pytest.mark.parametrize(
    ("build", "shape", "keep"),
    [(fused, (5, 12), 0.75), (separate, (5, 12), 0.6), (Grouped, (1, 6, 6), 0.6)],
    ids=["fused", "separate", "grouped"],
)
def test_what_is_said_to_be_removed_is_removed(build, shape, keep):
    network = build()
    x = np.random.default_rng(0).normal(size=(400, *shape)).astype(np.float32)
    y = mean_squares(network, x)
    reduced = bmr.reduce_network(network, (x, y), units=True, keep=keep, progress=False)
    compact = reduced.compact
    assert reduced.kept <= keep
    assert reduced.kept == pytest.approx(compact.after.parameters / compact.before.parameters)
    gone = compact.before.parameters - compact.after.parameters
    assert reduced.removals()["parameters"].sum() == gone
    assert "not-cut" not in {finding.code for finding in reduced.findings}
    assert jax.vmap(reduced.network)(jnp.asarray(x)).shape == y.shape

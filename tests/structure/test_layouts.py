"""Heads, groups, branches and loops as people write them: found, and taken out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox.nn import Linear

import bmrjax as bmr

KEYS = jax.random.split(jax.random.key(0), 8)


class FusedAttention(eqx.Module):
    """Queries, keys and values of one layer; the layout says how its outputs are cut."""

    qkv: Linear
    proj: Linear
    num_heads: int = eqx.field(static=True)
    head_dim: int = eqx.field(static=True)
    layout: str = eqx.field(static=True)

    def __init__(self, width, heads, layout, *, key):
        keys = jax.random.split(key)
        self.num_heads, self.head_dim, self.layout = heads, width // heads, layout
        self.qkv = Linear(width, 3 * width, key=keys[0])
        self.proj = Linear(width, width, key=keys[1])

    def __call__(self, x):
        n, h, d = x.shape[0], self.num_heads, self.head_dim
        y = jax.vmap(self.qkv)(x)
        if self.layout == "3 h d":
            q, k, v = y.reshape(n, 3, h, d).transpose(1, 2, 0, 3)
        elif self.layout == "h 3 d":
            q, k, v = y.reshape(n, h, 3, d).transpose(2, 1, 0, 3)
        elif self.layout == "h 3 d, split":
            y = y.reshape(n, h, 3 * d).transpose(1, 0, 2)
            q, k, v = jnp.split(y, 3, axis=-1)
        elif self.layout == "split":
            q, k, v = (z.reshape(n, h, d).transpose(1, 0, 2) for z in jnp.split(y, 3, axis=-1))
        else:  # "h d 3", and the same by einsum
            y = y.reshape(n, h, d, 3)
            q, k, v = (y[..., i].transpose(1, 0, 2) for i in range(3))
        logits = jnp.einsum("hid,hjd->hij", q, k) * self.head_dim**-0.5
        mixed = jnp.einsum("hij,hjd->ihd", jax.nn.softmax(logits), v)
        return x + jax.vmap(self.proj)(mixed.reshape(n, -1))


LAYOUTS = ["3 h d", "h 3 d", "h 3 d, split", "split", "h d 3"]


def members(groups, site):
    """Return how many elements of a site are in each group that has several of them."""
    _, sizes = np.unique(np.asarray(groups.ids[site]), return_counts=True)
    return sizes[sizes > 1].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fused_heads_are_found(layout):
    network = FusedAttention(12, 3, layout, key=KEYS[0])
    groups = bmr.structure.unit_groups(network, jnp.ones((5, 12)))
    # A head is its queries, keys and values: 3 · 4 rows of 12 weights, and as many biases.
    assert members(groups, "net.qkv.weight") == [3 * 4 * 12] * 3
    assert members(groups, "net.qkv.bias") == [3 * 4] * 3
    reads = bmr.structure.unit_groups(network, jnp.ones((5, 12)), along="inputs")
    assert members(reads, "net.proj.weight") == [4 * 12] * 3
    inner = bmr.structure.unit_groups(network, jnp.ones((5, 12)), nested="inner")
    assert members(inner, "net.qkv.weight") == [3 * 3 * 12] * 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fused_heads_go(layout):
    network = FusedAttention(12, 3, layout, key=KEYS[0])
    # The second head is not read, nor the last dimension of any.
    columns = jnp.ones((3, 4)).at[1].set(0).at[:, 3].set(0).reshape(-1)
    network = eqx.tree_at(lambda n: n.proj.weight, network, network.proj.weight * columns)
    # Nor is it there in queries and keys.
    rows = {
        "3 h d": jnp.ones((3, 3, 4)).at[:2, :, 3].set(0),
        "h 3 d": jnp.ones((3, 3, 4)).at[:, :2, 3].set(0),
        "h 3 d, split": jnp.ones((3, 3, 4)).at[:, :2, 3].set(0),
        "split": jnp.ones((3, 3, 4)).at[:2, :, 3].set(0),
        "h d 3": jnp.ones((3, 4, 3)).at[:, 3, :2].set(0),
    }[layout].reshape(-1)
    network = eqx.tree_at(
        lambda n: (n.qkv.weight, n.qkv.bias),
        network,
        (network.qkv.weight * rows[:, None], network.qkv.bias * rows),
    )
    found = bmr.compact(network, jnp.ones((5, 12)))
    assert isinstance(found.network, FusedAttention)
    assert found.network.qkv.weight.shape == (3 * 2 * 3, 12)
    assert (found.network.num_heads, found.network.head_dim) == (2, 3)
    assert found.network.proj.in_features == 6
    x = jax.random.normal(KEYS[1], (5, 12))
    np.testing.assert_allclose(found.network(x), network(x), rtol=1e-5, atol=1e-5)


class Attention(eqx.Module):
    inner: eqx.nn.MultiheadAttention

    def __call__(self, x):
        return x + self.inner(x, x, x)


def multihead(**options):
    attention = eqx.nn.MultiheadAttention(3, 12, qk_size=4, vo_size=5, key=KEYS[0], **options)
    rows = jnp.ones((3, 4)).at[1].set(0).at[:, :2].set(0).reshape(-1)
    columns = jnp.ones((3, 5)).at[1].set(0).at[:, 4].set(0).reshape(-1)
    attention = eqx.tree_at(
        lambda n: (n.query_proj.weight, n.key_proj.weight, n.output_proj.weight),
        attention,
        replace_fn=lambda w: w * (columns if w.shape[1] == 15 else rows[:, None]),
    )
    return Attention(attention)


def test_heads_and_their_dimensions_go_from_equinox_attention():
    network = multihead()
    found = bmr.compact(network, jnp.ones((4, 12))).network
    inner = found.inner
    assert (inner.num_heads, inner.qk_size, inner.vo_size) == (2, 2, 4)
    assert inner.query_proj.weight.shape == inner.key_proj.weight.shape == (4, 12)
    assert inner.value_proj.weight.shape == (8, 12)
    assert inner.output_proj.weight.shape == (12, 8)
    x = jax.random.normal(KEYS[1], (4, 12))
    np.testing.assert_allclose(found(x), network(x), rtol=1e-5, atol=1e-5)


def test_dimensions_of_heads_are_found_in_equinox_attention():
    x = jnp.ones((4, 12))
    heads = bmr.structure.unit_groups(multihead(), x)
    assert members(heads, "net.inner.query_proj.weight") == [4 * 12] * 3
    assert members(heads, "net.inner.value_proj.weight") == [5 * 12] * 3
    query, value = (heads.ids[f"net.inner.{p}_proj.weight"][:, 0] for p in ("query", "value"))
    assert query[0] == value[0] != query[4] == value[5]
    inner = bmr.structure.unit_groups(multihead(), x, nested="inner")
    assert members(inner, "net.inner.query_proj.weight") == [3 * 12] * 4
    assert members(inner, "net.inner.value_proj.weight") == [3 * 12] * 5
    with pytest.raises(ValueError, match="nested must be 'outer' or 'inner', got 'heads'"):
        bmr.structure.unit_groups(multihead(), x, nested="heads")


class Branches(eqx.Module):
    first: Linear
    second: Linear

    def __call__(self, x, which):
        h = jax.lax.cond(
            which > 0, lambda h: jnp.tanh(h), lambda h: jax.nn.relu(h) * 2, self.first(x)
        )
        return self.second(h)


def test_units_within_branches_go():
    network = Branches(Linear(3, 6, key=KEYS[0]), Linear(6, 2, key=KEYS[1]))
    groups = bmr.structure.unit_groups(network, jnp.ones(3), jnp.array(1))
    assert members(groups, "net.first.weight") == [3] * 6
    network = eqx.tree_at(
        lambda n: n.second.weight, network, network.second.weight.at[:, :4].set(0)
    )
    # Zero whichever branch is taken.
    first = network.first
    first = eqx.tree_at(
        lambda n: (n.weight, n.bias), first, (first.weight.at[4].set(0), first.bias.at[4].set(0))
    )
    network = eqx.tree_at(lambda n: n.first, network, first)
    small = bmr.compact(network, jnp.ones(3), jnp.array(1)).network
    assert small.first.weight.shape == (1, 3)
    for which in (0, 1):
        x = jax.random.normal(KEYS[2], (3,))
        np.testing.assert_allclose(small(x, which), network(x, which), rtol=1e-5, atol=1e-6)


class Relaxed(eqx.Module):
    """A state that follows its own dynamics until it settles."""

    into: Linear
    field: Linear
    inner: Linear
    out: Linear

    def __call__(self, x):
        def step(carry):
            i, h = carry
            return i + 1, h + 0.1 * jnp.tanh(self.field(jnp.tanh(self.inner(h))))

        _, h = jax.lax.while_loop(
            lambda carry: (carry[0] < 7) & (jnp.abs(carry[1]).max() < 3), step, (0, self.into(x))
        )
        return self.out(h)


def relaxed():
    keys = iter(KEYS)
    return Relaxed(
        Linear(3, 5, key=next(keys)),
        Linear(6, 5, key=next(keys)),
        Linear(5, 6, key=next(keys)),
        Linear(5, 2, key=next(keys)),
    )


def test_units_within_loops_of_unknown_length_go():
    network = relaxed()
    groups = bmr.structure.unit_groups(network, jnp.ones(3))
    assert members(groups, "net.inner.weight") == [5] * 6
    network = eqx.tree_at(lambda n: n.field.weight, network, network.field.weight.at[:, 1:4].set(0))
    inner = network.inner
    inner = eqx.tree_at(
        lambda n: (n.weight, n.bias), inner, (inner.weight.at[0].set(0), inner.bias.at[0].set(0))
    )
    network = eqx.tree_at(lambda n: n.inner, network, inner)
    small = bmr.compact(network, jnp.ones(3)).network
    assert small.inner.weight.shape == (2, 5)
    for x in jax.random.normal(KEYS[2], (4, 3)):
        np.testing.assert_allclose(small(x), network(x), rtol=1e-5, atol=1e-6)


class Drift(eqx.Module):
    """Elements of the state become other than zero one turn after another."""

    into: Linear
    shift: jax.Array
    out: Linear

    def __call__(self, x):
        def step(carry):
            i, h = carry
            return i + 1, h + self.shift @ h

        _, h = jax.lax.while_loop(lambda carry: carry[0] < 9, step, (0, self.into(x)))
        return self.out(h)


def test_what_a_loop_fills_late_stays():
    into = Linear(2, 8, key=KEYS[0])
    into = eqx.tree_at(
        lambda n: (n.weight, n.bias),
        into,
        (into.weight.at[1:].set(0), jnp.zeros(8).at[0].set(1.0)),
    )
    network = Drift(into, jnp.eye(8, k=-1), Linear(8, 2, key=KEYS[1]))
    small = bmr.compact(network, jnp.ones(2)).network
    assert small.out.weight.shape == (2, 8)


class Grouped(eqx.Module):
    first: eqx.nn.Conv2d
    grouped: eqx.nn.Conv2d
    last: eqx.nn.Conv2d

    def __call__(self, x):
        return self.last(jax.nn.relu(self.grouped(jax.nn.relu(self.first(x)))))


def grouped():
    return Grouped(
        eqx.nn.Conv2d(1, 12, 3, key=KEYS[0]),
        eqx.nn.Conv2d(12, 8, 3, groups=4, key=KEYS[1]),
        eqx.nn.Conv2d(8, 2, 1, key=KEYS[2]),
    )


def test_whole_groups_of_a_convolution_go():
    network = grouped()
    x = jnp.ones((1, 7, 7))
    groups = bmr.structure.unit_groups(network, x)
    assert members(groups, "net.grouped.weight") == [2 * 3 * 9] * 4
    # Nothing reads the second group.
    network = eqx.tree_at(lambda n: n.last.weight, network, network.last.weight.at[:, 2:4].set(0))
    found = bmr.compact(network, x).network
    assert found.grouped.weight.shape == (6, 3, 3, 3)
    assert (found.grouped.groups, found.grouped.in_channels, found.grouped.out_channels) == (
        3,
        9,
        6,
    )
    assert found.first.weight.shape == (9, 1, 3, 3)
    # One filter of each group, and one channel that each of its filters reads.
    network = grouped()
    network = eqx.tree_at(
        lambda n: (n.last.weight, n.grouped.weight),
        network,
        (network.last.weight.at[:, 1::2].set(0), network.grouped.weight.at[:, 2].set(0)),
    )
    found = bmr.compact(network, x).network
    assert found.grouped.weight.shape == (4, 2, 3, 3)
    assert (found.grouped.groups, found.grouped.in_channels) == (4, 8)
    y = jax.random.normal(KEYS[3], (1, 7, 7))
    np.testing.assert_allclose(found(y), network(y), rtol=1e-4, atol=1e-5)


class Sums(eqx.Module):
    first: Linear
    second: Linear

    def __call__(self, x):
        return jax.vmap(self.second)(jnp.cumsum(jax.nn.relu(jax.vmap(self.first)(x)), axis=0))


def test_units_pass_a_cumulative_sum_along_another_axis():
    network = Sums(Linear(3, 6, key=KEYS[0]), Linear(6, 2, key=KEYS[1]))
    assert (
        members(bmr.structure.unit_groups(network, jnp.ones((4, 3))), "net.first.weight") == [3] * 6
    )
    network = eqx.tree_at(
        lambda n: n.second.weight, network, network.second.weight.at[:, :4].set(0)
    )
    small = bmr.compact(network, jnp.ones((4, 3))).network
    assert small.first.weight.shape == (2, 3)


class Twice(eqx.Module):
    first: Linear
    shared: Linear
    head: Linear

    def __call__(self, x):
        x = jax.nn.sigmoid(self.first(x))
        return self.head(jax.nn.sigmoid(self.shared(jax.nn.sigmoid(self.shared(x)))))


def test_a_layer_that_is_used_twice_takes_one_constant_up():
    network = Twice(
        *(Linear(a, b, key=k) for a, b, k in zip((3, 6, 6), (6, 6, 2), KEYS[:3], strict=True))
    )
    gone = np.array([1, 4])
    zero = lambda w: w.at[gone].set(0)  # noqa: E731
    network = eqx.tree_at(
        lambda n: (n.first.weight, n.first.bias, n.shared.weight, n.shared.bias),
        network,
        replace_fn=zero,
    )
    small = bmr.compact(network, jnp.ones(3)).network
    assert small.shared.weight.shape == (4, 4)
    for x in jax.random.normal(KEYS[4], (4, 3)):
        np.testing.assert_allclose(small(x), network(x), rtol=1e-5, atol=1e-6)
    # Constants that differ from use to use have no one place.
    network = eqx.tree_at(lambda n: n.first.bias, network, network.first.bias.at[1].set(2.0))
    found = bmr.compact(network, jnp.ones(3))
    assert found.network.shared.weight.shape == (6, 6)
    assert "no bias can take that up" in str(found)

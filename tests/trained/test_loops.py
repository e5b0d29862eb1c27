"""Layers within loops are found, and what goes through them is what goes through the loop written out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax.trained.losses import SquaredError
from bmrjax.trained.moments import Calibration
from bmrjax.trained.traced import trace

KEY = jax.random.key(0)


def scan(cell, h, xs, **settings):
    """Run a cell along a sequence; return all its states."""

    def turn(h, x):
        h = cell(x, h)
        return h, h

    return jax.lax.scan(turn, h, xs, **settings)[1]


class TwoWays(eqx.Module):
    """A cell that runs in both directions, and another on top of it, as speech models have."""

    first: eqx.nn.GRUCell
    second: eqx.nn.LSTMCell
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.first = eqx.nn.GRUCell(3, 4, key=a)
        self.second = eqx.nn.LSTMCell(8, 4, key=b)
        self.head = eqx.nn.Linear(4, 2, key=c)

    def __call__(self, xs):
        ways = [scan(self.first, jnp.zeros(4), xs, reverse=back) for back in (False, True)]
        xs = jnp.concatenate(ways, 1)
        (h, _), _ = jax.lax.scan(
            lambda h, x: (self.second(x, h), None), (jnp.zeros(4), jnp.zeros(4)), xs
        )
        return self.head(h)


class Nested(eqx.Module):
    """A loop in a loop, with a layer that each turn uses twice."""

    inner: eqx.nn.Linear
    outer: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.inner = eqx.nn.Linear(3, 3, key=a)
        self.outer = eqx.nn.Linear(3, 3, use_bias=False, key=b)

    def __call__(self, xs):
        def row(h, x):
            def cell(x, h):
                return jnp.tanh(self.inner(jnp.tanh(self.inner(h + x))))

            h = jnp.tanh(self.outer(scan(cell, h, x)[-1]))
            return h, h.sum()

        h, sums = jax.lax.scan(row, jnp.zeros(3), xs)
        return jnp.append(h, sums.mean())


class Convolved(eqx.Module):
    """A recurrent convolution in groups."""

    conv: eqx.nn.Conv2d

    def __init__(self, key):
        self.conv = eqx.nn.Conv2d(2, 2, 3, padding=1, groups=2, key=key)

    def __call__(self, xs):
        return scan(lambda x, h: jnp.tanh(self.conv(h) + x), jnp.zeros((2, 4, 4)), xs).ravel()


class Deep(eqx.Module):
    """Layers that a loop takes one after the other from a stack."""

    stack: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 3, key=key))(
            jax.random.split(a, 6)
        )
        self.head = eqx.nn.Linear(3, 2, key=b)

    def __call__(self, x):
        arrays, rest = eqx.partition(self.stack, eqx.is_array)

        def layer(h, of):
            return jnp.tanh(eqx.combine(of, rest)(h)), None

        return self.head(jax.lax.scan(layer, x, arrays)[0])


class DeepInTime(eqx.Module):
    """A stack of layers that a loop takes one after the other, in each turn of another loop."""

    deep: Deep

    def __call__(self, xs):
        turn = lambda h, x: (h + self.deep(h + x).sum(), None)  # noqa: E731 - as people write it
        return jax.lax.scan(turn, jnp.zeros(3), xs)[0]


class Carried(eqx.Module):
    """Weights that a loop carries along with its state, and leaves as they are."""

    weight: jax.Array

    def __call__(self, xs):
        def turn(carry, x):
            return (jnp.tanh(carry[1] @ carry[0] + x), carry[1]), None

        return jax.lax.scan(turn, (jnp.zeros(3), self.weight), xs)[0][0]


class Flax(nnx.Module):
    """Flax's own loop over a sequence."""

    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs))
        self.out = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, xs):
        return self.out(jnp.asarray(self.rnn(xs))[:, -1])


NETWORKS = {
    "two_ways": (lambda: TwoWays(KEY), (7, 3)),
    "deep_in_time": (lambda: DeepInTime(Deep(KEY)), (7, 3)),
    "nested": (lambda: Nested(KEY), (6, 5, 3)),
    "convolved": (lambda: Convolved(KEY), (5, 2, 4, 4)),
    "deep": (lambda: Deep(KEY), (3,)),
    "carried": (lambda: Carried(jax.random.normal(KEY, (3, 3))), (6, 3)),
    "flax": (lambda: Flax(nnx.Rngs(0)), (6, 3)),
}


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_within_loops_are_those_of_the_loops_written_out(name):
    make, shape = NETWORKS[name]
    network, x = make(), np.asarray(jax.random.normal(jax.random.key(1), (2, *shape)))
    found, flat = trace(network, (x,)), trace(network, (x,), unroll=True)
    if name not in ("deep", "deep_in_time", "carried"):
        assert any(use.loops for layer in found.layers for use in layer.uses)
        assert len(found.capture.jaxpr.eqns) < len(flat.capture.jaxpr.eqns) / 2

    def by_name(of):
        return {
            layer.name: (layer.index.tolist(), layer.bias and layer.bias[0], positions)
            for layer, positions in zip(of.layers, of.capture.positions(), strict=True)
        }

    assert by_name(found) == by_name(flat)
    assert not {"stack.weight", "deep.stack.weight", "weight"} & set(found.refused)

    def of(traced):
        @jax.jit
        def both(arrays, x):
            outputs, ends = traced.capture.run(arrays, (x,))
            _, back = traced.capture.gradients(arrays, (x,))
            gradients = back(jnp.cos(jnp.arange(outputs.size * 1.0)).reshape(outputs.shape))
            sums = [
                jnp.einsum("tgo,tgi->goi", g, x) for g, (x, _) in zip(gradients, ends, strict=True)
            ]
            return outputs, sums, [jnp.einsum("tgo,tgi->goi", z, x) for x, z in ends]

        outputs, *sums = both(traced.parts.arrays, jnp.asarray(x[1]))
        names = [layer.name for layer in traced.layers]
        return outputs, *(dict(zip(names, some, strict=True)) for some in sums)

    for mine, theirs in zip(of(found), of(flat), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), mine, theirs)


def test_chosen_positions_of_a_loop_are_those_of_all():
    x = np.asarray(jax.random.normal(jax.random.key(1), (1, 6, 5, 3)))
    found = trace(Nested(KEY), (x,))
    arrays, row = found.parts.arrays, (jnp.asarray(x[0]),)
    assert found.capture.positions() == [60, 6]
    some = [jnp.array([0, 7, 41]), jnp.array([1, 5])]
    _, ends = found.capture.run(arrays, row)
    _, chosen = found.capture.run(arrays, row, some)
    for (x, z), (mine, result), which in zip(ends, chosen, some, strict=True):
        np.testing.assert_array_equal(mine, x[which])
        np.testing.assert_array_equal(result, z[which])
    weights = {0: arrays[found.layers[0].array][None]}
    responses = found.capture.responses(arrays, row, weights, some)
    np.testing.assert_allclose(responses[0], chosen[0][1], atol=1e-6)


def test_moments_of_a_loop_are_those_of_the_loop_written_out():
    network = TwoWays(KEY)
    x = np.asarray(jax.random.normal(jax.random.key(1), (40, 7, 3)))
    found = []
    for unroll in (False, True):
        traced = trace(network, (x,), unroll=unroll)
        arrays = traced.parts.arrays
        shrunk = [0.9 * a for a in arrays]
        calibration = Calibration(
            traced.capture, SquaredError(0.1), arrays, (x,), np.zeros((40, 2)), key=KEY
        )
        names = [layer.name for layer in traced.layers]
        found.append(dict(zip(names, calibration.moments(shrunk), strict=True)))
    for name, mine in found[0].items():
        for a, b in zip(mine, found[1][name], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5 * np.abs(b).max())


class Long(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __call__(self, xs):
        return self.head(scan(self.cell, jnp.zeros(8), xs)[-1])


def test_a_cell_that_runs_for_hundreds_of_turns_is_reduced():
    """The cell hardly reads two of its four inputs."""
    a, b, c = jax.random.split(KEY, 3)
    network = Long(eqx.nn.GRUCell(4, 8, key=a), eqx.nn.Linear(8, 1, key=b))
    weights = network.cell.weight_ih.at[:, 2:].multiply(0.02)
    network = eqx.tree_at(lambda n: n.cell.weight_ih, network, weights)
    x = np.asarray(jax.random.normal(c, (300, 200, 4)))
    y = np.asarray(jax.vmap(network)(x)) + 0.1 * np.random.default_rng(0).normal(size=(300, 1))
    found = bmr.reduce_network(network, (x, y.astype(np.float32)), keep=0.6)
    assert set(found.masks) == {"cell.weight_ih", "cell.weight_hh", "head.weight"}
    mask = np.asarray(found.masks["cell.weight_ih"])
    assert mask[:, :2].mean() > mask[:, 2:].mean() + 0.3
    assert found.path[found.chosen].measured < 0.1


def test_a_learned_starting_state_leaves_the_loop_a_loop():
    class Learned(eqx.Module):
        cell: eqx.nn.GRUCell
        start: jax.Array

        def __call__(self, xs):
            return scan(self.cell, self.start, xs)[-1]

    found = trace(Learned(eqx.nn.GRUCell(3, 4, key=KEY), jnp.ones(4)), (np.ones((1, 9, 3)),))
    assert [layer.name for layer in found.layers] == ["cell.weight_ih", "cell.weight_hh"]
    assert all(use.loops for layer in found.layers for use in layer.uses)
    assert found.refused["start"] == "a loop of 9 turns carries it along"


def test_an_array_that_a_loop_reads_twice_over_has_a_reason():
    class Sliced(eqx.Module):
        both: jax.Array
        fine: jax.Array

        def __call__(self, x):
            def turn(h, row):
                return jnp.tanh(self.both @ h) * row.sum(), None

            return self.fine @ jax.lax.scan(turn, x, self.both)[0]

    weight = jax.random.normal(KEY, (200, 200)) / 14
    x = (np.ones((1, 200), np.float32),)
    found = trace(Sliced(weight, weight[:2]), x)
    assert [layer.name for layer in found.layers] == ["fine"]
    assert "a loop of 200 turns takes a part of it in each" in found.refused["both"]

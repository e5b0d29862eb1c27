"""Reduction by units: the evidence of groups, what makes and reads a unit, and smaller networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_trained_quadratic import DELTA, NOISE, log_evidence, regression

import bmrjax as bmr
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.moments import LayerMoments
from bmrjax.trained.prepare_network import prepare
from bmrjax.trained.quadratic import Quadratic
from bmrjax.trained.reduce_units import depends_on_inputs
from bmrjax.trained.remove_units import remove_units
from bmrjax.trained.shared_posterior import SharedPosterior
from bmrjax.trained.traced import trace
from bmrjax.trained.unit_graph import Resource, UnitGraph, unit_graph
from bmrjax.trained.unit_options import UnitOptions
from bmrjax.trained.unit_path import UnitWalk
from bmrjax.trained.weight_rows import rows_of


def graph_of(*readers, inputs=None):
    """Return units without names that are read by the inputs of layers."""
    count = 1 + max(int(np.max(units)) for units in readers)
    nothing = Resource([(1.0, [np.arange(count)[:, None]])], count)
    return UnitGraph(
        names=[f"u[{i}]" for i in range(count)],
        kind=np.zeros(count, int),
        kinds=["u"],
        arrays=[frozenset()],
        readers=[[np.asarray(units)] for units in readers],
        outputs=[],
        parameters=nothing,
        flops=nothing,
        refused={},
    )


def quadratic(x, weights, strengths=None):
    count = len(x)
    a = x.T @ x / count
    strengths = np.full(len(weights), NOISE**-2) if strengths is None else strengths
    moments = LayerMoments(a[None], (a @ weights.T)[None], strengths[None])
    return Quadratic(moments, 0, count, DELTA, weights, has_bias=False)


class TestGroups:
    """The evidence of groups of weights against conjugate regression, where it is exact."""

    # Two units of two inputs each, one of one, and an input that is of none.
    UNITS = np.array([0, 1, 0, -1, 2, 1])

    @pytest.mark.parametrize("stay", [0, 1, 2])
    def test_evidence_and_weights_are_exact(self, stay):
        x, y, weights = regression(np.random.default_rng(3))
        graph, gone = graph_of(self.UNITS), np.zeros(3, bool)
        loss = quadratic(x, weights)
        before = SharedPosterior(loss, np.ones(6, bool))
        removed = remove_units(
            graph,
            [(0, before)],
            gone,
            graph.parameters,
            stay,
            least=np.zeros(1, int),
            may_empty=lambda _: True,
        )
        assert len(removed.unit) == 3 - stay == gone.sum()
        keep = ~graph.inputs(0, gone)
        exact = sum(
            log_evidence(x[:, keep], y[:, o]) - log_evidence(x, y[:, o])
            for o in range(len(weights))
        )
        total = float(np.sum(removed.log_occam - removed.saliency))
        np.testing.assert_allclose(total, exact, rtol=1e-9)
        here = x[:, keep]
        precision = here.T @ here / NOISE**2 + DELTA * np.eye(here.shape[1])
        expected = np.linalg.solve(precision, here.T @ y / NOISE**2).T
        layer = TracedLayer("w", 0, np.arange(18).reshape(1, 3, 6), None, ())
        rows = rows_of([layer], [weights])
        walk = UnitWalk([layer], graph, set(), [], *[None] * 6)
        predicted = walk.refit(rows, [[loss]], gone, {(0, 0): before})
        for o, row in enumerate(rows):
            np.testing.assert_allclose(row.weights[keep], expected[o], rtol=1e-8)
            assert not row.weights[~keep].any()
        change = np.stack([row.weights for row in rows]) - weights
        np.testing.assert_allclose(
            predicted, 0.5 * np.sum((x @ change.T) ** 2) / NOISE**2, rtol=1e-8
        )

    def test_the_first_to_go_is_the_cheapest(self):
        x, _, weights = regression(np.random.default_rng(4))
        graph, gone = graph_of(self.UNITS), np.zeros(3, bool)
        covariance = np.linalg.inv(x.T @ x / NOISE**2 + DELTA * np.eye(6))
        costs = []
        for unit in range(3):
            where = np.flatnonzero(self.UNITS == unit)
            c, w = covariance[np.ix_(where, where)], weights[:, where]
            costs.append(0.5 * np.sum(w * np.linalg.solve(c, w.T).T))
        before = SharedPosterior(quadratic(x, weights), np.ones(6, bool))
        removed = remove_units(
            graph, [(0, before)], gone, graph.parameters, 2,
            least=np.zeros(1, int), may_empty=lambda _: True,
        )  # fmt: skip
        assert removed.unit.tolist() == [int(np.argmin(costs))]
        np.testing.assert_allclose(removed.saliency, [min(costs)], rtol=1e-9)

    def test_layers_that_read_the_same_unit_add_up(self):
        x, _, weights = regression(np.random.default_rng(5))
        graph = graph_of(self.UNITS, self.UNITS)
        loss = quadratic(x, weights)
        posterior = SharedPosterior(loss, np.ones(6, bool))
        found = []
        for layers in ([(0, posterior)], [(0, posterior), (1, posterior)]):
            removed = remove_units(
                graph, layers, np.zeros(3, bool), graph.parameters, 0,
                least=np.zeros(1, int), may_empty=lambda _: True,
            )  # fmt: skip
            found.append(removed)
        assert found[0].unit.tolist() == found[1].unit.tolist()
        np.testing.assert_allclose(2 * found[0].saliency, found[1].saliency, rtol=1e-9)
        np.testing.assert_allclose(2 * found[0].log_occam, found[1].log_occam, rtol=1e-9)

    def test_strengths_are_binned_within_a_few_percent(self):
        rng = np.random.default_rng(6)
        x, _, weights = regression(rng, outputs=60)
        strengths = np.exp(rng.normal(size=60))
        posterior = SharedPosterior(quadratic(x, weights, strengths), np.ones(6, bool))
        assert len(posterior.levels) <= 8
        assert sorted(np.concatenate([rows for _, rows in posterior.levels])) == list(range(60))
        removed = remove_units(
            graph_of(self.UNITS), [(0, posterior)], np.zeros(3, bool),
            graph_of(self.UNITS).parameters, 2, least=np.zeros(1, int), may_empty=lambda _: True,
        )  # fmt: skip
        where = np.flatnonzero(removed.unit[0] == self.UNITS)
        exact = 0.0
        for w, s in zip(weights, strengths, strict=True):
            c = np.linalg.inv(s * (x.T @ x) + DELTA * np.eye(6))[np.ix_(where, where)]
            exact += 0.5 * w[where] @ np.linalg.solve(c, w[where])
        assert removed.saliency[0] == pytest.approx(exact, rel=0.05)

    def test_at_least_and_kinds_and_what_cannot_empty(self):
        x, _, weights = regression(np.random.default_rng(7))
        posterior = SharedPosterior(quadratic(x, weights), np.ones(6, bool))
        for least, alive, expected in ((2, True, 1), (0, False, 2), (0, True, 3)):
            graph, gone = graph_of(self.UNITS), np.zeros(3, bool)
            remove_units(
                graph, [(0, posterior)], gone, graph.parameters, 0,
                least=np.array([least]), may_empty=lambda _, alive=alive: alive,
            )  # fmt: skip
            assert gone.sum() == expected


class Residual(eqx.Module):
    """Two convolutions with a skip connection, pooled, and a linear layer."""

    stem: eqx.nn.Conv2d
    inner: list[eqx.nn.Conv2d]
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.stem = eqx.nn.Conv2d(1, 6, 3, padding=1, key=keys[0])
        self.inner = [
            eqx.nn.Conv2d(6, 8, 3, padding=1, key=keys[1]),
            eqx.nn.Conv2d(8, 6, 3, padding=1, key=keys[2]),
        ]
        self.head = eqx.nn.Linear(6, 3, key=keys[3])

    def __call__(self, x):
        x = jax.nn.relu(self.stem(x))
        x = jax.nn.relu(x + self.inner[1](jax.nn.relu(self.inner[0](x))))
        return self.head(x.mean((1, 2)))


class Depthwise(nnx.Module):
    """A pointwise and a depthwise convolution with normalisation, as in MobileNet."""

    def __init__(self, rngs):
        self.up = nnx.Conv(2, 8, (1, 1), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.deep = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.down = nnx.Conv(8, 3, (1, 1), rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.up(x)))
        return self.down(nnx.relu(self.deep(x))).mean((1, 2))


class Attention(nnx.Module):
    """Attention and a linear layer."""

    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=8, decode=False, deterministic=True, rngs=rngs
        )
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x + self.attention(x)).mean(1)


def graph_and_trace(network, x):
    traced = trace(network, (x,))
    return unit_graph(traced), traced


class TestGraph:
    """Which units there are, and what goes with one, counted by hand."""

    def test_a_residual_network(self):
        graph, _ = graph_and_trace(Residual(jax.random.key(0)), np.ones((2, 1, 5, 5), np.float32))
        assert sorted(np.bincount(graph.kind).tolist()) == [6, 8]
        stream = int(np.argmin(np.bincount(graph.kind)))
        assert graph.kinds[stream] == "stem.weight + inner.1.weight"
        none = np.zeros(14, bool)
        assert graph.parameters.total(none) == 54 + 6 + 432 + 8 + 432 + 6 + 18 + 3
        assert graph.flops.total(none) == 2 * (25 * (54 + 432 + 432) + 18)
        unit = int(np.flatnonzero(graph.kind != stream)[0])
        assert graph.names[unit] == "inner.0.weight[0]"
        # A filter of 54 weights and its bias, and the 54 that read it.
        assert graph.parameters.released(none)[unit] == 54 + 1 + 54
        assert graph.flops.released(none)[unit] == 2 * 25 * 108
        gone = none.copy()
        gone[unit] = True
        assert graph.parameters.total(gone) == graph.parameters.total(none) - 109
        on_stream = int(np.flatnonzero(graph.kind == stream)[0])
        assert graph.parameters.released(gone)[on_stream] == 9 + 1 + 63 + 63 + 1 + 3

    def test_depthwise_filters_go_with_their_channels(self):
        network = Depthwise(nnx.Rngs(0))
        graph, _ = graph_and_trace(network, np.ones((2, 4, 4, 2), np.float32))
        assert np.bincount(graph.kind).tolist() == [8]
        none = np.zeros(8, bool)
        # Pointwise 2 + 1, normalisation 2, depthwise 9 + 1, and 3 that read it.
        assert graph.parameters.released(none).tolist() == [18.0] * 8
        assert graph.flops.released(none).tolist() == [2 * 16 * (2 + 9 + 3)] * 8

    def test_heads(self):
        graph, _ = graph_and_trace(Attention(nnx.Rngs(0)), np.ones((2, 5, 8), np.float32))
        head = next(i for i, kind in enumerate(graph.kinds) if "query" in kind)
        assert "key" in graph.kinds[head]
        assert "value" in graph.kinds[head]
        assert np.sum(graph.kind == head) == 4
        head = int(np.flatnonzero(graph.kind == head)[0])
        released = graph.parameters.released(np.zeros(len(graph.names), bool))
        # Query, key and value of 8 x 2 and their biases, and the 2 x 8 that read a head.
        assert released[head] == 3 * (16 + 2) + 16

    def test_a_network_without_units_says_so(self):
        network = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        with pytest.raises(ValueError, match="no unit of the network can be judged"):
            graph_and_trace(network, np.ones((2, 3), np.float32))


def teacher(network, shape, rows=500, seed=0):
    """Return inputs and noisy outputs of a network."""
    x = np.asarray(jax.random.normal(jax.random.key(seed), (rows, *shape)))
    y = np.asarray(network(jnp.asarray(x)))
    noise = np.asarray(jax.random.normal(jax.random.key(seed + 1), y.shape))
    return x, y + 0.1 * y.std() * noise


@pytest.fixture(scope="module")
def residual():
    network = Residual(jax.random.key(1))
    data = teacher(jax.vmap(network), (1, 5, 5))
    return network, data, bmr.reduce_network(network, data, units=True, keep=0.5)


class TestNetworks:
    """Networks of several libraries come out smaller, and as good as it says."""

    def test_a_smaller_network_of_the_same_class(self, residual):
        network, data, found = residual
        assert type(found.network) is Residual
        assert found.network.inner[0].weight.shape[0] == found.network.inner[1].weight.shape[1]
        sizes = [x.size for x in jax.tree.leaves(eqx.filter(found.network, eqx.is_array))]
        assert sum(sizes) == found.compact.after.parameters == round(found.kept * 959)
        assert found.kept <= 0.5
        whole = found.network_at(found.chosen, smaller=False)
        assert whole.stem.weight.shape == network.stem.weight.shape
        x = jnp.asarray(data[0][:50])
        np.testing.assert_allclose(jax.vmap(found.network)(x), jax.vmap(whole)(x), atol=1e-5)

    def test_receipts_add_up(self, residual):
        _, _, found = residual
        receipts = found.removals()
        assert receipts["parameters"].sum() == 959 - round(found.kept * 959)
        point = found.path[found.chosen]
        assert receipts["delta_f"].sum() == pytest.approx(point.delta_f)
        assert receipts["measured"].iloc[-1] == point.measured
        layers = found.layers()
        assert (layers["before"] - layers["after"]).sum() == len(receipts)
        assert receipts["unit"].is_unique
        assert "units stay" in repr(found)
        assert found.table()["chosen"].sum() == 1

    def test_compensation_beats_what_is_cut_and_left_alone(self):
        network = eqx.nn.MLP(4, 2, 24, 1, jnp.tanh, key=jax.random.key(5))
        x, y = teacher(jax.vmap(network), (4,))
        found = bmr.reduce_network(network, (x, y), units=True, keep=0.5)
        whole = found.network_at(found.chosen, smaller=False)
        cut = jax.tree.map(
            lambda old, new: jnp.where(new == 0, new, old) if eqx.is_array(old) else old,
            network,
            whole,
        )

        def error(network):
            return float(np.mean((np.asarray(jax.vmap(network)(jnp.asarray(x))) - y) ** 2))

        assert found.network.layers[0].weight.shape[0] <= 12
        assert error(found.network) < 0.2 * error(cut)

    def test_a_unit_out_of_use_is_removed_where_all_others_are_needed(self):
        network = eqx.nn.MLP(4, 3, 24, 1, jnp.tanh, key=jax.random.key(5))
        last = network.layers[1].weight.at[:, 7].set(0.0)
        network = eqx.tree_at(lambda n: n.layers[1].weight, network, last)
        x = np.asarray(jax.random.normal(jax.random.key(1), (400, 4)))
        y = jax.vmap(network)(x) + 1e-4 * jax.random.normal(jax.random.key(2), (400, 3))
        found = bmr.reduce_network(network, (x, np.asarray(y)), units=True, smallest=0.8)
        assert found.removals()["unit"].tolist() == ["layers.0.weight[7]"]

    def test_options(self):
        network = eqx.nn.MLP(4, 2, 24, 2, key=jax.random.key(2))
        data = teacher(jax.vmap(network), (4,))
        found = bmr.reduce_network(
            network, data, units=UnitOptions(limits={"layers.1.*": 0.6}, round_to=8), flops=0.4
        )
        widths = dict(found.layers()[["units", "after"]].itertuples(index=False))
        assert widths == {"layers.0.weight": 8, "layers.1.weight": 16}
        assert found.flops <= 0.4
        left = bmr.reduce_network(network, data, units=True, keep=0.7, leave=("layers.2.*",))
        np.testing.assert_array_equal(left.network.layers[2].weight, network.layers[2].weight)
        assert left.network.layers[0].weight.shape[0] < 24
        assert left.not_judged["inputs of layers.2.weight"] == "a layer that has them is left alone"

    def test_units_that_only_an_array_that_is_not_judged_reads_are_named(self):
        class Network(eqx.Module):
            first: eqx.nn.Linear
            twice: jax.Array
            last: eqx.nn.MLP

            def __call__(self, x):
                h = self.twice @ jnp.tanh(self.first(x))
                return self.last(jnp.tanh(h) @ self.twice)

        keys = jax.random.split(jax.random.key(0), 3)
        network = Network(
            eqx.nn.Linear(3, 6, key=keys[0]),
            jax.random.normal(keys[1], (6, 6)),
            eqx.nn.MLP(6, 2, 5, 1, key=keys[2]),
        )
        found = unit_graph(trace(network, (np.ones((1, 3), np.float32),)))
        assert found.refused["inputs of twice"] == "no layer that can be judged sums over them"

    @pytest.mark.slow
    def test_it_beats_other_choices_of_as_many_parameters(self):
        network = eqx.nn.MLP(4, 2, 24, 2, jnp.tanh, key=jax.random.key(6))
        data = teacher(jax.vmap(network), (4,))
        found = bmr.reduce_network(network, data, units=True, keep=0.4)
        x = jnp.asarray(data[0])

        def error(network):
            return float(np.mean((np.asarray(jax.vmap(network)(x)) - data[1]) ** 2))

        for method in bmr.trained.UNIT_METHODS:
            (other,) = bmr.trained.reduce_by(network, data, method, keep=[0.4], units=True)
            assert 0.3 < other.kept <= 0.4
            count = sum(a.size for a in jax.tree.leaves(eqx.filter(other.network, eqx.is_array)))
            assert count == round(other.kept * (4 * 24 + 24 + 24 * 24 + 24 + 48 + 2))
            assert 0.3 < other.flops < 0.45
            limit = 1.0 if method == "obs_global" else 0.5
            assert error(found.network) < limit * error(other.network), method
        with pytest.raises(ValueError, match="methods for units are magnitude, l1"):
            bmr.trained.reduce_by(network, data, "wanda", keep=[0.4], units=True)
        with pytest.raises(ValueError, match="methods for single weights are magnitude, wanda"):
            bmr.trained.reduce_by(network, data, "l1", keep=[0.4])

    def test_what_cannot_be_reached_is_a_finding(self):
        network = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
        data = teacher(jax.vmap(network), (3,), rows=300)
        with pytest.warns(bmr.FitWarning, match="keep=0.2 cannot be reached"):
            found = bmr.reduce_network(
                network,
                data,
                held_out=data,
                units=UnitOptions(limits={"layers.0.*": 0.7}),
                keep=0.2,
            )
        assert found.network.layers[0].weight.shape == (6, 3)
        assert [finding.code for finding in found.findings] == ["not-reached"]

    def test_a_block_may_go_but_not_what_all_depends_on(self):
        network = Residual(jax.random.key(1))
        data = teacher(jax.vmap(network), (1, 5, 5), rows=60)
        ready = prepare(network, data)
        graph = unit_graph(ready.traced)
        inner = graph.kind == np.argmax(np.bincount(graph.kind))
        assert depends_on_inputs(ready, graph, inner)
        assert not depends_on_inputs(ready, graph, ~inner)

    @pytest.mark.slow
    def test_flax(self):
        for network, shape in (
            (Depthwise(nnx.Rngs(0)), (4, 4, 2)),
            (Attention(nnx.Rngs(0)), (5, 8)),
        ):
            network.eval()
            data = teacher(network, shape, rows=300)
            found = bmr.reduce_network(network, data, units=True, keep=0.8, held_out=data)
            assert type(found.network) is type(network)
            assert found.compact.after.parameters == round(
                found.kept * found.compact.before.parameters
            )
            before = found.network_at(found.chosen, smaller=False)
            x = jnp.asarray(data[0][:20])
            np.testing.assert_allclose(found.network(x), before(x), atol=1e-4)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"flops": 0.5}, "flops is an option of units=True"),
            ({"units": UnitOptions}, "units is True, False or bmr.trained.UnitOptions"),
            ({"units": True, "pattern": (2, 4)}, "pattern is of single weights"),
            ({"units": True, "flops": 1.5}, "flops is a share between 0 and 1"),
            ({"units": True, "flops": 0.5, "keep": 0.5}, "one of keep, flops and lose_at_most"),
            ({"units": UnitOptions({"nowhere": 0.5})}, "no units are on an array called"),
            ({"units": UnitOptions({"layers.*": 1.0})}, "no unit can be removed. Of 6 that"),
            ({"fine_tune": 3}, "fine_tune is bmr.trained.FineTune"),
        ],
    )
    def test_what_is_refused(self, options, match):
        network = eqx.nn.MLP(3, 2, 6, 1, key=jax.random.key(0))
        data = teacher(jax.vmap(network), (3,), rows=60)
        with pytest.raises((ValueError, TypeError), match=match):
            bmr.reduce_network(network, data, **options)


def test_options_of_units_are_checked_where_they_are_given():
    with pytest.raises(ValueError, match="round_to is a positive integer, got 0"):
        UnitOptions(round_to=0)
    with pytest.raises(ValueError, match=r"least shares between 0 and 1, got 2.0 for 'layers"):
        UnitOptions({"layers.*": 2.0})


def test_a_network_that_cannot_get_smaller_says_so():
    """The size of the state is a number in the code, so that the arrays of the cell keep theirs."""

    class Fixed(eqx.Module):
        cell: eqx.nn.GRUCell
        head: eqx.nn.Linear

        def __call__(self, xs):
            h, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(6), xs)
            return self.head(h)

    a, b, c = jax.random.split(jax.random.key(0), 3)
    network = Fixed(eqx.nn.GRUCell(3, 6, key=a), eqx.nn.Linear(6, 2, key=b))
    x = jax.random.normal(c, (800, 4, 3))
    y = jax.vmap(network)(x) + 0.05 * jax.random.normal(c, (800, 2))
    with pytest.warns(bmr.FitWarning, match="not-cut: The network has 200 of 200 parameters"):
        found = bmr.reduce_network(network, (x, y), units=True, keep=0.6)
    assert [finding.code for finding in found.findings] == ["not-cut"]
    assert "its code does not run without them" in str(found.compact)

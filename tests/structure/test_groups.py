"""Groups that stay or go whole: found in a network, judged by a criterion, taken by a capped round."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import criteria, reduction, structure, zoo
from bmrjax.criteria import SitePosteriors, smallest_magnitude_first
from bmrjax.criteria.reduce_once import reduce_once

KEY = jax.random.key(0)


def members(groups):
    """Return group number to {site: number of its elements}."""
    found = {}
    for name, ids in groups.ids.items():
        for number, size in zip(*np.unique(np.asarray(ids), return_counts=True), strict=True):
            found.setdefault(int(number), {})[name] = int(size)
    return list(found.values())


def test_a_neuron_is_its_weights_and_its_bias():
    groups = structure.unit_groups(zoo.MLP(4, (3,), 2, key=KEY), jnp.ones(4))
    found = members(groups)
    assert found[:3] == [{"net.layers.0.weight": 4, "net.layers.0.bias": 1}] * 3
    # The network's outputs cannot go: each of their weights is on its own.
    assert len(found) == groups.count == 3 + 2 * 3 + 2


def test_what_reads_a_unit():
    found = members(
        structure.unit_groups(zoo.MLP(4, (3,), 2, key=KEY), jnp.ones(4), along="inputs")
    )
    assert found[:4] == [{"net.layers.0.weight": 3}] * 4
    assert [g for g in found if "net.layers.1.weight" in g] == [{"net.layers.1.weight": 2}] * 3


def test_filters_and_heads():
    found = members(structure.unit_groups(zoo.LeNet5(key=KEY), jnp.ones((1, 28, 28)), name="f"))
    assert found.count({"f.convs.1.weight": 6 * 25, "f.convs.1.bias": 1}) == 16
    vit = zoo.ViT(image_size=8, depth=1, width=8, heads=2, hidden=6, key=KEY)
    found = members(structure.unit_groups(vit, jnp.ones((1, 8, 8))))
    parts = ("query", "key", "value")
    head = {f"net.blocks.0.attention.{p}.weight": 4 * 8 for p in parts}
    head |= {f"net.blocks.0.attention.{p}.bias": 4 for p in parts}
    assert found.count(head) == 2


def test_flax_networks():
    network = zoo.NNXMLP(4, (3,), 2, rngs=nnx.Rngs(0))
    found = members(structure.unit_groups(network, jnp.ones((2, 4))))
    assert found.count({"net.layers.0.kernel": 4, "net.layers.0.bias": 1}) == 3
    with pytest.raises(ValueError, match="along must be"):
        structure.unit_groups(network, jnp.ones((2, 4)), along="rows")
    with pytest.raises(ValueError, match="groups: NNXMLP does not run on"):
        structure.unit_groups(network, jnp.ones((2, 5)))


def posterior():
    keys = jax.random.split(KEY, 4)
    return {
        "a.weight": reduction.Normal(jax.random.normal(keys[0], (6, 3)), jnp.full((6, 3), 0.5)),
        "a.bias": reduction.Normal(jax.random.normal(keys[1], (6,)), jnp.full(6, 0.5)),
        "b.weight": reduction.Normal(jax.random.normal(keys[2], (2, 6)), jnp.full((2, 6), 0.4)),
    }


LAYERS = {"a.weight": "a", "a.bias": "a", "b.weight": "b"}


def prior(q):
    return {n: reduction.Normal(jnp.zeros_like(s.loc), jnp.ones_like(s.loc)) for n, s in q.items()}


def rows():
    row = jnp.arange(6)
    ids = {
        "a.weight": jnp.tile(row[:, None], (1, 3)),
        "a.bias": row,
        "b.weight": 6 + jnp.arange(12).reshape(2, 6),
    }
    return criteria.Groups(ids, 18)


@pytest.mark.parametrize("removed", ["excluded", "at prior"])
def test_groups_of_one_are_elements(removed):
    q = posterior()
    sizes = np.cumsum([0, *(s.loc.size for s in q.values())])
    ids = {
        n: jnp.arange(a, a + s.loc.size).reshape(s.loc.shape)
        for (n, s), a in zip(q.items(), sizes, strict=False)
    }
    alone = criteria.SpikeAndSlab(removed=removed)
    grouped = criteria.SpikeAndSlab(removed=removed, groups=criteria.Groups(ids, int(sizes[-1])))
    keep = {name: jnp.ones(s.loc.shape, bool) for name, s in q.items()}
    keep["a.weight"] = keep["a.weight"].at[0].set(False)
    expected, found = (c(SitePosteriors(q, prior(q), LAYERS), keep) for c in (alone, grouped))
    for name in q:
        for title, values in expected.statistics.items():
            np.testing.assert_allclose(found.statistics[title][name], values[name], rtol=1e-5)
    assert grouped.mask_log_prob(found.keep, layers=LAYERS) == pytest.approx(
        alone.mask_log_prob(expected.keep, layers=LAYERS)
    )


def test_the_fixed_point_counts_groups():
    q = posterior()
    criterion = criteria.SpikeAndSlab(groups=rows(), num_steps=50)
    found = criterion(SitePosteriors(q, prior(q), LAYERS))
    delta_f = rows().sum(found.delta_f)[:6]
    alpha, beta = (
        float(found.statistics["alpha"]["a.bias"]),
        float(found.statistics["beta"]["a.bias"]),
    )
    assert alpha + beta == pytest.approx(2 + 6)
    digamma = jax.scipy.special.digamma
    inclusion = jax.nn.sigmoid(digamma(alpha) - digamma(beta) - delta_f)
    np.testing.assert_allclose(found.statistics["inclusion_prob"]["a.bias"], inclusion, rtol=1e-3)
    np.testing.assert_array_equal(
        found.keep["a.weight"], jnp.tile(found.keep["a.bias"][:, None], (1, 3))
    )


@pytest.mark.parametrize("fraction", [0.02, 0.2, 0.5, 1.0])
def test_a_capped_round_takes_whole_groups(fraction):
    q = posterior()
    q["a.weight"] = reduction.Normal(0.2 * q["a.weight"].loc, q["a.weight"].scale)
    q["a.bias"] = reduction.Normal(0.2 * q["a.bias"].loc, q["a.bias"].scale)
    criterion = criteria.Shrinkage(groups=rows())
    keep = {name: jnp.ones(s.loc.shape, bool) for name, s in q.items()}
    read = SitePosteriors(q, prior(q), LAYERS)
    found = reduce_once(
        criterion, smallest_magnitude_first, read, keep, None, jnp.asarray(fraction)
    )
    bias = np.asarray(found.keep["a.bias"])
    np.testing.assert_array_equal(found.keep["a.weight"], np.tile(bias[:, None], (1, 3)))
    assert 0 < int(found.removed) <= int(found.proposed)
    if fraction < 0.1:  # a cap below one group still takes one
        lengths = np.sqrt(
            np.square(q["a.weight"].loc).sum(1) + np.square(np.asarray(q["a.bias"].loc))
        )
        ungrouped = np.abs(q["b.weight"].loc).min()
        assert int(found.removed) == (4 if lengths.min() < ungrouped else 1)


@pytest.mark.slow
def test_neurons_go_whole_while_training_and_then_physically():
    data = bmr.data.load_dataset("digits")
    network = zoo.MLP(64, (60,), 10, key=KEY)
    groups = structure.unit_groups(network, jnp.ones(64))
    result = bmr.sparsify(
        bmr.programs.classifier(network, bmr.priors.Flat()),
        data.train,
        key=KEY,
        criterion=criteria.Shrinkage(groups=groups),
        schedule=bmr.schedules.Verified(wait=6, refit=2),
        num_epochs=20,
        progress=False,
    )
    weight, bias = (np.asarray(result.keep[f"net.layers.0.{p}"]) for p in ("weight", "bias"))
    np.testing.assert_array_equal(weight, np.tile(bias[:, None], (1, 64)))
    assert 0 < bias.sum() < 60
    batch = data.train[0][:2]
    found = result.compact(batch, drop_inputs=False)["net"]
    small, dense = found.network, result.network(batch)["net"]
    assert isinstance(small.layers[0], eqx.nn.Linear)
    assert small.layers[0].weight.shape == (bias.sum(), 64)
    logits = [jax.vmap(n)(data.test[0]) for n in (small, dense)]
    np.testing.assert_allclose(*logits, atol=1e-4)
    rows = found.latency(batch_sizes=(1, 8), repeats=3)
    assert [row.batch_size for row in rows] == [1, 8]
    assert all(row.before > 0 and row.after > 0 for row in rows)


def test_a_weight_that_is_added_to_a_product_is_read_as_that_is() -> None:
    class LowRank(eqx.Module):
        w1: jax.Array
        w2: jax.Array
        a: jax.Array
        b: jax.Array

        def __call__(self, x):
            return (self.b @ self.a + self.w2) @ jnp.tanh(self.w1 @ x)

    network = LowRank(jnp.ones((3, 2)), jnp.ones((2, 3)), jnp.ones((1, 3)), jnp.ones((2, 1)))
    made, read = (
        bmr.structure.unit_groups(network, jnp.ones(2), along=along).ids
        for along in ("outputs", "inputs")
    )
    assert (made["net.w1"] == jnp.arange(3)[:, None]).all()
    assert len(set(np.asarray(made["net.w2"]).ravel().tolist())) == 6
    columns = np.asarray(read["net.w2"])
    assert (columns[0] == columns[1]).all()
    assert len(set(columns[0].tolist())) == 3


def test_a_mask_does_not_hide_which_axis_is_read() -> None:
    class Masked(eqx.Module):
        m: jax.Array
        w: jax.Array
        h: jax.Array
        o: jax.Array

        def __call__(self, x):
            return (self.h * self.o) @ jnp.tanh((self.m * self.w) @ x)

    square = jnp.ones((3, 3))
    network = Masked(square, square, square, square)
    ids = bmr.structure.unit_groups(network, jnp.ones(3)).ids
    assert (ids["net.w"] == ids["net.m"]).all()
    assert len(set(np.asarray(ids["net.o"]).ravel().tolist())) == 9
    ids = bmr.structure.unit_groups(network, jnp.ones(3), along="inputs").ids
    for name in ("net.o", "net.h", "net.w", "net.m"):
        assert (ids[name][0] == ids[name][1]).all(), name


def test_features_of_any_network_that_flattens_are_read() -> None:
    network = nnx.Sequential(
        nnx.Linear(4, 3, rngs=nnx.Rngs(0)), jnp.tanh, nnx.Linear(3, 2, rngs=nnx.Rngs(1))
    )
    first = bmr.structure.unit_groups(network, jnp.ones((2, 4)), along="inputs").ids[
        "net.layers.0.kernel"
    ]
    assert (first == first[:, :1]).all()
    images = bmr.zoo.MLP(4, (3,), 2, key=jax.random.key(0))
    ids = bmr.structure.unit_groups(images, jnp.ones((1, 2, 2)), along="inputs").ids
    assert (ids["net.layers.0.weight"][0] == ids["net.layers.0.weight"][1]).all()


class _Spectral(eqx.Module):
    """Two layers with a Fourier transform between them, which keeps the units of both."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, x):
        return self.second(jnp.fft.irfft(jnp.fft.rfft(self.first(x))[:3], n=8))


def test_units_that_nothing_can_take_out_say_why():
    one, two = jax.random.split(jax.random.key(0))
    network = _Spectral(eqx.nn.Linear(4, 8, key=one), eqx.nn.Linear(8, 2, key=two))
    found = structure.unit_groups(network, jnp.ones(4))
    assert found.kinds == ()
    assert found.stays == (("net.first.weight", "'fft' reads them"),)
    assert "net.first.weight: its units stay: 'fft' reads them" in repr(found)
    assert structure.unit_groups(eqx.nn.MLP(4, 2, 8, 1, key=one), jnp.ones(4)).stays == ()

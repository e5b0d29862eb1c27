"""Layers that sum over many inputs are taken in parts, which together are the layer."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax.trained import CrossEntropy, SquaredError, wide_layers
from bmrjax.trained.eliminate import fit
from bmrjax.trained.layers import TracedLayer, layer_weights
from bmrjax.trained.moments import Calibration
from bmrjax.trained.path import quadratics_of
from bmrjax.trained.traced import trace
from bmrjax.trained.unit_graph import unit_graph
from bmrjax.trained.weight_rows import filled, rows_of
from bmrjax.trained.wide_layers import in_parts


@pytest.fixture
def narrow(monkeypatch):
    """Take layers in parts of nine inputs or so."""
    monkeypatch.setattr(wide_layers, "WIDEST", 12)
    monkeypatch.setattr(wide_layers, "NARROWEST_PART", 9)
    monkeypatch.setattr(wide_layers, "WIDEST_PART", 9)


def matrix(outputs: int, inputs: int, places: int = 1) -> TracedLayer:
    index = np.arange(outputs * inputs).reshape(1, outputs, inputs)
    return TracedLayer("w", 0, index, (1, np.arange(outputs)[None]), (), places)


@pytest.mark.parametrize(
    ("outputs", "inputs", "places"),
    [
        (16, 8192, 64), (512, 4608, 9), (128, 1152, 9), (768, 3072, 1), (8, 5000, 5000),
        (1000, 1025, 1), (4, 12_000, 3), (5, 4050, 9), (64, 1170, 9),
    ],
)  # fmt: skip
def test_parts_are_the_layer(outputs, inputs, places):
    layer = matrix(outputs, inputs, places)
    parts = in_parts([layer])
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate([p.index for p in parts], 2), layer.index)
    assert [p.part.start for p in parts] == np.cumsum(
        [0, *[p.index.shape[2] for p in parts[:-1]]]
    ).tolist()
    bias = np.arange(outputs, dtype=float)
    arrays = [np.zeros((outputs, inputs)), bias]
    np.testing.assert_allclose(sum(layer_weights(p, arrays)[0, :, -1] for p in parts), bias)
    # About equally wide, and no wider than is affordable.
    widths = [p.index.shape[2] for p in parts]
    assert 2 * min(widths) >= max(widths) <= wide_layers.WIDEST_PART
    assert all(width % p.places == 0 for width, p in zip(widths, parts, strict=True))


def test_a_wide_kernel_of_one_channel_is_split_for_patterns_too():
    layer = matrix(8, 5000, 5000)
    parts = in_parts([layer], 4)
    assert max(p.index.shape[2] for p in parts) <= wide_layers.WIDEST_PART
    # It has no blocks of channels.
    rows = rows_of(parts, [np.ones((8, 5000)), np.zeros(8)], pattern=(2, 4))
    assert not any(row.loose().any() for row in rows)


def test_no_dimensions_are_added_without_a_word(narrow):
    x = np.asarray(jax.random.normal(jax.random.key(1), (300, 1, 4, 4)))
    network = Convolutions(jax.random.key(0))
    y = np.asarray(jax.vmap(network)(x).argmax(1))
    with jax.numpy_rank_promotion("raise"):
        found = trace(network, [x[:1]])
        key = jax.random.key(0)
        arrays = found.parts.arrays
        moments = Calibration(found.capture, CrossEntropy(), arrays, [x], y, key=key).moments(
            arrays
        )
    assert len(moments) == len(found.layers)


def test_what_is_not_wide_or_has_few_outputs_is_whole():
    assert in_parts([matrix(200, 784)])[0].part is None
    assert in_parts([matrix(10, 2000)])[0].part is None


def test_a_layer_of_many_outputs_is_split_before_it_is_wide():
    assert [part.index.shape[2] for part in in_parts([matrix(1000, 1000)])] == [250] * 4
    widths = [part.index.shape[2] for part in in_parts([matrix(5000, 1024)])]
    assert sum(widths) == 1024
    assert max(widths) <= wide_layers.NARROWEST_PART


def separate(rows: int, seed: int) -> np.ndarray:
    """Return inputs of which each row has values in one part only: parts are uncorrelated."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 16)) @ rng.normal(size=(16, 16))
    x[::2, :8], x[1::2, 8:] = 0, 0
    return x.astype(np.float32)


def test_uncorrelated_parts_are_judged_as_the_whole_layer_is(monkeypatch, narrow):
    network = eqx.nn.Linear(16, 3, use_bias=False, key=jax.random.key(0))
    x = separate(600, 0)
    noise = 0.3 * jax.random.normal(jax.random.key(1), (600, 3))
    data = (x, jax.vmap(network)(x) + noise)
    parts = bmr.reduce_network(network, data, keep=0.4)
    monkeypatch.setattr(wide_layers, "WIDEST", 100)
    whole = bmr.reduce_network(network, data, keep=0.4)
    np.testing.assert_array_equal(parts.masks["weight"], whole.masks["weight"])
    np.testing.assert_allclose(parts.network.weight, whole.network.weight, rtol=1e-3, atol=1e-3)
    assert parts.prior_precision == pytest.approx(whole.prior_precision, rel=1e-4)


def test_rounds_come_nearer_to_the_fit_of_the_whole_layer(monkeypatch, narrow):
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(500, 4)) @ rng.normal(size=(4, 32)) + 1.0).astype(np.float32)
    x += 0.1 * rng.normal(size=x.shape).astype(np.float32)
    network = eqx.nn.Linear(32, 2, key=jax.random.key(0))
    y = np.asarray(jax.vmap(network)(x))
    keep = rng.random((2, 32)) < 0.5

    def fits(number):
        found = trace(network, [x])
        layers, dense = found.layers, found.parts.arrays
        key = jax.random.key(1)
        calibration = Calibration(found.capture, SquaredError(1.0), dense, [x], y, key=key)
        rows = rows_of(layers, dense)
        for row in rows:
            row.keep[:-1] = keep.ravel()[layers[row.layer].index[0, row.output]]
        arrays, errors = dense, []
        for _ in range(number):
            moments = calibration.moments(arrays)
            precisions = [1e-3] * len(layers)
            fit(rows, quadratics_of(layers, moments, dense, len(x), precisions, arrays))
            arrays = filled(layers, dense, rows)
            weight, bias = (np.asarray(a) for a in arrays)
            errors.append(float(np.mean((x @ weight.T + bias - y) ** 2)))
        return errors

    errors = fits(30)
    assert all(after < before * 1.0001 for before, after in pairwise(errors))
    monkeypatch.setattr(wide_layers, "WIDEST", 100)
    (best,) = fits(1)
    assert best < errors[-1] < best + 0.2 * (errors[0] - best)


class Convolutions(eqx.Module):
    """A convolution with 27 inputs for each output, behind one with nine."""

    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.first = eqx.nn.Conv2d(1, 3, 3, padding=1, key=a)
        self.second = eqx.nn.Conv2d(3, 4, 3, key=b)
        self.last = eqx.nn.Linear(16, 3, key=c)

    def __call__(self, x):
        x = jax.nn.relu(self.second(jax.nn.relu(self.first(x))))
        return self.last(x.reshape(-1))


def test_captured_parts_give_the_gradients_of_the_weights(narrow):
    network = Convolutions(jax.random.key(0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (1, 1, 4, 4)))
    found = trace(network, [x])
    assert [layer.name for layer in found.layers] == [
        "first.weight", *["second.weight"] * 3, *["last.weight"] * 2,
    ]  # fmt: skip
    outputs, ends = found.capture.run(found.parts.arrays, [x[0]])
    _, back = found.capture.gradients(found.parts.arrays, [x[0]])
    cotangent = jnp.asarray([1.0, -2.0, 0.5])
    gradient = eqx.filter_grad(lambda n: n(x[0]) @ cotangent)(network)
    wanted = {
        "first.weight": gradient.first.weight,
        "second.weight": gradient.second.weight,
        "last.weight": gradient.last.weight,
    }
    np.testing.assert_allclose(outputs, network(x[0]), rtol=1e-5)
    for layer, (inputs, _), g in zip(found.layers, ends, back(cotangent), strict=True):
        mine = jnp.einsum("tgi,tgo->goi", inputs, g)
        np.testing.assert_allclose(
            mine, wanted[layer.name].ravel()[layer.index], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("units", [False, True])
def test_networks_with_wide_layers_are_reduced(narrow, units):
    network = Convolutions(jax.random.key(0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (300, 1, 4, 4)))
    y = np.asarray(jax.vmap(network)(x).argmax(1))
    found = bmr.reduce_network(network, (x, y), units=units, keep=0.6)
    # The inputs of the network are no units.
    assert [name for name in found.not_judged if "weight" in name] == [
        "inputs of first.weight"
    ] * units
    assert 0.3 < found.path[found.chosen].kept < 0.61
    assert np.isfinite(jax.vmap(found.network)(x)).all()
    # A row of the report for the layer, not for each part.
    if not units:
        assert set(found.prior_precision) == {"first.weight", "second.weight", "last.weight"}


@pytest.mark.parametrize(("places", "block"), [(1, 4), (1, 5), (9, 4), (343, 4)])
def test_blocks_of_a_pattern_do_not_cross_parts(narrow, places, block):
    layer = matrix(2, 40 * places, places)
    arrays = [np.ones((2, 40 * places)), np.zeros(2)]
    parts = in_parts([layer], block)
    assert len(parts) > 1
    whole = rows_of([layer], arrays, pattern=(1, block))[0]
    found = [row for row in rows_of(parts, arrays, pattern=(1, block)) if row.output == 0]
    assert sum(len(row.room) for row in found) == len(whole.room) == 40 // block * places
    assert sum(int(row.loose().sum()) for row in found) == int(whole.loose().sum())


def test_a_mean_of_the_inputs_is_no_price(narrow):
    """A bias takes up the mean of an input that is removed, in whatever part it is."""
    network = eqx.nn.Linear(36, 40, key=jax.random.key(0))
    x = np.random.default_rng(3).normal(size=(800, 36)).astype(np.float32)
    kept, losses = [], []
    for mean in (0.0, 5.0):
        y = jax.vmap(network)(x + mean)
        y = y + 0.1 * jax.random.normal(jax.random.key(1), y.shape)
        found = bmr.reduce_network(network, (x + mean, y), keep=0.2)
        kept.append(found.masks["weight"].reshape(40, 4, 9).mean((0, 2)))
        losses.append(found.path[found.chosen].measured)
    np.testing.assert_allclose(kept[1], kept[0], atol=0.03)
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


class Sign(eqx.Module):
    """A layer that no gradient reaches, a part of whose inputs is zero."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(32, 8, key=a), eqx.nn.Linear(8, 2, key=b)

    def __call__(self, x):
        return self.last(jnp.sign(self.first(x)))


@pytest.mark.filterwarnings("ignore::bmrjax.FitWarning")
def test_a_layer_without_gradient_is_left_alone_in_all_its_parts(narrow):
    x = np.array(jax.random.normal(jax.random.key(1), (300, 32)))
    x[:, 16:24] = 0
    network = Sign(jax.random.key(0))
    y = np.asarray(jax.vmap(network)(x).argmax(1))
    found = bmr.reduce_network(network, (x, y), keep=0.5)
    assert set(found.masks) == {"last.weight"}
    assert sum(finding.message.count("first.weight") for finding in found.findings) == 1


class ChannelsLast(eqx.Module):
    """Channels whose pixels are in all parts of the layer that reads them."""

    first: eqx.nn.Conv2d
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.first, self.last = eqx.nn.Conv2d(1, 4, 3, key=a), eqx.nn.Linear(36, 3, key=b)

    def __call__(self, x):
        return self.last(jax.nn.relu(self.first(x)).transpose(1, 2, 0).ravel())


def test_units_are_those_of_the_whole_layers(monkeypatch, narrow):
    network, x = ChannelsLast(jax.random.key(0)), [np.zeros((1, 1, 5, 5), np.float32)]
    traced = trace(network, x)
    parts = unit_graph(traced)
    assert len(traced.layers) == 5
    monkeypatch.setattr(wide_layers, "WIDEST", 100)
    whole = unit_graph(trace(network, x))
    assert (parts.names, parts.kinds, parts.arrays) == (whole.names, whole.kinds, whole.arrays)
    np.testing.assert_array_equal(
        np.concatenate([axes[0] for axes in parts.readers[1:]]), whole.readers[1][0]
    )
    for of in parts.outputs[1:]:
        np.testing.assert_array_equal(of, whole.outputs[1])


@pytest.mark.parametrize("method", ["wanda", "obs_uniform", "obs_global", "magnitude"])
def test_baselines_take_wide_layers(narrow, method):
    network = nnx.Linear(32, 4, rngs=nnx.Rngs(0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (200, 32)))
    data, loss = (x, np.asarray(network(x))), bmr.trained.SquaredError(noise_scale=0.1)
    (found,) = bmr.trained.reduce_by(network, data, method, loss=loss, keep=[0.5])
    assert found.kept == pytest.approx(0.5, abs=0.02)
    mask = found.masks["kernel"]
    if method == "magnitude":
        size = np.abs(np.asarray(network.kernel))
        np.testing.assert_array_equal(mask, size > np.median(size))
    elif method in ("wanda", "obs_uniform"):
        # Half of each row of each part, so half of each row.
        np.testing.assert_array_equal(mask.sum(0), 16)
        np.testing.assert_array_equal(mask[:8].sum(0), 4)

"""Networks to bytes and back."""

import hashlib
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax import codec, zoo
from bmrjax.codec.compression_dictionary import PHRASES
from bmrjax.codec.quantise import Grid, step_below, step_of
from bmrjax.structure import named_arrays

QUANTISERS = {
    "uniform": codec.Uniform(0.05),
    "k-means": codec.KMeans(8),
    "mixture": codec.Mixture(np.array([0.0, -0.4, -0.1, 0.1, 0.4])),
    "rate-distortion": codec.RateDistortion(),
    "relative-entropy": codec.RelativeEntropy(bits=8),
}


def sparse(network, density=0.2, seed=0):
    """Return a network with most weights removed, and some noise on all else."""
    rng = np.random.default_rng(seed)

    def change(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf) + 0.1 * rng.standard_normal(leaf.shape)
        if leaf.ndim > 1:
            values = np.where(rng.random(leaf.shape) < density, values, 0)
        return jnp.asarray(values, leaf.dtype)

    return jax.tree.map(change, network)


def arrays_of(network):
    return [np.asarray(a) for a in jax.tree.leaves(eqx.filter(network, eqx.is_array))]


@pytest.fixture(scope="module")
def network():
    return sparse(zoo.MLP(20, (12,), 3, activation=jax.nn.relu, key=jax.random.key(0)))


@pytest.fixture(scope="module")
def scales(network):
    rng = np.random.default_rng(1)
    return {
        f"layers.{i}.{part}": 0.02 + 0.1 * rng.random(getattr(network.layers[i], part).shape)
        for i in (0, 1)
        for part in ("weight", "bias")
    }


@pytest.mark.parametrize("quantiser", QUANTISERS)
def test_every_coder_and_layout_decodes_the_same_network(quantiser, network, scales):
    decoded = []
    for coder in ("range", "ans", "huffman"):
        for layout in (None, codec.CSR(3), codec.Gaps(), codec.Bitmap(), codec.Dense()):
            if coder == "huffman" and isinstance(layout, codec.Bitmap):
                continue
            data = codec.encode(
                network,
                quantiser=QUANTISERS[quantiser],
                posterior_scale=scales,
                coder=coder,
                layout=layout,
            )
            decoded.append(codec.decode(data))
    for other in decoded[1:]:
        assert eqx.tree_equal(decoded[0], other)
    assert decoded[0].activation is jax.nn.relu
    for before, after in zip(arrays_of(network), arrays_of(decoded[0]), strict=True):
        assert before.shape == after.shape
        assert (after[before == 0] == 0).all()


def test_decoded_weights_are_those_of_the_quantiser(network, scales):
    weights = {f"layers.{i}.weight": np.asarray(network.layers[i].weight) for i in (0, 1)}
    quantiser = codec.RateDistortion(rate=0.5)
    used = {name: scales[name] for name in weights}
    decoded = codec.decode(codec.encode(network, quantiser=quantiser, posterior_scale=used))
    for i, found in enumerate(quantiser(weights, used).values()):
        np.testing.assert_array_equal(decoded.layers[i].weight, found.values)


def test_the_file_is_all_that_is_counted(network, tmp_path):
    report = codec.save_network(network, tmp_path / "n.bmr", extra={"about": [1, "two"]})
    numbers = sum(a.size for a in arrays_of(network))
    assert report.size == (tmp_path / "n.bmr").stat().st_size
    assert report.original == 4 * numbers
    assert report.ratio == report.original / report.size
    assert report.extra == {"about": [1, "two"]}
    reported = sum(row.place_bits + row.value_bits for row in report.rows) / 8 + report.description
    assert abs(reported - report.size) < 9
    assert [row.name for row in report.rows][:2] == ["layers.0.weight", "layers.0.bias"]
    assert report.entries == sum(
        np.count_nonzero(a) for a in arrays_of(codec.load_network(tmp_path / "n.bmr"))
    )
    lines = str(report).splitlines()
    assert len(lines) == len(report.rows) + 3
    assert f"{report.size:,} bytes" in lines[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["n.bmr"]


def _networks():
    key = jax.random.key(0)
    stateful = eqx.nn.make_with_state
    yield "lenet", lambda: zoo.LeNet5(conv_features=(2, 3, 4), hidden=5, key=key)
    yield "caffe", lambda: zoo.LeNet5Caffe(conv_features=(2, 3), hidden=5, key=key)
    yield "gru", lambda: zoo.GRU(1, 4, 1, key=key)
    vit = {"image_size": 8, "depth": 1, "width": 8, "hidden": 8}
    yield "vit", lambda: zoo.ViT(1, 3, heads=2, key=key, **vit)
    mixer = {"image_size": 8, "depth": 1, "width": 8, "token_hidden": 4, "channel_hidden": 4}
    yield "mixer", lambda: zoo.MLPMixer(1, 3, key=key, **mixer)
    small = {"blocks": (1, 1), "width": 2, "small_images": True}
    yield "resnet", lambda: stateful(zoo.ResNet)(1, 3, key=key, **small)


@pytest.mark.parametrize("build", [n[1] for n in _networks()], ids=[n[0] for n in _networks()])
def test_the_zoo_goes_through(build):
    network = sparse(build())
    # So fine that nothing but rounding is lost.
    data = codec.encode(network, quantiser=codec.Uniform(1e-4), dense="float32")
    decoded = codec.decode(data)
    # The same classes with the same settings, so the same function.
    assert jax.tree.structure(decoded) == jax.tree.structure(network)
    for before, after in zip(arrays_of(network), arrays_of(decoded), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_allclose(after, before, atol=1e-3)


def test_a_network_in_bfloat16_keeps_its_types(network):
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, network)
    decoded = codec.decode(codec.encode(half))
    assert {str(a.dtype) for a in arrays_of(decoded)} == {"bfloat16"}


def test_vectors_that_float16_would_spoil_stay_exact(network):
    bias = jnp.array([1e-7, 1e6] + [0.5] * 10)
    large = eqx.tree_at(lambda n: n.layers[0].bias, network, bias)
    np.testing.assert_array_equal(codec.decode(codec.encode(large)).layers[0].bias, bias)


@pytest.mark.parametrize("coder", ["range", "ans", "huffman"])
def test_a_network_without_any_weight_left_goes_through(coder):
    shapes = eqx.filter_eval_shape(zoo.MLP, 2000, (1000,), 10, key=jax.random.key(0))
    network = jax.tree.map(lambda a: jnp.zeros(a.shape) if hasattr(a, "shape") else a, shapes)
    data = codec.encode(network, coder=coder)
    assert len(data) < 400
    assert eqx.tree_equal(codec.decode(data), network)


def test_compacted_networks_are_smaller_files(scales):
    # Two neurons and half of the inputs without weights.
    network = sparse(zoo.MLP(20, (12,), 3, key=jax.random.key(0)), density=0.9)
    first = network.layers[0].weight.at[:2].set(0).at[:, ::2].set(0)
    cut = eqx.tree_at(lambda n: n.layers[0].weight, network, first)
    small = bmr.compact(cut, jnp.ones(20), drop_inputs=True)
    quantiser = codec.RateDistortion(rate=0.01)
    whole, less = (
        codec.encode(n, quantiser=quantiser, posterior_scale=scales) for n in (cut, small)
    )
    report = codec.inspect_file(less)
    assert report.original == codec.inspect_file(whole).original == 4 * (20 * 12 + 12 + 12 * 3 + 3)
    assert sum(row.place_bits for row in report.rows) < sum(
        row.place_bits for row in codec.inspect_file(whole).rows
    )
    decoded = codec.decode(less)
    assert decoded.network.layers[0].weight.shape == (10, 10)
    x = jax.random.normal(jax.random.key(2), (20,))
    np.testing.assert_allclose(decoded(x), cut(x), atol=0.3)


def test_scales_are_cut_with_the_network(scales):
    network = sparse(zoo.MLP(20, (12,), 3, key=jax.random.key(0)), density=0.9)
    first = network.layers[0].weight.at[:2].set(0)
    cut = eqx.tree_at(lambda n: n.layers[0].weight, network, first)
    small = bmr.compact(cut, jnp.ones(20), drop_inputs=False)
    found = small.cut(scales)
    np.testing.assert_array_equal(found["layers.0.weight"], scales["layers.0.weight"][2:])
    np.testing.assert_array_equal(found["layers.1.weight"], scales["layers.1.weight"][:, 2:])
    with pytest.raises(ValueError, match="cut: 'layers.7' has shape"):
        small.cut({"layers.7": np.ones(2)})


def test_rate_distortion_spends_bits_where_the_posterior_is_narrow():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((40, 50)).astype(np.float32)
    wide, narrow = np.full(weights.shape, 0.3), np.full(weights.shape, 0.3)
    narrow[:20] = 0.01
    error = {}
    for name, scale in (("wide", wide), ("narrow", narrow)):
        found = codec.RateDistortion()({"w": weights}, {"w": scale})["w"].values
        error[name] = np.abs(found - weights)
        assert np.sqrt((np.square((found - weights) / scale)).mean()) < 1.5
    assert error["narrow"][:20].mean() < 0.2 * error["wide"][:20].mean()


def test_rate_distortion_is_at_most_as_costly_as_rounding():
    """At the end no weight would gain by another value of the same grid, under the code as it is."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((30, 30)).astype(np.float32) * (rng.random((30, 30)) < 0.2)
    scale = np.full(weights.shape, 0.2)

    def cost(values):
        from bmrjax.codec.arithmetic import ArithmeticWriter

        writer = ArithmeticWriter()
        codec.Bitmap().write(
            writer, codes := np.unique(values, return_inverse=True)[1].reshape(values.shape)
        )
        writer.symbols(codes[values != 0], int(codes.max()) + 1)
        return np.square((weights - values) / scale).sum() / 2 + np.log(2) * writer.spent

    chosen = codec.RateDistortion()({"w": weights}, {"w": scale})["w"]
    rounded = np.rint(weights / 0.2) * 0.2
    assert cost(chosen.values) < cost(rounded)


@pytest.mark.parametrize("rate", [0.01, 1.0, 10.0])
def test_a_higher_rate_is_a_smaller_file(rate, network, scales):
    sizes = [
        len(codec.encode(network, posterior_scale=scales, quantiser=codec.RateDistortion(r)))
        for r in (rate, 4 * rate)
    ]
    assert sizes[1] <= sizes[0]


def test_k_means_finds_clusters():
    rng = np.random.default_rng(0)
    centres = np.array([-1.0, -0.25, 0.5, 2.0])
    which = rng.integers(0, 4, (30, 40))
    weights = (centres[which] + 0.01 * rng.standard_normal(which.shape)).astype(np.float32)
    found = codec.KMeans(4)({"w": weights}, {})["w"]
    np.testing.assert_allclose(found.values, centres[which], atol=0.01)
    assert len(np.unique(found.values)) == 4


def test_a_mixture_keeps_its_assignments_and_its_means_exactly(network):
    means = np.array([0.3, 0.0, 1 / 3, -0.7], np.float32)
    rng = np.random.default_rng(0)
    names = ("layers.0.weight", "layers.1.weight")
    given = {
        name: np.where(layer.weight != 0, rng.integers(0, 4, layer.weight.shape), 1)
        for name, layer in zip(names, network.layers, strict=True)
    }
    for coder in ("range", "huffman"):
        decoded = codec.decode(
            codec.encode(network, quantiser=codec.Mixture(means, given), coder=coder)
        )
        for layer, which in zip(decoded.layers, given.values(), strict=True):
            np.testing.assert_array_equal(layer.weight, means[which])


def test_relative_entropy_codes_a_draw_from_the_posterior():
    rng = np.random.default_rng(0)
    network = zoo.MLP(40, (30,), 2, key=jax.random.key(0))
    mean = np.where(rng.random((30, 40)) < 0.5, rng.standard_normal((30, 40)), 0)
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.asarray(mean, jnp.float32))
    scale = 0.3 * np.ones(mean.shape)
    data = codec.encode(
        network,
        posterior_scale={"layers.0.weight": scale},
        quantiser=codec.RelativeEntropy(bits=12),
    )
    found = np.asarray(codec.decode(data).layers[0].weight)
    gap = ((found - mean) / scale)[mean != 0]
    # 600 standard normal draws, of which a code of finite length makes somewhat wider ones.
    assert abs(gap.mean()) < 0.15
    assert 0.85 < gap.std() < 1.25
    width = np.sqrt((mean[mean != 0] ** 2 + 0.09).mean())
    divergence = np.log2(width / 0.3)
    row = codec.inspect_file(data).rows[0]
    assert divergence < row.value_bits / row.entries < divergence + 1.5


def test_steps_are_eight_to_the_octave():
    steps = np.array([step_of(i) for i in range(1024)])
    ratio = steps[1:] / steps[:-1]
    assert ((ratio > 1.06) & (ratio < 1.12)).all()
    assert all(step_below(step) == i for i, step in enumerate(steps))
    assert Grid(768).values(np.array([-3, 0, 2])).tolist() == [-3.0, 0.0, 2.0]


def test_weights_of_any_size_are_quantised_to_the_tolerance():
    for size in (1e-20, 1.0, 1e8):
        weights = (size * np.linspace(-1, 1, 1001)).astype(np.float32)
        found = codec.Uniform(0.01)({"w": weights}, {})["w"].values
        assert np.abs(found - weights).max() <= 0.01 * np.sqrt(np.mean(weights.astype(float) ** 2))


def test_flax_perceptrons_go_through_compacted_or_not():
    from flax import nnx

    network = zoo.NNXMLP(6, (5,), 2, activation=jax.nn.relu, rngs=nnx.Rngs(0))
    for layer in network.layers:
        layer.bias[...] = jnp.linspace(0.1, 1, layer.bias.shape[0])
    network.layers[0].kernel[...] = network.layers[0].kernel[...].at[:, :2].set(0).at[1].set(0)
    x = jax.random.normal(jax.random.key(0), (3, 6))
    small = bmr.compact(network, x, drop_inputs=True)
    for given, shape in ((network, (6, 5)), (small, (5, 3))):
        data = codec.encode(
            given,
            quantiser=codec.Uniform(1e-4),
            dense="float32",
            posterior_scale={"layers.0.kernel": 0.1},
        )
        decoded = codec.decode(data)
        inner = decoded if given is network else decoded.network
        assert inner.layers[0].kernel.shape == shape
        assert inner.layers[0].out_features == shape[1]
        decoded.eval()
        network.eval()
        np.testing.assert_allclose(decoded(x), network(x), atol=1e-3)


@pytest.mark.slow
def test_flax_transformers_go_through_compacted_or_not():
    from flax import nnx

    network = zoo.NNXViT(
        image_size=(8, 12),
        patch=4,
        depth=2,
        width=8,
        heads=4,
        hidden=6,
        dropout=0.1,
        rngs=nnx.Rngs(0),
    )
    attention = network.blocks[0].attention
    attention.output.kernel[...] = attention.output.kernel[...].at[2:6].set(0)  # heads 1 and 2
    network.blocks[1].mlp.output.kernel[...] = (
        network.blocks[1].mlp.output.kernel[...].at[4:].set(0)
    )
    x = jax.random.normal(jax.random.key(0), (3, 1, 8, 12))
    small = bmr.compact(network, x)
    for given, heads, hidden in ((network, 4, 6), (small, 2, 4)):
        data = codec.encode(given, quantiser=codec.Uniform(1e-5), dense="float32")
        decoded = codec.decode(data)
        assert [b.attention.heads for b in decoded.blocks] == [heads, 4]
        assert decoded.blocks[1].mlp.hidden.kernel.shape == (8, hidden)
        assert decoded.dropout.rate == pytest.approx(0.1)
        decoded.eval()
        network.eval()
        np.testing.assert_allclose(decoded(x), network(x), atol=1e-3)
        assert {row.name for row in codec.inspect_file(data).rows} == set(named_arrays(network))
    # One that was changed, and one of a subclass, are described by all that they hold.
    network.blocks[0].mlp.dropout = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    decoded = codec.decode(codec.encode(network))
    assert isinstance(decoded.blocks[0].mlp.dropout, nnx.Linear)

    class Own(zoo.NNXMLP):
        pass

    with pytest.raises(codec.CodecError, match="Own, which cannot be imported"):
        codec.encode(Own(2, (2,), 2, rngs=nnx.Rngs(0)))


class Own(eqx.Module):
    weight: jax.Array
    parts: dict
    ends: tuple


def test_own_classes_are_registered(network):
    own = Own(jnp.eye(3), {"a": network, "b": None}, (float("inf"), True, 3))
    data = codec.encode(own)
    with pytest.raises(codec.CodecError, match="test_codec:Own in it"):
        codec.decode(data)
    assert codec.decode(data, allow=(Own,)).ends == own.ends
    codec.register(Own)
    decoded = codec.decode(codec.encode(own, quantiser=codec.Uniform(1e-4)))
    assert decoded.ends == (float("inf"), True, 3)
    assert decoded.parts["b"] is None
    np.testing.assert_allclose(decoded.weight, np.eye(3), atol=1e-4)
    with pytest.raises(TypeError, match="takes an Equinox module"):
        codec.register(int)


def test_what_no_file_can_hold_is_named(network):
    codec.register(Own)
    weird = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.full((12, 20), jnp.nan))
    own = zoo.MLP(2, (2,), 2, activation=lambda x: x, key=jax.random.key(0))
    cases = [
        (
            lambda: codec.encode(weird),
            codec.CodecError,
            "'layers.0.weight' has values that are not",
        ),
        (lambda: codec.encode(own), codec.CodecError, "'activation' is <function"),
        (lambda: codec.encode(3), TypeError, "encode: expected an Equinox module"),
        (lambda: codec.encode(Own(jnp.ones(2), {}, ("a" * 1025,))), codec.CodecError, "long text"),
        (lambda: codec.encode(network, coder="zip"), ValueError, "coder must be"),
        (lambda: codec.encode(network, dense="int8"), ValueError, "dense must be"),
        (
            lambda: codec.encode(network, coder="huffman", layout=codec.Bitmap()),
            ValueError,
            "Bitmap needs",
        ),
        (
            lambda: codec.encode(network, posterior_scale={"nothing": 1.0}),
            codec.CodecError,
            "no such array",
        ),
        (
            lambda: codec.encode(network, posterior_scale={"layers.0.weight": np.ones(2)}),
            codec.CodecError,
            "shaped",
        ),
        (lambda: codec.RateDistortion(rate=0.0), ValueError, "rate must be a positive"),
        (lambda: codec.KMeans(0), ValueError, "clusters must be"),
        (lambda: codec.Mixture(np.ones((2, 2))), ValueError, "means must be a vector"),
        (lambda: codec.RelativeEntropy(bits=40), ValueError, "bits must be"),
        (lambda: codec.Uniform(-1.0), ValueError, "tolerance must be"),
    ]
    for call, kind, match in cases:
        with pytest.raises(kind, match=match):
            call()


@pytest.mark.slow
def test_a_file_of_a_known_network_opens_where_nothing_of_it_is_loaded(tmp_path):
    codec.save_network(zoo.MLP(4, (3,), 2, key=jax.random.key(0)), tmp_path / "small.bmr")
    code = (
        "import sys, bmrjax.codec; print('bmrjax.zoo' in sys.modules); "
        f"print(type(bmrjax.codec.load_network({str(tmp_path / 'small.bmr')!r})).__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "MLP"]


def test_the_dictionary_is_that_of_this_version_of_the_format():
    digest = hashlib.sha256(PHRASES).hexdigest()
    assert digest == "5f6270597c6f06fd2a46db318b82448cd35fa17fa41eea64facf07fe6a6e9200"


@pytest.mark.parametrize("quantiser", ["uniform", "rate-distortion"])
def test_weights_below_the_finest_grid_become_zero_with_a_warning(quantiser, network, scales):
    tiny = jax.tree.map(lambda a: a * 1e-32 if eqx.is_inexact_array(a) else a, network)
    by_path = {path: scale * 1e-32 for path, scale in scales.items()}
    with pytest.warns(UserWarning, match="below the finest grid .* and becomes zero"):
        codec.encode(tiny, quantiser=QUANTISERS[quantiser], posterior_scale=by_path)

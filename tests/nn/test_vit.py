import dataclasses
import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro.infer import Predictive

from bmrjax import handlers, priors, random_module, zoo
from bmrjax.zoo.patches import count_patches, to_patches

pytestmark = pytest.mark.usefixtures("strict_promotion")
KEY = jax.random.key(0)
ATTENTION = ("query", "key", "value", "output")
TINY = {"image_size": 8, "depth": 2, "width": 8, "heads": 2, "hidden": 12}


@functools.cache
def tiny(**options):
    return zoo.ViT(1, 3, **{**TINY, **options}, key=KEY)


def tiny_nnx(**options):
    return zoo.NNXViT(1, 3, **{**TINY, **options}, rngs=nnx.Rngs(0))


@eqx.filter_jit
def run(network, x, key=None):
    return network(x, key=key)


@eqx.filter_jit
def run_batch(network, x):
    return jax.vmap(network)(x)


run_nnx = nnx.jit(lambda network, x: network(x))


def images(*shape):
    return jax.random.normal(jax.random.key(1), shape)


def program_of(network, prior=None):
    def program(x, y=None):
        logits = random_module("net", network, prior or priors.Flat())(x)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return program


def copied(network):
    """Return a Flax NNX network with the weights of an Equinox one."""
    other = tiny_nnx()

    def put(theirs, mine):
        if isinstance(mine, eqx.nn.Embedding):
            theirs.embedding[...] = mine.weight
            return
        if isinstance(mine, eqx.nn.Linear):
            theirs.kernel[...] = mine.weight.T
        else:
            theirs.scale[...] = mine.weight
        theirs.bias[...] = mine.bias

    for name in ("patches", "class_token", "positions", "norm", "head"):
        put(getattr(other, name), getattr(network, name))
    for theirs, mine in zip(other.blocks, network.blocks, strict=True):
        put(theirs.attention_norm, mine.attention_norm)
        put(theirs.mlp_norm, mine.mlp_norm)
        for name in ATTENTION:
            put(getattr(theirs.attention, name), getattr(mine.attention, name))
        for name in ("hidden", "output"):
            put(getattr(theirs.mlp, name), getattr(mine.mlp, name))
    return other


# --- patches --------------------------------------------------------------------------------


def test_patches_are_blocks_of_the_image_row_by_row():
    x = np.asarray(images(3, 4, 6))
    found = to_patches(jnp.asarray(x), (4, 6), 2)
    expected = [
        np.moveaxis(x[:, i : i + 2, j : j + 2], 0, -1).ravel() for i in (0, 2) for j in (0, 2, 4)
    ]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(to_patches(jnp.asarray(x)[None], (4, 6), 2)[0], found)


def test_small_images_are_padded_by_two_pixels_of_zeros():
    padded = to_patches(jnp.ones((1, 28, 28)), 28, 4)
    assert padded.shape == (64, 16)
    assert padded.sum() == 28 * 28
    np.testing.assert_array_equal(
        padded[0].reshape(4, 4), np.pad(np.ones((2, 2)), ((2, 0), (2, 0)))
    )


@pytest.mark.parametrize(
    ("size", "patch", "message"),
    [
        (8, 3, "Patches of 3×3 do not tile images of 8×8. Choose"),
        ((8, 6), 4, "Patches of 4×4 do not tile images of 8×6"),
        (28, 7, "images of 32×32, the size to which 28×28 is padded"),
        (8, 0, "Patches of 0×0"),
    ],
)
def test_patches_must_tile_the_image(size, patch, message):
    with pytest.raises(ValueError, match=message):
        count_patches(size, patch)
    with pytest.raises(ValueError, match=message):
        zoo.ViT(image_size=size, patch=patch, key=KEY)


@pytest.mark.parametrize(
    ("built", "size", "message"),
    [
        (8, (12, 8), r"built for images of 8×8, got 12×8. Give image_size=\(12, 8\)"),
        (28, (8, 8), "built for images of 32×32 or 28×28, got 8×8"),
    ],
)
def test_images_of_another_size_are_refused(built, size, message):
    with pytest.raises(ValueError, match=message):
        to_patches(jnp.ones((1, *size)), built, 4)


# --- the network ----------------------------------------------------------------------------


def test_the_published_size_has_the_published_parts():
    network = eqx.filter_eval_shape(lambda: zoo.ViT(key=KEY))
    linear = {(i, o): i * o + o for i, o in [(16, 256), (256, 256), (256, 512), (512, 256)]}
    block = 2 * 2 * 256 + 4 * linear[256, 256] + linear[256, 512] + linear[512, 256]
    embedding = linear[16, 256] + 256 + (1 + 64) * 256
    total = embedding + 6 * block + 2 * 256 + (256 * 10 + 10)
    assert total == 3_186_954
    sizes = [leaf.size for leaf in jax.tree.leaves(network) if hasattr(leaf, "size")]
    assert sum(sizes) == total
    theirs = nnx.eval_shape(lambda: zoo.NNXViT(rngs=nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(theirs, nnx.Param))) == total


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 28)])
def test_one_image_gives_one_row_of_outputs(channels, size):
    options = {**TINY, "image_size": size}
    network = zoo.ViT(channels, 3, **options, key=KEY)
    x = images(2, channels, size, size)
    outputs = run_batch(network, x)
    assert outputs.shape == (2, 3)
    np.testing.assert_allclose(outputs[1], run(network, x[1]), rtol=1e-4, atol=1e-5)
    theirs = zoo.NNXViT(channels, 3, **options, rngs=nnx.Rngs(0))
    assert run_nnx(theirs, x).shape == (2, 3)
    with pytest.raises(ValueError, match="The network was built for images of"):
        network(jnp.ones((channels, 12, 8)))


@pytest.mark.parametrize("make", [tiny, tiny_nnx])
def test_heads_must_divide_the_width(make):
    with pytest.raises(ValueError, match="3 heads do not divide a width of 8"):
        make(heads=3)


def test_attention_is_softmax_of_scaled_products_for_each_head():
    attention = tiny().blocks[0].attention
    x = np.asarray(images(5, 8))
    query, key, value = (
        x @ np.asarray(layer.weight).T
        for layer in (attention.query, attention.key, attention.value)
    )
    heads = []
    for rows in (slice(0, 4), slice(4, 8)):
        logits = query[:, rows] @ key[:, rows].T / 2.0
        weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        heads.append(weights @ value[:, rows])
    expected = np.concatenate(heads, 1) @ np.asarray(attention.output.weight).T
    np.testing.assert_allclose(attention(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_a_head_is_a_group_of_rows():
    """A head without value rows has no influence: its query and key rows may be anything."""
    attention = tiny().blocks[0].attention
    silent = eqx.tree_at(
        lambda a: a.value.weight, attention, attention.value.weight.at[:4].set(0.0)
    )
    other = eqx.tree_at(lambda a: a.query.weight, silent, silent.query.weight.at[:4].mul(-3.0))
    x = images(5, 8)
    np.testing.assert_allclose(silent(x), other(x), atol=1e-6)
    assert not np.allclose(attention(x), silent(x), atol=1e-2)


def test_weights_start_by_the_rule_of_the_zoo():
    """Standard deviations within four standard errors of sqrt(gain / fan-in)."""
    network, theirs = tiny(), tiny_nnx()
    weights = []
    for blocks, name in ((network.blocks, "weight"), (theirs.blocks, "kernel")):
        attention = [getattr(block.attention, layer) for block in blocks for layer in ATTENTION]
        hidden, output = [b.mlp.hidden for b in blocks], [b.mlp.output for b in blocks]
        for fan_in, gain, layers in ((8, 1.0, attention), (8, 2.0, hidden), (12, 1.0, output)):
            weights.append((fan_in, gain, [np.asarray(getattr(x, name)[...]) for x in layers]))
    weights.append((1, 0.02**2, [np.asarray(network.positions.weight)]))
    weights.append((1, 0.02**2, [np.asarray(theirs.positions.embedding[...])]))
    for fan_in, gain, arrays in weights:
        values = np.concatenate([a.ravel() for a in arrays])
        tolerance = 4 / np.sqrt(2 * values.size)
        np.testing.assert_allclose(values.std(), np.sqrt(gain / fan_in), rtol=tolerance)
    assert not np.any(network.head.bias)
    assert np.all(network.norm.weight == 1)


def test_positions_alone_tell_patches_apart():
    x = images(1, 8, 8)
    # The two halves of the image change places: a permutation of the four patches.
    swapped = jnp.roll(x, 4, axis=1)
    network = tiny()
    assert not np.allclose(run(network, x), run(network, swapped), atol=1e-4)
    bare = eqx.tree_at(
        lambda n: n.positions.weight, network, jnp.zeros_like(network.positions.weight)
    )
    np.testing.assert_allclose(run(bare, x), run(bare, swapped), rtol=1e-4, atol=1e-5)


def test_both_libraries_compute_the_same():
    network = tiny()
    # Not the initial values, under which an exchange of gain and bias would go unnoticed.
    network = jax.tree.map(
        lambda a: a + 0.1 * jax.random.normal(KEY, a.shape) if eqx.is_array(a) else a, network
    )
    x = images(4, 1, 8, 8)
    # Not 1e-5 throughout: the sums of float32 are in another order.
    np.testing.assert_allclose(
        run_batch(network, x), run_nnx(copied(network), x), rtol=1e-4, atol=1e-5
    )


def test_dropout_is_for_training_with_a_key():
    x = images(1, 8, 8)
    network = tiny(dropout=0.5)
    quiet = run(tiny(), x)
    a, b = (run(network, x, jax.random.key(i)) for i in (1, 2))
    assert not np.allclose(a, b)
    np.testing.assert_array_equal(run(network, x, jax.random.key(1)), a)
    still = eqx.nn.inference_mode(network)
    np.testing.assert_allclose(run(still, x, jax.random.key(1)), quiet, rtol=1e-5)
    np.testing.assert_allclose(run(still, x), quiet, rtol=1e-5)
    with pytest.raises(RuntimeError, match="requires a key"):
        run(network, x)

    theirs = tiny_nnx(dropout=0.5)
    assert not np.allclose(run_nnx(theirs, x[None]), run_nnx(theirs, x[None]))
    theirs.eval()
    np.testing.assert_array_equal(run_nnx(theirs, x[None]), run_nnx(theirs, x[None]))


def test_dropout_of_everything_leaves_the_biases():
    """Each linear layer of the network but query, key, value and head passes through dropout."""
    network = tiny(dropout=1.0)
    np.testing.assert_allclose(
        run(network, images(1, 8, 8), KEY), network.head(network.norm.bias), atol=1e-6
    )


# --- in a program ---------------------------------------------------------------------------

BLOCK = [
    "attention_norm.weight",
    "attention_norm.bias",
    *(
        f"attention.{n}.{p}"
        for n in ("query", "key", "value", "output")
        for p in ("weight", "bias")
    ),
    "mlp_norm.weight",
    "mlp_norm.bias",
    *(f"mlp.{n}.{p}" for n in ("hidden", "output") for p in ("weight", "bias")),
]
SITES = [
    "net.patches.weight",
    "net.patches.bias",
    "net.class_token.weight",
    "net.positions.weight",
    *(f"net.blocks.{i}.{name}" for i in range(2) for name in BLOCK),
    "net.norm.weight",
    "net.norm.bias",
    "net.head.weight",
    "net.head.bias",
]


def sites_of(program, x):
    """Return site name to shape of the latent sites, without computing anything."""
    found = {}

    def run(key, x):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(program, key)).get_trace(x)
        found.update({n: s["value"].shape for n, s in trace.items() if n != "y"})
        return trace["y"]["value"]

    jax.eval_shape(run, KEY, x)
    return found


def test_sites_are_named_after_the_layers():
    sites = sites_of(program_of(tiny()), images(2, 1, 8, 8))
    assert [name for name in sites if not name.endswith(".precision")] == SITES
    # Every layer has a scale of its own.
    layers = {name.rsplit(".", 1)[0] for name in SITES}
    assert {n.removesuffix(".precision") for n in sites if n.endswith(".precision")} == layers
    assert sites["net.blocks.1.mlp.hidden.weight"] == (12, 8)

    theirs = sites_of(program_of(tiny_nnx()), images(2, 1, 8, 8))
    expected = {"net.blocks.1.attention.query.kernel", "net.blocks.0.mlp_norm.scale"}
    assert {*expected, "net.positions.embedding", "net.head.bias"} <= set(theirs)


@pytest.mark.parametrize("make", [tiny, tiny_nnx])
def test_embeddings_have_no_fan_in(make):
    seen = {}

    @dataclasses.dataclass(frozen=True)
    class Spy(priors.NormalPrior):
        def layer(self, layer):
            seen[layer.name] = layer.fan_in
            return super().layer(layer)

    sites_of(program_of(make(), Spy()), images(2, 1, 8, 8))
    assert seen["net.positions"] == seen["net.class_token"] == seen["net.norm"] == 1
    assert seen["net.patches"] == 16
    assert seen["net.blocks.0.mlp.output"] == 12


@pytest.mark.slow
def test_predictive_draws_weights_and_labels():
    program = program_of(tiny(dropout=0.5), priors.NormalPrior(1.0))
    predictive = Predictive(program, num_samples=3)
    draws = jax.jit(predictive)(KEY, images(4, 1, 8, 8))
    assert draws["y"].shape == (3, 4)
    assert set(np.unique(draws["y"])) <= {0, 1, 2}
    assert draws["net.blocks.0.attention_norm.bias"].shape == (3, 8)
    assert draws["net.blocks.0.attention_norm.bias"].std() > 0.5


@pytest.mark.parametrize("make", [tiny, tiny_nnx])
def test_every_tensor_has_a_gradient_but_the_bias_of_the_keys(make):
    x, y = images(6, 1, 8, 8), jnp.arange(6) % 3
    program = handlers.inference(program_of(make(), priors.NormalPrior(1.0)))
    draw = np.random.default_rng(0)
    values = {
        name: jnp.asarray(draw.normal(0.0, 0.5, shape), jnp.float32)
        for name, shape in sites_of(program, x).items()
    }

    def likelihood(values):
        substituted = numpyro.handlers.substitute(numpyro.handlers.seed(program, KEY), values)
        site = numpyro.handlers.trace(substituted).get_trace(x, y)["y"]
        return site["fn"].log_prob(y).sum()

    for name, gradient in jax.jit(jax.grad(likelihood))(values).items():
        assert np.isfinite(gradient).all(), name
        largest = np.abs(gradient).max()
        if name.endswith("attention.key.bias"):
            assert largest < 1e-5, name
        else:
            assert largest > 1e-4, name


def test_a_batch_is_one_program_of_batched_products():
    program = handlers.inference(program_of(tiny()))

    def logits(key, x):
        seeded = numpyro.handlers.seed(program, key)
        return numpyro.handlers.trace(seeded).get_trace(x)["y"]["fn"].logits

    jaxpr = jax.make_jaxpr(logits)(KEY, images(16, 1, 8, 8))
    names = re.findall(r"= (\w+)", str(jaxpr))
    products = [name for name in names if name == "dot_general"]
    # Patches and head; four projections, two products of the attention and two of the perceptron.
    assert len(products) == 2 + 2 * (4 + 2 + 2)
    assert not {"while", "scan"} & set(names)

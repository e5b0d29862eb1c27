import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive

from bmrjax import priors, random_module, zoo

pytestmark = pytest.mark.usefixtures("strict_promotion")
KEY = jax.random.key(0)
TINY = {"image_size": 8, "depth": 2, "width": 8, "token_hidden": 6, "channel_hidden": 12}


@pytest.fixture(scope="module")
def network():
    return zoo.MLPMixer(1, 3, **TINY, key=KEY)


@eqx.filter_jit
def run(network, x):
    return network(x)


def images(*shape):
    return jax.random.normal(jax.random.key(1), shape)


def program_of(network, prior):
    def program(x, y=None):
        numpyro.sample("y", dist.Categorical(logits=random_module("net", network, prior)(x)), obs=y)

    return program


def sites_of(program, x):
    """Return site name to shape of the latent sites, without computing anything."""
    found = {}

    def run(key, x):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(program, key)).get_trace(x)
        found.update({n: s["value"].shape for n, s in trace.items() if n != "y"})
        return trace["y"]["value"]

    jax.eval_shape(run, KEY, x)
    return found


def test_the_published_size_has_the_published_parts():
    def linear(i, o):
        return i * o + o

    tokens = linear(64, 512) + linear(512, 64)
    channels = linear(256, 512) + linear(512, 256)
    block = 2 * (2 * 256) + tokens + channels
    total = linear(4 * 4 * 1, 256) + 6 * block + 2 * 256 + linear(256, 10)
    assert total == 1_987_722
    network = eqx.filter_eval_shape(lambda: zoo.MLPMixer(key=KEY))
    assert sum(a.size for a in jax.tree.leaves(network) if hasattr(a, "size")) == total


def test_outputs_for_grey_and_colour_images(network):
    x = images(2, 1, 8, 8)
    outputs = jax.jit(jax.vmap(network))(x)
    assert outputs.shape == (2, 3)
    np.testing.assert_allclose(outputs[1], run(network, x[1]), rtol=1e-4, atol=1e-5)
    colour = zoo.MLPMixer(3, 5, **{**TINY, "image_size": (4, 12), "depth": 1}, key=KEY)
    assert run(colour, images(3, 4, 12)).shape == (5,)


def test_images_of_28_pixels_are_padded_with_zeros():
    network = zoo.MLPMixer(1, 3, **{**TINY, "image_size": 28, "depth": 1}, key=KEY)
    x = images(1, 28, 28)
    padded = jnp.pad(x, ((0, 0), (2, 2), (2, 2)))
    np.testing.assert_allclose(run(network, x), run(network, padded), rtol=1e-5)


def test_sizes_that_do_not_fit_are_refused(network):
    with pytest.raises(ValueError, match="Patches of 4×4 do not tile images of 10×10"):
        zoo.MLPMixer(image_size=10, key=KEY)
    with pytest.raises(ValueError, match="built for images of 8×8, got 16×16"):
        network(jnp.ones((1, 16, 16)))


def test_a_block_mixes_patches_and_then_channels(network):
    """The block against its equations, in numpy."""
    block = network.blocks[0]

    def norm(x):
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)

    def perceptron(mlp, x):
        hidden = x @ np.asarray(mlp.hidden.weight).T
        hidden = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
        return hidden @ np.asarray(mlp.output.weight).T

    x = np.asarray(images(4, 8))
    expected = x + perceptron(block.token_mlp, norm(x).T).T
    expected = expected + perceptron(block.channel_mlp, norm(expected))
    np.testing.assert_allclose(run(block, jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_the_patches_matters_only_to_token_mixing(network):
    x = images(1, 8, 8)
    # The two halves of the image change places: a permutation of the four patches.
    swapped = jnp.roll(x, 4, axis=1)
    assert not np.allclose(run(network, x), run(network, swapped), atol=1e-4)
    unmixed = eqx.tree_at(
        lambda n: [block.token_mlp.output.weight for block in n.blocks],
        network,
        replace_fn=jnp.zeros_like,
    )
    np.testing.assert_allclose(run(unmixed, x), run(unmixed, swapped), rtol=1e-4, atol=1e-5)


PERCEPTRON = [f"{layer}.{part}" for layer in ("hidden", "output") for part in ("weight", "bias")]
BLOCK = [
    *("token_norm.weight", "token_norm.bias", *(f"token_mlp.{name}" for name in PERCEPTRON)),
    *("channel_norm.weight", "channel_norm.bias", *(f"channel_mlp.{name}" for name in PERCEPTRON)),
]
SITES = [
    *("net.patches.weight", "net.patches.bias"),
    *(f"net.blocks.{i}.{name}" for i in range(2) for name in BLOCK),
    *("net.norm.weight", "net.norm.bias", "net.head.weight", "net.head.bias"),
]


def test_sites_are_named_after_the_layers(network):
    sites = sites_of(program_of(network, priors.Flat()), images(2, 1, 8, 8))
    assert [name for name in sites if not name.endswith(".precision")] == SITES
    layers = {name.rsplit(".", 1)[0] for name in SITES}
    assert {n.removesuffix(".precision") for n in sites if n.endswith(".precision")} == layers
    assert sites["net.blocks.0.token_mlp.hidden.weight"] == (6, 4)


@pytest.mark.slow
def test_predictive_draws_weights_and_labels(network):
    predictive = Predictive(program_of(network, priors.NormalPrior(1.0)), num_samples=3)
    draws = jax.jit(predictive)(KEY, images(4, 1, 8, 8))
    assert draws["y"].shape == (3, 4)
    assert set(np.unique(draws["y"])) <= {0, 1, 2}
    assert draws["net.blocks.0.token_mlp.hidden.weight"].std() > 0.5


def test_every_tensor_has_a_gradient_but_the_bias_that_the_norms_take_out(network):
    x, y = images(6, 1, 8, 8), jnp.arange(6) % 3
    program = program_of(network, priors.NormalPrior(1.0))
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
        if name.endswith("token_mlp.output.bias"):
            assert largest < 1e-4, name
        else:
            assert largest > 1e-3, name

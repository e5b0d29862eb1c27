"""The networks of the zoo that the papers on structured pruning use: their sizes, and what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers as numpyro_handlers

import bmrjax as bmr
from bmrjax import zoo

KEY = jax.random.key(0)


def count(build):
    found = eqx.filter_eval_shape(build)
    module = found[0] if isinstance(found, tuple) else found
    return sum(leaf.size for leaf in jax.tree.leaves(module) if hasattr(leaf, "size"))


def stateful(network, **options):
    return eqx.nn.make_with_state(network)(**options, key=KEY)


@eqx.filter_jit
def run(network, x, key=None):
    options = {} if key is None else {"key": key}
    if isinstance(network, tuple):
        return jax.vmap(
            lambda v, state: network[0](v, state, **options),
            axis_name="batch",
            in_axes=(0, None),
            out_axes=(0, None),
        )(x, network[1])
    return jax.vmap(lambda v: network(v, **options))(x)


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        # 500·785 + 300·501 + 10·301
        (lambda: zoo.MLP(784, (500, 300), 10, activation=jax.nn.relu, key=KEY), 545_810),
        (lambda: zoo.LeNet5Caffe(key=KEY), 431_080),
        # What torchvision states of its models with 1000 outputs.
        (lambda: zoo.resnet18(3, 1000, key=KEY), 11_689_512),
        (lambda: zoo.resnet50(3, 1000, key=KEY), 25_557_032),
        # The convolutions and normalisations of torchvision's vgg16_bn, and the two linear layers.
        (lambda: stateful(zoo.VGG), 14_714_688 + 2 * 4_224 + 513 * 512 + 2 * 512 + 513 * 10),
    ],
    ids=["LeNet-500-300", "LeNet-5-Caffe", "ResNet-18", "ResNet-50", "VGG"],
)
def test_the_published_sizes(build, parameters):
    assert count(build) == parameters


def test_a_third_convolution_is_the_linear_layer_of_others():
    """LeNet-5 as in Wright et al.: two convolutions with ReLU and max pooling, three linear layers."""
    network = zoo.LeNet5(
        conv_features=(3, 4, 6), hidden=5, activation=jax.nn.relu, max_pool=True, key=KEY
    )

    @jax.jit
    def written_out(x):
        for conv in network.convs[:2]:
            x = eqx.nn.MaxPool2d(2, 2)(jax.nn.relu(conv(x)))
        x = network.convs[2].weight.reshape(6, -1) @ x.ravel()
        for layer in network.linears:
            x = layer(jax.nn.relu(x))
        return x

    x = jax.random.normal(KEY, (1, 32, 32))
    np.testing.assert_allclose(run(network, x[None])[0], written_out(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [28, 32, 33])
def test_a_vgg_rounds_half_pixels_up(side):
    network = stateful(zoo.VGG, features=(2, 2, 2), depths=(1, 1, 1), hidden=3, image_size=side)
    assert network[0].hidden.weight.shape == (3, 2 * (-(-side // 8)) ** 2)
    assert run(network, jnp.ones((2, 3, side, side)))[0].shape == (2, 10)


def test_a_vgg_scales_its_widths_and_drops_activations():
    network, state = stateful(
        zoo.VGG, features=(8, 8), depths=(2, 1), k=0.5, dropout=(0.3, 0.4, 0.5)
    )
    assert [conv.weight.shape[0] for conv in network.convs] == [4, 4, 4]
    assert network.hidden.weight.shape[0] == 256
    x = jax.random.normal(KEY, (4, 3, 32, 32))
    first, second = (run((network, state), x, jax.random.key(i))[0] for i in (0, 1))
    assert not np.allclose(first, second)
    network = eqx.nn.inference_mode(network)
    first, second = (run((network, state), x, jax.random.key(i))[0] for i in (0, 1))
    np.testing.assert_array_equal(first, second)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="takes images of 28×28"):
        zoo.LeNet5Caffe(key=KEY)(jnp.ones((1, 32, 32)))
    network, state = stateful(zoo.VGG, features=(2,), depths=(1,))
    with pytest.raises(ValueError, match="built for images of 32×32, got"):
        network(jnp.ones((3, 28, 28)), state)
    with pytest.raises(ValueError, match="k=0.01 leaves a layer without units"):
        zoo.VGG(k=0.01, key=KEY)


def test_running_statistics_are_usable_from_the_first_batch():
    """Equinox's own start makes the variance a hundred times too large after one batch."""
    network, state = stateful(zoo.ResNet, blocks=(1,), width=2, small_images=True)
    x = jax.random.normal(KEY, (64, 3, 8, 8))
    features = jax.vmap(network.stem)(x)
    for batches in (1, 2):
        _, state = run((network, state), x)
        mean, variance = state.get(network.stem_norm.batch_state_index)
        old = 0.9**batches
        np.testing.assert_allclose(mean, (1 - old) * features.mean((0, 2, 3)), atol=1e-5)
        np.testing.assert_allclose(variance, old + (1 - old) * features.var((0, 2, 3)), rtol=1e-4)
        still = eqx.nn.inference_mode(network)
        y = still.stem_norm(features[0], state)[0]
        expected = (features[0] - mean[:, None, None]) / jnp.sqrt(variance + 1e-5)[:, None, None]
        np.testing.assert_allclose(y, expected, atol=1e-4)


def test_a_residual_network_is_lifted_whole():
    network = stateful(zoo.ResNet, blocks=(1,), width=2, bottleneck=True, small_images=True)

    def program(x):
        return bmr.random_module("net", network, bmr.priors.NormalPrior())(x)

    with numpyro_handlers.seed(rng_seed=0):
        trace = numpyro_handlers.trace(program).get_trace(jnp.ones((2, 3, 8, 8)))
    sites = {name for name, site in trace.items() if site["type"] == "sample"}
    assert {
        "net.stem.weight",
        "net.stages.0.0.convs.2.weight",
        "net.stages.0.0.shortcut.weight",
    } < sites
    assert trace["net.stages.0.0.norms.2.weight"]["value"].shape == (8,)

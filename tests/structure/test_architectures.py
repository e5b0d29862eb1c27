"""Architectures of public code: lifted, grouped, compacted to the size counted by hand, saved, exported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from architectures import attention, images, sequences
from flax import nnx

import bmrjax as bmr
from bmrjax.structure.network_arrays import WithArguments, checked_arguments, parts_of

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Case:
    """An architecture.

    Attributes:
        build: Makes the network.
        inputs: Example inputs, as `compact` takes them.
        units: Layer to how many units it has, and of how many weights each.
        removed: How many parameters go with a unit of a layer: its own, and what reads it of what stays.
        batched: Whether the inputs are a batch.
    """

    build: Callable[[], Any]
    inputs: tuple[Any, ...]
    units: dict[str, tuple[int, int]]
    removed: dict[str, int]
    batched: bool = False


def of_eqx(network, *inputs, units, removed, state=False):
    build = lambda: eqx.nn.make_with_state(network)(KEY) if state else network(KEY)  # noqa: E731
    return Case(build, inputs, units, removed)


def of_nnx(network, *inputs, units, removed):
    return Case(lambda: network(nnx.Rngs(0)), inputs, units, removed, batched=True)


def image(channels, size):
    return jnp.ones((channels, size, size))


HEAD = 3 * 4 * 12 + 3 * 4  # rows of queries, keys and values, and their biases
GRAPH = {
    "nodes": jnp.ones((5, 3)),
    "senders": jnp.array([0, 1, 2, 3, 4, 0]),
    "receivers": jnp.array([1, 2, 3, 4, 0, 2]),
}
TEXT = {
    "input_ids": jnp.array([[1, 4, 7, 2, 0, 0], [5, 3, 9, 8, 6, 2]]),
    "token_type_ids": jnp.array([[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]]),
    "attention_mask": jnp.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
}
CASES = {
    "ViT": of_eqx(
        attention.ViT,
        image(1, 8),
        units={"blocks.0.attn.qkv": (3, HEAD), "blocks.1.fc1": (10, 13)},
        removed={"blocks.0.attn.qkv": HEAD + 4 * 12, "blocks.1.fc1": 13 + 12},
    ),
    "ViT of Flax": of_nnx(
        attention.NNXViT,
        jnp.ones((2, 8, 8, 1)),
        units={"attn.qkv": (3, HEAD), "mlp.layers.0": (10, 13)},
        removed={"attn.qkv": HEAD + 4 * 12, "mlp.layers.0": 13 + 12},
    ),
    "Swin": of_eqx(
        attention.Swin,
        image(1, 8),
        units={"blocks.1": (3, HEAD + 9), "blocks.0.fc1": (10, 13), "merge": (10, 48)},
        # A head has a column of nine in the table of positions.
        removed={
            "blocks.1": HEAD + 9 + 4 * 12,
            "blocks.0.fc1": 13 + 12,
            "merge": 48 + 3,
        },
    ),
    "BERT": of_nnx(
        attention.BERT,
        TEXT,
        units={
            "layers.0.attention": (3, HEAD),
            "layers.1.intermediate": (10, 13),
            "pooler": (8, 13),
        },
        removed={
            "layers.0.attention": HEAD + 4 * 12,
            "layers.1.intermediate": 13 + 12,
            "pooler": 13 + 2,
        },
    ),
    "GPT": of_eqx(
        attention.GPT,
        jnp.array([1, 4, 7, 2, 0]),
        units={"blocks.0.attn.qkv": (3, HEAD), "blocks.1.fc1": (10, 13)},
        removed={"blocks.0.attn.qkv": HEAD + 4 * 12, "blocks.1.fc1": 13 + 12},
    ),
    "ResNet": of_eqx(
        images.ResNet,
        image(3, 8),
        state=True,
        # A filter of nine by six and its normalisation; channels of the stream with all that writes them.
        units={"blocks.0": (6, 54 + 2), "blocks.1": (8, 54 + 2)},
        removed={"blocks.0": 54 + 2 + 54, "blocks.1": 54 + 2 + 72},
    ),
    "pre-activation ResNet": of_nnx(
        images.PreActResNet,
        jnp.ones((2, 8, 8, 3)),
        units={"blocks.0": (6, 45 + 2), "blocks.1": (6, 54 + 2)},
        removed={"blocks.0": 45 + 2 + 54, "blocks.1": 54 + 2 + 54},
    ),
    "DenseNet": of_eqx(
        images.DenseNet,
        image(3, 8),
        state=True,
        units={"layers.0": (8, 6 + 2), "layers.1": (8, 10 + 2)},
        removed={"layers.0": 6 + 2 + 36, "layers.1": 10 + 2 + 36},
    ),
    "MobileNet": of_eqx(
        images.MobileNet,
        image(3, 8),
        state=True,
        units={"block": (12, 6 + 2 + 9 + 2)},
        removed={"block": 6 + 2 + 9 + 2 + 6},
    ),
    "EfficientNet": of_nnx(
        images.EfficientNet,
        jnp.ones((2, 8, 8, 3)),
        # With the channel goes what squeeze and excitation read and write of it.
        units={"block": (12, 6 + 2 + 9 + 2 + 3 + 1), "block.se.reduce": (3, 13)},
        removed={"block": 6 + 2 + 9 + 2 + 1 + 1 + 1 + 6, "block.se.reduce": 13 + 12},
    ),
    "ConvNeXt": of_eqx(
        images.ConvNeXt,
        image(3, 8),
        units={"blocks.0.pw1": (16, 5), "blocks.1.pw1": (16, 5)},
        removed={"blocks.0.pw1": 5 + 4, "blocks.1.pw1": 5 + 4},
    ),
    "ShuffleNet": of_eqx(
        images.ShuffleNet,
        image(3, 8),
        units={"conv": (9, 7)},
        removed={"conv": 7 + 4},
    ),
    "VGG": of_nnx(
        images.VGG,
        jnp.ones((2, 8, 8, 3)),
        units={"convs.1": (6, 55 + 2), "convs.2": (8, 55 + 2), "fc1": (10, 33)},
        removed={"convs.1": 55 + 2 + 54, "convs.2": 55 + 2 + 32, "fc1": 33 + 4},
    ),
    "U-Net": of_eqx(
        images.UNet,
        image(1, 8),
        units={
            "enter.conv1": (4, 10),
            "enter.conv2": (4, 37),
            "down.conv1": (8, 37),
            "down.conv2": (8, 73),
            "up": (4, 33),
        },
        # Channels that skip are read twice.
        removed={
            "enter.conv1": 10 + 18,
            "enter.conv2": 37 + 54 + 36,
            "down.conv1": 37 + 54,
            "down.conv2": 73 + 8,
            "up": 33 + 36,
        },
    ),
    "GRU": of_eqx(
        sequences.GRU,
        jnp.ones((4, 2)),
        # Three rows of each of the cell's weights; the last gate has a second bias.
        units={"cell": (8, 3 * (2 + 8 + 1) + 1)},
        removed={"cell": 3 * (2 + 8 + 1) + 1 + 3 * 6 + 3},
    ),
    "LSTM": of_nnx(
        sequences.LSTM,
        jnp.array([[1, 4, 7], [5, 3, 8]]),
        units={"embed": (5, 9), "rnn.cell": (6, 4 * (5 + 6 + 1))},
        removed={"embed": 9 + 4 * 4, "rnn.cell": 4 * (5 + 6 + 1) + 4 * 4 + 3},
    ),
    "Mixer": of_eqx(
        sequences.Mixer,
        image(1, 8),
        units={"blocks.0.tokens.layers.0": (5, 5), "blocks.1.channels.layers.0": (7, 7)},
        removed={"blocks.0.tokens.layers.0": 5 + 4, "blocks.1.channels.layers.0": 7 + 6},
    ),
    "diffusion mixer": of_eqx(
        sequences.DiffusionMixer,
        jnp.array(0.5),
        image(1, 8),
        units={
            "blocks.0.patch_mixer.layers.0": (5, 5),
            "blocks.1.hidden_mixer.layers.0": (7, 7),
        },
        removed={
            "blocks.0.patch_mixer.layers.0": 5 + 4,
            "blocks.1.hidden_mixer.layers.0": 7 + 6,
        },
    ),
    "neural ODE": of_eqx(
        sequences.NeuralODE,
        jnp.ones(2),
        jnp.array(1.0),
        units={"func.mlp.layers.0": (8, 4), "func.mlp.layers.1": (8, 9)},
        removed={"func.mlp.layers.0": 4 + 6, "func.mlp.layers.1": 9 + 2},
    ),
    "message passing": of_eqx(
        sequences.MessagePassing,
        GRAPH,
        units={"message.0": (7, 13), "message.1": (7, 13)},
        removed={"message.0": 13 + 6, "message.1": 13 + 6},
    ),
    "PointNet": of_eqx(
        sequences.PointNet,
        jnp.ones((5, 3)),
        units={"local.layers.0": (8, 4), "local.layers.1": (10, 9), "head.layers.0": (6, 11)},
        removed={"local.layers.0": 4 + 8, "local.layers.1": 9 + 4, "head.layers.0": 11 + 4},
    ),
    "autoencoder": of_nnx(
        sequences.Autoencoder,
        jnp.ones((2, 16)),
        units={
            "encoder.layers.0": (10, 17),
            "encoder.layers.2": (4, 11),
            "decoder.layers.0": (10, 5),
        },
        removed={
            "encoder.layers.0": 17 + 2,
            "encoder.layers.2": 11 + 8,
            "decoder.layers.0": 5 + 16,
        },
    ),
}


def two_units(network, case):
    """Return the groups, and the numbers of the first and third unit of each layer of `case.units`."""
    groups = bmr.structure.unit_groups(network, *case.inputs)
    gone = []
    for layer, (count, weights) in case.units.items():
        fitting = [k for k in groups.kinds if (k.name, k.weights) == (f"net.{layer}", weights)]
        assert [len(k.groups) for k in fitting] == [count], f"{layer}\n{groups}"
        gone += [fitting[0].groups[0], fitting[0].groups[2]]
    return groups, gone


def without_units(network, case):
    """Return a network whose layers of `case.units` lost their first and third unit."""
    groups, gone = two_units(network, case)
    parts = parts_of(network)
    arrays = []
    for name, array in zip(parts.names, parts.arrays, strict=True):
        ids = groups.ids.get(f"net.{name}")
        zero = False if ids is None else np.isin(np.asarray(ids), gone)
        arrays.append(jnp.where(zero, 0, array))
    return parts.build(arrays)


def outputs(network, case, inputs):
    parts = parts_of(network)
    arguments = checked_arguments("test", network, parts, case.inputs)
    run = WithArguments(parts, arguments).call
    return jax.tree.leaves(jax.jit(run)(parts.arrays, inputs))


# What ONNX has, in little code: the converter takes seconds for each, and tests/export has others.
TO_ONNX = {"ViT of Flax", "ConvNeXt", "PointNet"}


# Those that take longest to export are left to `make all-checks`; they are lifted and grouped here too.
SLOW = (
    *("Swin", "BERT", "ViT of Flax", "ViT", "Mixer", "ResNet", "ConvNeXt", "GPT"),
    *("diffusion mixer", "DenseNet", "pre-activation ResNet", "EfficientNet", "VGG", "ShuffleNet"),
)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_an_architecture_is_grouped_compacted_saved_and_exported(name, tmp_path):
    case = CASES[name]
    network = case.build()
    zeroed = without_units(network, case)
    small = bmr.compact(zeroed, *case.inputs)
    assert type(small.network) is type(network)
    gone = sum(2 * n for n in case.removed.values())
    assert small.before.parameters - small.after.parameters == gone, str(small)
    assert small.error < 1e-5
    arguments = checked_arguments("test", network, parts_of(network), case.inputs)
    keys = jax.random.split(KEY, len(arguments.arrays))
    inputs = [
        jax.random.normal(k, x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for k, x in zip(keys, arguments.arrays, strict=True)
    ]
    found = outputs(small.network, case, inputs)
    same(found, outputs(zeroed, case, inputs))
    data = bmr.codec.encode(small, quantiser=bmr.codec.Uniform(1e-5), dense="float32")
    decoded = bmr.codec.decode(data, allow=["architectures"])
    assert type(decoded) is type(network)
    parts, read = parts_of(small.network), parts_of(decoded)
    assert list(read.names) == list(parts.names)
    for a, b in zip(read.arrays, parts.arrays, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max(initial=0))
    # The numbers that were rounded in writing, in the network as it was.
    same(outputs(decoded, case, inputs), outputs(parts.build(read.arrays), case, inputs))
    example = case.inputs[0] if len(case.inputs) == 1 else case.inputs
    file = tmp_path / "network"
    exported = bmr.export.stablehlo(small, example, file, platforms=("cpu",), repeats=0)
    assert exported.error < 1e-5
    rows = inputs if case.batched else [x[None] for x in inputs]
    program = jax.tree.leaves(bmr.export.load_stablehlo(file)(*rows))
    same(found, program if case.batched else [x[0] for x in program])
    if name in TO_ONNX:
        pytest.importorskip("jax2onnx", reason="needs the extra onnx", exc_type=ImportError)
        graph = bmr.export.onnx(small, example, tmp_path / "network.onnx", repeats=0)
        assert graph.error < 1e-4


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * (1 + np.abs(b).max()))


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("name", CASES)
def test_an_architecture_is_lifted_and_grouped(name):
    case = CASES[name]
    network = case.build()
    two_units(network, case)  # each layer has as many units as were counted by hand
    inputs = case.inputs if case.batched else jax.tree.map(lambda x: x[None], case.inputs)

    def program(*inputs):
        return bmr.random_module("net", network, bmr.priors.NormalPrior(1.0))(*inputs)

    seeded = numpyro.handlers.seed(program, KEY)
    batch = jax.eval_shape(lambda *x: seeded(*x), *inputs)
    drawn = 0

    def count(*inputs):
        nonlocal drawn
        sites = numpyro.handlers.trace(seeded).get_trace(*inputs)
        drawn = sum(s["value"].size for s in sites.values() if s["type"] == "sample")

    jax.eval_shape(count, *inputs)
    parts = parts_of(network)
    assert drawn == sum(a.size for a, t in zip(parts.arrays, parts.trained, strict=True) if t)
    assert all(x.shape[0] == jax.tree.leaves(inputs)[0].shape[0] for x in jax.tree.leaves(batch))

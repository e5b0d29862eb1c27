"""The architectures of the pretrained networks, without their weights, and the sounds they are given."""

from importlib import import_module

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pretrained = pytest.importorskip(
    "benchmarks.trained.pretrained", reason="the benchmarks are not part of this distribution"
)
sounds = import_module("benchmarks.trained.sounds")


def count(shapes):
    arrays = [a for a in jax.tree.leaves(shapes) if isinstance(a, jax.ShapeDtypeStruct)]
    return sum(a.size for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact))


def conv_and_norm(ins, outs, size):
    return outs * ins * size + 3 * outs


CREPE = (
    conv_and_norm(1, 128, 512)
    + conv_and_norm(128, 16, 64)
    + 2 * conv_and_norm(16, 16, 64)
    + conv_and_norm(16, 32, 64)
    + conv_and_norm(32, 64, 64)
    + 360 * 257
)
SPEAKER = 4 * 256 * (40 + 256 + 1) + 2 * 4 * 256 * (256 + 256 + 1) + 256 * 257


@pytest.mark.parametrize(
    ("name", "parameters", "input_shape", "outputs"),
    [
        ("Crepe", CREPE, (1024,), 360),
        ("Speaker", SPEAKER, (5, 40), 256),
        # As published, 4.65 million.
        ("EfficientNetLite", 4_652_008, (3, 224, 224), 1000),
    ],
)
def test_the_architecture_has_the_parameters_of_the_weights(name, parameters, input_shape, outputs):
    build = getattr(pretrained, name)
    x = jax.ShapeDtypeStruct(input_shape, jnp.float32)
    if name == "Speaker":
        network = eqx.filter_eval_shape(build, key=jax.random.key(0))
        found = eqx.filter_eval_shape(network, x)
    else:
        network, state = eqx.filter_eval_shape(eqx.nn.make_with_state(build), key=jax.random.key(0))
        network = eqx.nn.inference_mode(network)
        found, _ = eqx.filter_eval_shape(network, x, state)
    assert count(network) == parameters
    assert found.shape == (outputs,)


def test_the_pitch_of_a_made_up_tone_is_in_its_spectrum():
    x, cents = sounds.tones(0, 200)
    assert x.shape == (200, 1024)
    np.testing.assert_allclose(x.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(1), 1, atol=1e-5)
    # The share of power within a bin of the harmonics is large but for the noisiest.
    power = np.abs(np.fft.rfft(x * np.hanning(1024))) ** 2
    hertz = 10 * 2 ** (cents / 1200)
    order = np.arange(513) * 15.625 / hertz[:, None]
    near = (np.abs(order - np.round(order)) * hertz[:, None] < 32) & (np.round(order) > 0)
    high = hertz > 500
    assert np.median((power * near).sum(1)[high] / power.sum(1)[high]) > 0.9


def test_mel_filters_have_area_one():
    width = sounds.RATE / sounds.WINDOW
    # As sums over the 40 Hz apart, of which the narrowest filter spans four.
    np.testing.assert_allclose(sounds.filters().sum(1) * width, 1, atol=0.05)
    assert sounds.mel(np.zeros(400 + 3 * 160)).shape == (4, 40)

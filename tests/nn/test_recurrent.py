"""The recurrent network and the periodic signals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax import data, zoo
from bmrjax.data.signals import periodic


def test_the_state_is_what_the_gates_say():
    """One step by hand."""
    network = zoo.GRU(2, 3, 1, key=jax.random.key(0))
    cell, x = network.cell, jnp.array([[0.3, -1.2]])
    from_input = cell.weight_ih @ x[0] + cell.bias
    reset = jax.nn.sigmoid(from_input[:3])
    keep = jax.nn.sigmoid(from_input[3:6])
    new = jnp.tanh(from_input[6:] + reset * cell.bias_n)
    state = (1 - keep) * new
    expected = network.last.weight @ state + network.last.bias
    np.testing.assert_allclose(network(x), expected, rtol=1e-5)
    # Time has a direction.
    pair = jnp.array([[0.3, -1.2], [1.0, 0.5]])
    assert not np.allclose(network(pair), network(pair[::-1]))
    with pytest.raises(ValueError, match=r"\(length, 2\), got \(4,\)"):
        network(jnp.ones(4))


@pytest.mark.parametrize("kind", ["sine", "sawtooth", "square"])
def test_signals_repeat_after_a_period(kind):
    x, y = periodic(kind, length=400, period=40, noise=0.0)
    np.testing.assert_allclose(x[:, -1, 0][1:], y[:-1])  # windows move by one sample
    np.testing.assert_allclose(y[:300], y[40:340], atol=1e-5)
    assert y.min() == pytest.approx(-1, abs=0.05)
    assert y.max() == pytest.approx(1, abs=0.06)
    noisy, _ = periodic(kind, length=400, period=40, noise=0.1)
    assert np.std(noisy - x) == pytest.approx(0.1, rel=0.1)


def test_signals_are_data_sets():
    found = data.load_dataset("square")
    assert found.input_shape == (8, 1)
    assert found.num_classes is None
    assert len(found.test[0]) == pytest.approx(0.2 * 992, abs=1)
    with pytest.raises(ValueError, match="sine, sawtooth, square, got 'triangle'"):
        periodic("triangle")
    with pytest.raises(ValueError, match="does not fit"):
        periodic("sine", length=8)


@pytest.mark.slow
def test_a_recurrent_network_learns_without_samples_of_its_weights():
    found = data.load_dataset("sine")
    network = zoo.GRU(1, 4, 1, key=jax.random.key(0))
    result = bmr.sparsify(
        bmr.programs.regression(network, bmr.priors.Flat()),
        tuple(part[:128] for part in found.train),
        key=jax.random.key(1),
        num_epochs=4,
        steps_per_epoch=40,
        batch_size=64,
        criterion=None,
        options=bmr.FitOptions(estimator="moments", kl_warmup=0),
        progress=False,
    )
    losses = [row["vfe"] for row in result.history]
    assert losses[-1] < 0.75 * losses[0]

"""Held-out metrics against independent numpy implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax import metrics


def probs_and_labels(seed, rows=300, classes=4):
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(rows, classes))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return probs.astype(np.float32), rng.integers(classes, size=rows)


def ece_by_hand(probs, labels, num_bins):
    confidence, correct = probs.max(-1), probs.argmax(-1) == labels
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    total = 0.0
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("num_bins", [1, 7, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_calibration_error(seed, num_bins):
    probs, labels = probs_and_labels(seed)
    found = metrics.expected_calibration_error(
        jnp.asarray(probs), jnp.asarray(labels), num_bins=num_bins
    )
    # Single precision sums over 300 data.
    assert float(found) == pytest.approx(ece_by_hand(probs, labels, num_bins), abs=1e-5)


def test_a_certain_and_wrong_prediction_has_the_worst_calibration():
    probs = jnp.array([[1.0, 0.0]] * 3)
    assert float(metrics.expected_calibration_error(probs, jnp.ones(3, int))) == 1.0
    assert float(metrics.expected_calibration_error(probs, jnp.zeros(3, int))) == 0.0


def test_accuracy():
    probs, labels = probs_and_labels(2)
    found = metrics.accuracy(jnp.asarray(probs), jnp.asarray(labels))
    assert float(found) == pytest.approx(np.mean(probs.argmax(-1) == labels), abs=1e-6)
    assert 0.05 < float(found) < 0.6


def test_root_mean_squared_error_and_likelihood():
    prediction, target = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [3.0, 8.0]])
    found = metrics.root_mean_squared_error(prediction, target)
    assert float(found) == pytest.approx(np.sqrt(5.0), rel=1e-6)
    assert float(metrics.negative_log_likelihood(jnp.array([-1.0, -3.0]))) == 2.0


@pytest.mark.parametrize("labels", [jnp.zeros((5, 1), int), jnp.zeros(4, int)])
@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.expected_calibration_error])
def test_labels_of_another_shape_are_refused(metric, labels):
    with pytest.raises(ValueError, match=r"shape \(5, 3\) and the labels"):
        metric(jnp.ones((5, 3)) / 3, labels)


def test_targets_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(5, 2\), the target \(2, 5\)"):
        metrics.root_mean_squared_error(jnp.zeros((5, 2)), jnp.zeros((2, 5)))


def test_they_are_jittable():
    probs, labels = map(jnp.asarray, probs_and_labels(3))
    for metric in (metrics.accuracy, metrics.expected_calibration_error):
        assert float(jax.jit(metric)(probs, labels)) == pytest.approx(float(metric(probs, labels)))


def test_calibration_error_of_several_labels_per_row_is_that_of_all_labels():
    rng = np.random.default_rng(0)
    second = rng.random((40, 3)).astype(np.float32)
    probs, labels = np.stack([1 - second, second], -1), rng.integers(0, 2, (40, 3))
    found = metrics.expected_calibration_error(probs, labels)
    flat = metrics.expected_calibration_error(probs.reshape(-1, 2), labels.ravel())
    assert float(found) == pytest.approx(float(flat), rel=1e-6)

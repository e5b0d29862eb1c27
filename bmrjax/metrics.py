"""Held-out metrics from predictive probabilities and means."""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax.backend.quick_compile import quick_jit

_Given = Array | np.ndarray


def accuracy(
    probs: Float[_Given, "data classes"], labels: Int[_Given, " data"]
) -> Float[Array, ""]:
    """Return the fraction of data whose most probable class is the label.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import metrics
        >>> probs = jnp.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4], [0.2, 0.8]])
        >>> metrics.accuracy(probs, jnp.array([0, 1, 1, 1]))
        Array(0.75, dtype=float32)
    """
    _check_labels(probs, labels)
    return _accuracy(probs, labels)


def expected_calibration_error(
    probs: Float[_Given, "data ... classes"],
    labels: Int[_Given, "data ..."],
    *,
    num_bins: int = 20,
) -> Float[Array, ""]:
    r"""Return the expected calibration error, :math:`\sum_b \frac{n_b}{n} |acc_b - conf_b|`.

    Bins of equal width over the confidence (the highest class probability).

    Args:
        probs: Predictive probabilities.
        labels: True classes; where a row has several, n counts all of them.
        num_bins: Number of bins over [0, 1].

    Returns:
        The error, in [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import metrics
        >>> probs = jnp.array([[0.75, 0.25]] * 4)
        >>> float(metrics.expected_calibration_error(probs, jnp.array([0, 0, 0, 1])))
        0.0

    References:
        Guo, Pleiss, Sun and Weinberger (2017), On calibration of modern neural networks.
    """
    _check_labels(probs, labels)
    return _calibration_error(probs, labels, num_bins)


def negative_log_likelihood(log_probs: Float[_Given, " data"]) -> Float[Array, ""]:
    """Return the mean over data of minus the log predictive density, in nats per data point.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import metrics
        >>> metrics.negative_log_likelihood(jnp.log(jnp.array([0.5, 0.5, 0.25]))).round(3)
        Array(0.924, dtype=float32)
    """
    return _minus_mean(log_probs)


def root_mean_squared_error(
    prediction: Float[_Given, "data ..."], target: Float[_Given, "data ..."]
) -> Float[Array, ""]:
    """Return the root mean squared error, in the unit of the target.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import metrics
        >>> metrics.root_mean_squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])).round(3)
        Array(1.414, dtype=float32)
    """
    if prediction.shape != target.shape:
        raise ValueError(
            f"root_mean_squared_error: the prediction has shape {prediction.shape}, the target "
            f"{target.shape}; give one prediction a target."
        )
    return _root_mean_square(prediction, target)


# One compiled program each, instead of one per operation.


@quick_jit
def _accuracy(probs: _Given, labels: _Given) -> Array:
    return jnp.mean(jnp.argmax(probs, -1) == labels)


@functools.partial(quick_jit, static_argnums=2)
def _calibration_error(probs: _Given, labels: _Given, num_bins: int) -> Array:
    confidence = jnp.max(probs, -1)
    correct = (jnp.argmax(probs, -1) == labels).astype(confidence.dtype)
    index = jnp.clip((confidence * num_bins).astype(jnp.int32), 0, num_bins - 1)
    gap = jnp.zeros(num_bins, confidence.dtype).at[index].add(correct - confidence)
    return jnp.sum(jnp.abs(gap)) / confidence.size


@quick_jit
def _minus_mean(log_probs: _Given) -> Array:
    return -jnp.mean(log_probs)


@quick_jit
def _root_mean_square(prediction: _Given, target: _Given) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(prediction - target)))


def _check_labels(probs: _Given, labels: _Given) -> None:
    if probs.ndim < 1 or labels.shape != probs.shape[:-1]:
        raise ValueError(
            f"The probabilities have shape {probs.shape} and the labels {labels.shape}; give one "
            "row of class probabilities a label."
        )

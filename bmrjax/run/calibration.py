"""Whether predicted probabilities come true: reliability of classes, coverage of intervals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

# Probabilities of the central intervals whose coverage is shown.
PROBS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def reliability_bins(
    probs: Float[Array | np.ndarray, "data classes"],
    labels: Int[Array | np.ndarray, " data"],
    *,
    num_bins: int = 20,
) -> dict[str, np.ndarray]:
    """Return mean confidence and accuracy in bins of equal width over the confidence.

    These are the bins of `metrics.expected_calibration_error`, without empty ones: the error is the mean of
    ``abs(observed - expected)``, weighted by ``count``.

    Args:
        probs: Predictive probabilities.
        labels: True classes.
        num_bins: Number of bins over [0, 1].

    Returns:
        ``"expected"`` (mean of the highest probability), ``"observed"`` (fraction of right predictions) and
        ``"count"`` (rows), each with one entry per bin that has rows.

    Raises:
        ValueError: If shapes do not match.

    Example:
        >>> import numpy as np
        >>> from bmrjax.run.calibration import reliability_bins
        >>> bins = reliability_bins(np.array([[0.8, 0.2]] * 4), np.array([0, 0, 0, 1]))
        >>> [values.tolist() for values in bins.values()]
        [[0.8], [0.75], [4]]
    """
    probs, labels = np.asarray(probs, np.float64), np.asarray(labels)
    if probs.ndim < 2 or labels.shape != probs.shape[:-1]:
        raise ValueError(
            f"reliability: the probabilities have shape {probs.shape} and the labels {labels.shape}; give "
            "one row of class probabilities per label."
        )
    confidence, right = probs.max(-1).ravel(), (probs.argmax(-1) == labels).ravel()
    # In float32, as the error is computed, so that a row lies in the same bin.
    at = np.clip((confidence.astype(np.float32) * num_bins).astype(int), 0, num_bins - 1)
    count = np.bincount(at, minlength=num_bins)
    some = count > 0
    with np.errstate(invalid="ignore"):
        expected = np.bincount(at, confidence, num_bins) / count
        observed = np.bincount(at, right, num_bins) / count
    return {"expected": expected[some], "observed": observed[some], "count": count[some]}


def predicted_classes(prediction: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return class probabilities and labels, without those that the program masks.

    Args:
        prediction: Of `Result.predict` with targets, for one label per row.
    """
    probs, labels = np.asarray(prediction.mean), np.asarray(prediction.value).astype(int)
    counted = prediction.counted
    return (probs, labels) if counted is None else (probs[counted], labels[counted])


def interval_coverage(prediction: Any, probs: Sequence[float] = PROBS) -> dict[str, np.ndarray]:
    """Return how often central predictive intervals hold the observed value.

    From the rank of each value among the draws. Of n draws and a value from one distribution, each of the
    n + 1 ranks has the same probability, so that coverage is exact for any number of draws, where intervals
    between quantiles of the draws are too narrow. A rank that an interval holds in part counts in part, and
    so do ties of discrete values.

    Args:
        prediction: Of `Result.predict` with ``return_samples=True`` and with targets.
        probs: Probabilities of the intervals.

    Returns:
        ``"expected"`` (these probabilities), ``"observed"`` (fractions), and ``"count"`` (values).

    Raises:
        ValueError: Without draws.

    Example:
        >>> import numpy as np
        >>> from bmrjax.infer import Prediction
        >>> from bmrjax.run.calibration import interval_coverage
        >>> value = np.zeros(4)
        >>> draws = np.array([[-1.0, -2.0, 1.0, 2.0], [1.0, -1.0, 2.0, 1.0], [2.0, 1.0, 3.0, 3.0]])
        >>> found = interval_coverage(Prediction(value, value, value, False, samples=draws), (0.5,))
        >>> float(found["observed"][0])  # two of four values have a middle rank
        0.5

    References:
        Talts, Betancourt, Simpson, Vehtari and Gelman (2018), Validating Bayesian inference algorithms with
        simulation-based calibration, for ranks.
    """
    if prediction.samples is None:
        raise ValueError("interval_coverage: the prediction needs its draws, return_samples=True.")
    value, draws = np.asarray(prediction.value), np.asarray(prediction.samples)
    if prediction.counted is not None:
        value, draws = value[prediction.counted], draws[:, prediction.counted]
    ranks = len(draws) + 1
    low = np.sum(draws < value, 0) / ranks
    width = (np.sum(draws == value, 0) + 1) / ranks
    observed = []
    for prob in probs:
        start, end = (1 - prob) / 2, (1 + prob) / 2
        inside = np.minimum(low + width, end) - np.maximum(low, start)
        observed.append(float(np.mean(np.clip(inside / width, 0.0, 1.0))))
    return {
        "expected": np.asarray(probs, float),
        "observed": np.asarray(observed),
        "count": np.full(len(observed), value.size),
    }

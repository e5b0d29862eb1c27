"""Whether predicted probabilities come true: reliability of classes, coverage of intervals."""

from collections.abc import Mapping, Sequence
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


def interval_levels(
    num_samples: int, probs: Sequence[float] = PROBS
) -> dict[float, tuple[float, float]]:
    """Return which quantiles of draws end a central interval that holds another draw with this probability.

    Of n draws, the k-th smallest lies above the fraction k / (n + 1) of the distribution on average, and
    `numpy.quantile` gives it at the level (k - 1) / (n - 1): intervals between its quantiles are too narrow,
    by 2 / (n + 1) of their probability.

    Args:
        num_samples: Draws, at least 2.
        probs: Probabilities of intervals.

    Returns:
        Probability to the two levels; without the intervals that so few draws do not reach.

    Example:
        >>> from bmrjax.run.calibration import interval_levels
        >>> {p: round(low, 4) for p, (low, _) in interval_levels(19, [0.8, 0.9999]).items()}
        {0.8: 0.0556}
    """
    n, found = num_samples, {}
    for prob in probs:
        low = ((1 - prob) / 2 * (n + 1) - 1) / (n - 1) if n > 1 else 0.0
        if low > 0:
            found[prob] = low, 1 - low
    return found


def interval_coverage(
    prediction: Any, levels: Mapping[float, tuple[float, float]]
) -> dict[str, np.ndarray]:
    """Return how often central predictive intervals hold the observed value.

    Args:
        prediction: Of `Result.predict`, with these levels and with targets.
        levels: From `interval_levels`, for as many samples as the prediction has.

    Returns:
        ``"expected"`` (the probabilities of the intervals), ``"observed"`` (fractions), and ``"count"``
        (values).
    """
    value = np.asarray(prediction.value)
    observed = []
    for ends in levels.values():
        low, high = np.asarray(prediction.quantiles(ends))
        observed.append(float(np.mean((low <= value) & (value <= high))))
    return {
        "expected": np.asarray(list(levels)),
        "observed": np.asarray(observed),
        "count": np.full(len(levels), value.size),
    }


def all_levels(levels: Mapping[float, tuple[float, float]]) -> tuple[float, ...]:
    """Return the levels of all intervals in order, for `Result.predict`; the median where there are none."""
    return tuple(sorted({level for ends in levels.values() for level in ends})) or (0.5,)

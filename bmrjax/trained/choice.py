"""Which point of a path is taken, and the temperature that the path tells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bmrjax.trained.evaluation import QUANTILE, increase

# A paired difference may be certain and still mean nothing: below this share of the standard error with which
# the rows know the dense network's own loss, it does.
NEGLIGIBLE = 0.1

# Predictions that are quadratic enough to be compared with what is measured, in nats per row.
SMALL_LOSS = 0.1


@dataclass(frozen=True)
class PathPoint:
    """One point of the path from the dense network to a sparse one.

    Losses are in nats per row of data, on rows that were kept out where they are measured.

    Attributes:
        kept: Share of the judged weights that stay.
        predicted: Increase of the loss since the dense network, as the curvature predicts it.
        measured: The same, as it was measured.
        standard_error: Of the measured increase, from the differences of each row.
        delta_f: Change of the log evidence over all data since the dense network, in nats; positive favours
            the sparse network.
        metrics: Loss and metrics by name.
        as_good: Whether the rows that were kept out cannot tell that the network is worse than the dense
            one, neither by its loss nor by its accuracy: the mean of the paired differences is not above
            zero at the one-sided level of 5 %, or below a tenth of the standard error of the dense
            network's own mean.
    """

    kept: float
    predicted: float
    measured: float
    standard_error: float
    delta_f: float
    metrics: dict[str, float]
    as_good: bool


def temperature(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return what predicted losses must be divided by to be the measured ones.

    Least squares through the origin over the points whose prediction is small, so that the loss is
    quadratic in what changed; the first point if none is.

    Args:
        predicted: Increases of the loss per row, as the curvature predicts them.
        measured: As they were measured on rows that were kept out.

    Returns:
        The temperature, between 0.01 and 100.
    """
    p, m = np.asarray(predicted), np.asarray(measured)
    small = p <= max(SMALL_LOSS, p.min())
    p, m = p[small], m[small]
    slope = float(p @ m / max(p @ p, 1e-300))
    return float(1 / np.clip(slope, 1e-2, 1e2))


def as_good(
    dense: dict[str, Float[np.ndarray, " rows"]], other: dict[str, Float[np.ndarray, " rows"]]
) -> bool:
    """Say whether rows cannot tell that a network is worse than the dense one, in loss and accuracy.

    The mean of the paired differences is not above zero at the one-sided level of 5 %, or it is below a
    tenth of the standard error of the dense network's own mean.
    """
    worse = [(dense["loss"], other["loss"])]
    if "accuracy" in dense:
        worse.append((-dense["accuracy"], -other["accuracy"]))
    for before, after in worse:
        mean, error = increase(before, after)
        _, known = increase(np.zeros_like(before), before)
        if mean > max(QUANTILE * error, NEGLIGIBLE * known):
            return False
    return True


def is_fine(point: PathPoint, dense: PathPoint, lose_at_most: float | None) -> bool:
    """Say whether a point has lost no more than it may; see `chosen_point`."""
    if lose_at_most is None:
        return point.as_good
    if "accuracy" in dense.metrics:
        lost = dense.metrics["accuracy"] - point.metrics["accuracy"]
        return 100 * lost <= lose_at_most + 1e-9
    return point.measured <= lose_at_most


def chosen_point(
    points: Sequence[PathPoint], *, lose_at_most: float | None, keep: float | None
) -> int:
    """Return the number of the point that is taken; the first is the dense network.

    The path is followed until two points in a row have lost too much.

    Args:
        points: From dense to sparse.
        lose_at_most: Percentage points of accuracy, or nats per row for losses without an accuracy, that
            may be lost. By default, what is not distinguishable from zero.
        keep: Share of weights, instead.
    """
    if keep is not None:
        return len(points) - 1
    good = [is_fine(point, points[0], lose_at_most) for point in points]
    # One point in twenty is worse by chance, and one that is as good by chance must not count behind others.
    ends = [i for i in range(1, len(good)) if not good[i] and not good[i - 1]]
    return max(i for i in range(ends[0] if ends else len(good)) if good[i] or i == 0)

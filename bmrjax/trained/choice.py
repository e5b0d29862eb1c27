"""Which point of a path is taken, and the temperature that the path tells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bmrjax.trained.evaluation import QUANTILE, increase

# What may be lost, as a share of the standard error with which the rows know the dense network's own loss,
# and accuracy. A perceptron on Fashion-MNIST, by 100 random choices of 6,000 rows: with half an error for the
# loss, and an accuracy that is not significantly lower, 27 % to 72 % of the weights stayed (in 80 % of the
# choices), at a loss on 8,000 other rows that was higher by 0.0019; with these margins 38 % to 44 %, and
# 0.0005.
LOSS_MARGIN = 0.25
ACCURACY_MARGIN = 1.0

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
        flops: Share of the operations in matrix products and convolutions that stay; one for single weights,
            which dense hardware does not skip.
        as_good: Whether the rows that were kept out show that the network is as good as the dense one: with
            95 % confidence, its loss is not above the dense network's by more than a quarter of the standard
            error of the dense network's own loss, nor its accuracy below by more than one of its own.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> path = bmr.reduce_network(network, (x, y)).path
        >>> path[0].kept, path[0].measured, path[0].as_good  # the dense network
        (1.0, 0.0, True)
        >>> sparsest = min((point for point in path if point.as_good), key=lambda point: point.kept)
        >>> bool(sparsest.delta_f > 0)
        True
    """

    kept: float
    predicted: float
    measured: float
    standard_error: float
    delta_f: float
    metrics: dict[str, float]
    as_good: bool
    flops: float = 1.0


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
    """Say whether rows show that a network is as good as the dense one.

    Tests of non-inferiority on the paired differences: the upper end of the one-sided 95 % interval of what
    the loss rises by is at most a quarter of the standard error of the dense network's own mean loss, and of
    what the accuracy falls by, one of its standard errors. So few rows, or noisy ones, speak against a
    network and not for it. An accuracy of one is known to 3 / n, with 95 % confidence.
    """
    if not _no_worse(dense["loss"], other["loss"], LOSS_MARGIN):
        return False
    if "accuracy" not in dense:
        return True
    right, still = dense["accuracy"], other["accuracy"]
    return _no_worse(-right, -still, ACCURACY_MARGIN, at_least=3 / len(right))


def _no_worse(
    dense: Float[np.ndarray, " rows"],
    other: Float[np.ndarray, " rows"],
    margin: float,
    at_least: float = 0.0,
) -> bool:
    mean, error = increase(dense, other)
    _, known = increase(np.zeros_like(dense), dense)
    return mean + QUANTILE * error <= max(margin * known, at_least)


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

    The path is followed from dense to sparse, to the point before the first that has lost too much. So all
    tests on the same rows together are wrong as often as one of them: the network that is taken is worse than
    a margin with a probability of 5 % at most (fixed-sequence testing).

    Args:
        points: From dense to sparse.
        lose_at_most: Percentage points of accuracy, or nats per row for losses without an accuracy, that
            may be lost. By default, see `as_good`.
        keep: Share of weights, instead.

    References:
        Maurer, Hothorn and Lehmacher (1995), for the sequence of tests.
    """
    if keep is not None:
        return len(points) - 1
    taken = 0
    while taken + 1 < len(points) and is_fine(points[taken + 1], points[0], lose_at_most):
        taken += 1
    return taken

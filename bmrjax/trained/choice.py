"""Which point of a path is taken, and the temperature that the path tells."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from jaxtyping import Float

from bmrjax.trained.evaluation import QUANTILE, increase

# What may be lost, as a share of the standard error with which the rows know the dense network's own loss,
# and accuracy. A perceptron on Fashion-MNIST, by 100 random choices of 6,000 rows: with half an error for the
# loss, and an accuracy that is not significantly lower, 27 % to 72 % of the weights stayed (in 80 % of the
# choices), at a loss on 8,000 other rows that was higher by 0.0019; with these margins 38 % to 44 %, and
# 0.0005.
LOSS_MARGIN = 0.25
ACCURACY_MARGIN = 1.0

# Bounds of the temperature, and the standard deviation of its logarithm before anything is measured.
TEMPERATURES = (0.01, 100.0)
TEMPERATURE_SCALE = float(np.log(4.0))

# Standard error of a prediction as a share of it, where the loss rises little; the square doubles at this
# rise, in nats per row.
PREDICTION_ERROR = 0.3
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


def path_temperature(
    predicted: Sequence[float], losses: Sequence[Float[np.ndarray, " rows"]]
) -> float:
    """Return the temperature that a path tells; see `temperature`.

    Args:
        predicted: Increases of the loss per row since the dense network, at each point.
        losses: Of each row that was kept out: of the dense network, and at each point.
    """
    rises = [increase(before, after) for before, after in itertools.pairwise(losses)]
    return temperature(np.diff([0.0, *predicted]).tolist(), *zip(*rises, strict=True))


def temperature(
    predicted: Sequence[float], measured: Sequence[float], errors: Sequence[float]
) -> float:
    """Return what predicted losses must be divided by to be the measured ones.

    Rises are those from one point of a path to the next: what rows say by chance of one point, they say of
    all later ones as well, while differences of neighbours have nearly independent errors.

    A measured rise is taken to be the prediction over the temperature, with two errors: the standard error
    of the measurement, and that of the prediction, a share of it that grows with the rise so far, as the loss
    is less quadratic there. Each point counts by both, and the logarithm of the temperature has a normal
    prior around zero, so points that say little leave it near 1. The estimate solves the estimating equation
    of these means and variances, a quasi-likelihood.

    A fall of the loss says that the network was fitted to more than it will see again, and not that the
    curvature is zero. It counts as no rise, with an error of its own size.

    Args:
        predicted: Increases of the loss per row from the point before, as the curvature predicts them.
        measured: As they were measured on rows that were kept out.
        errors: Standard errors of these.

    Returns:
        The temperature, between 0.01 and 100.

    References:
        Wedderburn (1974), Biometrika 61, for quasi-likelihood.
    """
    p, m, e = (np.asarray(x, np.float64) for x in (predicted, measured, errors))
    known = np.isfinite(p) & np.isfinite(m) & np.isfinite(e) & (p > 0)
    p, m, e = p[known], m[known], e[known]
    noise, rise = e**2 + np.minimum(m, 0) ** 2, np.maximum(m, 0)
    share = PREDICTION_ERROR**2 * (1 + np.cumsum(rise) / SMALL_LOSS)

    def score(log: float) -> float:
        """Return the slope of the log quasi-posterior in minus the logarithm of the temperature."""
        scaled = np.exp(log) * p
        pull = scaled * (rise - scaled) / (noise + share * scaled**2)
        return float(np.sum(pull)) - log / TEMPERATURE_SCALE**2

    lowest, highest = (float(-np.log(t)) for t in reversed(TEMPERATURES))
    if score(lowest) <= 0:
        return TEMPERATURES[1]
    if score(highest) >= 0:
        return TEMPERATURES[0]
    root: Any = scipy.optimize.brentq(score, lowest, highest)
    return float(np.exp(-root))


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

"""Pareto smoothed importance sampling for many sets of weights at once."""

import math

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

# Weak prior of the shape: as many exceedances, with a shape of one half.
_PRIOR_COUNT, _PRIOR_SHAPE = 10, 0.5
# Numbers in the largest array.
_MOST_NUMBERS = 2e6


def smooth_tails(
    log_weights: Float[np.ndarray, "sets draws"],
) -> tuple[Float[np.ndarray, "sets draws"], Float[np.ndarray, " sets"]]:
    r"""Replace the largest weights of each set by quantiles of a generalised Pareto distribution.

    The tail is the largest :math:`M = \min(S / 5, 3 \sqrt S)` of S weights. Its excess over the largest of
    the others is fitted by Zhang and Stephens' estimate, an average over a grid of profile likelihoods, and
    its m-th member becomes the quantile (m - 1/2) / M, but no more than the largest weight was.

    Args:
        log_weights: ln of the weights, finite, each set up to a constant of its own; at least 25 draws.

    Returns:
        ln of the smoothed weights, whose sum over a set is 1; and the shapes, Pareto k: above 0.7 the mean is
        not to be relied on. A tail without spread has the shape infinity, and stays as it is.

    References:
        Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling; Zhang and
        Stephens (2009), A new and efficient estimation method for the generalized Pareto distribution.
    """
    draws = log_weights.shape[1]
    count = int(min(draws / 5, 3 * math.sqrt(draws)))
    found = log_weights - log_weights.max(1, keepdims=True)
    shapes = np.empty(len(found))
    for begin in range(0, len(found), max(1, int(_MOST_NUMBERS / (count * _grid_size(count))))):
        part = slice(begin, begin + max(1, int(_MOST_NUMBERS / (count * _grid_size(count)))))
        rows = found[part]
        at = np.argpartition(rows, draws - count - 1, axis=1)[:, draws - count - 1 :]
        at = np.take_along_axis(at, np.argsort(np.take_along_axis(rows, at, 1), axis=1), 1)
        top = np.exp(np.take_along_axis(rows, at, 1))
        excess = top[:, 1:] - top[:, :1]
        has_tail = excess[:, 0] > 0
        # A row without a tail is fitted to anything, and not used.
        fitted = np.where(has_tail[:, None], excess, np.arange(1.0, count + 1))
        shape, scale = _fit(fitted)
        level = (np.arange(count) + 0.5) / count
        quantile = _quantiles(level, shape[:, None], scale[:, None])
        smoothed = np.log(np.minimum(quantile + top[:, :1], 1.0))
        smoothed = np.where(has_tail[:, None], smoothed, np.take_along_axis(rows, at[:, 1:], 1))
        np.put_along_axis(rows, at[:, 1:], smoothed, 1)
        shapes[part] = np.where(has_tail, shape, math.inf)
    return found - logsumexp(found, axis=1, keepdims=True), shapes


def _grid_size(count: int) -> int:
    return 30 + int(math.sqrt(count))


def _fit(excess: Float[np.ndarray, "sets tail"]) -> tuple[np.ndarray, np.ndarray]:
    """Return shape and scale of the generalised Pareto distribution of sorted positive numbers."""
    count = excess.shape[1]
    points = np.arange(1, _grid_size(count) + 1) - 0.5
    quartile = excess[:, int(count / 4 + 0.5) - 1, None]
    theta = 1 / excess[:, -1:] + (1 - np.sqrt(_grid_size(count) / points)) / (3 * quartile)
    shape = np.log1p(-theta[:, :, None] * excess[:, None, :]).mean(2)
    with np.errstate(all="ignore"):
        log_likelihood = count * (np.log(-theta / shape) - shape - 1)
    log_likelihood = np.where(np.isfinite(log_likelihood), log_likelihood, -np.inf)
    weight = np.exp(log_likelihood - logsumexp(log_likelihood, axis=1, keepdims=True))
    mean = np.sum(weight * theta, axis=1)
    shape = np.log1p(-mean[:, None] * excess).mean(1)
    scale = -shape / mean
    shape = (count * shape + _PRIOR_COUNT * _PRIOR_SHAPE) / (count + _PRIOR_COUNT)
    return shape, scale


def _quantiles(level: np.ndarray, shape: np.ndarray, scale: np.ndarray) -> np.ndarray:
    small = np.abs(shape) < 1e-8
    safe = np.where(small, 1.0, shape)
    curved = np.expm1(-safe * np.log1p(-level)) / safe
    return scale * np.where(small, -np.log1p(-level), curved)

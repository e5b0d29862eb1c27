"""Moments and intervals of elements, averaged over submodels."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from bmrjax.fitted.search import Found

_BISECTIONS = 60


@dataclass(frozen=True)
class Averaged:
    """Each element under all submodels, in which it is zero or not.

    Attributes:
        inclusion_prob: Probability that it is in.
        mean: Mean, zeros counted.
        sd: Standard deviation, zeros counted.
        lower: Lower end of the central interval.
        upper: Upper end.
    """

    inclusion_prob: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]
    lower: Float[np.ndarray, " n"]
    upper: Float[np.ndarray, " n"]


def average(found: Found, prob: float = 0.95) -> Averaged:
    """Average over submodels: each element is a mixture of normals and a spike at zero.

    Args:
        found: The submodels. Terms may have negative weights, where others make up for them.
        prob: Probability of the central interval. Its ends are zero where the spike reaches them.
    """
    inside = np.clip(found.weight @ found.inclusion, 0.0, 1.0)
    inside[(found.inclusion == 1.0).all(0)] = 1.0
    mean = found.weight @ (found.inclusion * found.loc)
    second = found.weight @ (found.inclusion * (found.variance + found.loc**2))
    tail = 0.5 * (1 - prob)
    return Averaged(
        inside,
        mean,
        np.sqrt(np.maximum(second - mean**2, 0.0)),
        _quantile(found, tail),
        _quantile(found, 1 - tail),
    )


def _quantile(found: Found, level: float) -> Float[np.ndarray, " n"]:
    return mixture_quantile(found.weight, found.inclusion, found.loc, found.variance, level)


def mixture_quantile(
    weight: Float[np.ndarray, " terms"],
    inclusion: Float[np.ndarray, "terms n"],
    loc: Float[np.ndarray, "terms n"],
    variance: Float[np.ndarray, "terms n"],
    level: float,
) -> Float[np.ndarray, " n"]:
    """Return a quantile of each of several mixtures of normals and a spike at zero.

    Args:
        weight: Weight of each term; they add up to one. Negative ones correct others.
        inclusion: Share of the normal in each term; the spike has the rest.
        loc: Mean of each normal.
        variance: Its variance.
        level: Probability of being at or below the quantile.
    """
    matters = np.abs(weight) > 1e-7 * weight.max()
    weight = weight[matters] / weight[matters].sum()
    inclusion, loc = inclusion[matters], loc[matters]
    sd = np.sqrt(variance[matters])
    part = weight[:, None] * inclusion
    scale = np.where(part != 0, sd, 1.0)

    def below(x: np.ndarray) -> np.ndarray:
        return (part * ndtr((x - loc) / scale)).sum(0)

    spike = 1 - part.sum(0)
    zero = np.zeros(loc.shape[1])
    at_zero = below(zero)
    reach = 10 * scale.max(0) + np.abs(loc).max(0)
    low, high = -reach, reach
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        above = below(middle) + np.where(middle >= 0, spike, 0.0) >= level
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    on_spike = (at_zero < level) & (level <= at_zero + spike)
    return np.where(on_spike, 0.0, high)

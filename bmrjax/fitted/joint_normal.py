"""A joint normal posterior with an independent normal prior, checked, in double precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from bmrjax.fitted.layout import shortened

# Draws per element below which a covariance says nothing of what one element is given the others: such
# variances are too small by a factor of about 1 - elements / draws.
LEAST_DRAWS_PER_ELEMENT = 2

# Variance of a posterior per variance of its prior that is put down to a fit that is not exact.
MOST_WIDTH = 1.1


@dataclass(frozen=True)
class JointNormal:
    """Posterior and prior of n elements.

    Double precision on the host: draws and parameters in float32 have the digits that a covariance of nearly
    collinear elements needs, but its inverse in float32 has not.

    Attributes:
        loc: Posterior mean.
        covariance: Posterior covariance.
        prior_loc: Prior mean.
        prior_scale: Prior standard deviation.
        precision: Inverse of the covariance, where it is known to more digits than the covariance has for it.
    """

    loc: Float[np.ndarray, " n"]
    covariance: Float[np.ndarray, "n n"]
    prior_loc: Float[np.ndarray, " n"]
    prior_scale: Float[np.ndarray, " n"]
    precision: Float[np.ndarray, "n n"] | None = None


def moments(
    draws: Float[np.ndarray, "draws n"], labels: Sequence[str]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """Return mean and covariance of draws.

    Args:
        draws: One row per draw.
        labels: Name of each element, for messages.

    Raises:
        ValueError: For draws that are not finite, too few of them, or elements that do not vary.
    """
    draws = np.asarray(draws, np.float64)
    count, size = draws.shape
    bad = ~np.isfinite(draws)
    if bad.any():
        raise ValueError(
            f"reduce_fit: {int(bad.any(1).sum())} of {count} draws are not finite, in "
            f"{_listed(np.any(bad, axis=0), labels)}. Leave these draws out only if you know why they "
            "diverged."
        )
    least = LEAST_DRAWS_PER_ELEMENT * size + 2
    if count < least:
        raise ValueError(
            f"reduce_fit: {count} draws are too few for the covariance of {size} elements: at least {least} "
            f"are needed, and {100 * size} are better. Draw more, or name fewer sites in `sites`."
        )
    loc = draws.mean(0)
    still = np.ptp(draws, axis=0) <= 1e-12 * np.abs(loc)
    if still.any():
        names = _listed(still, labels)
        raise ValueError(
            f"reduce_fit: {names} do not vary over the draws, so there is no posterior to reduce. "
            "Leave their site out of `sites`."
        )
    centred = draws - loc
    return loc, centred.T @ centred / (count - 1)


def check_joint_normal(
    normal: JointNormal, labels: Sequence[str], *, rounding: float = 1e-14
) -> None:
    """Raise ValueError unless the moments are finite, the scales positive and the covariance definite.

    Args:
        normal: Posterior and prior.
        labels: Name of each element, for messages.
        rounding: Relative error of the covariance. An eigenvalue of the correlations that is not ten times as
            large is taken for zero.
    """
    size = len(labels)
    for name, expected in (
        ("loc", (size,)),
        ("covariance", (size, size)),
        ("prior_loc", (size,)),
        ("prior_scale", (size,)),
    ):
        value = getattr(normal, name)
        if value.shape != expected:
            raise ValueError(
                f"reduce_fit: {name} has shape {value.shape}; {size} elements need {expected}."
            )
        if not np.isfinite(value).all():
            raise ValueError(f"reduce_fit: {name} has values that are not finite.")
    if not (normal.prior_scale > 0).all():
        raise ValueError("reduce_fit: prior_scale must be positive.")
    variance = np.diag(normal.covariance)
    if not (variance > 0).all():
        names = _listed(~(variance > 0), labels)
        raise ValueError(
            f"reduce_fit: {names} have no posterior variance, so there is nothing to reduce; "
            "leave them out."
        )
    scale = np.sqrt(variance)
    correlation = normal.covariance / scale / scale[:, None]
    if not np.allclose(correlation, correlation.T, atol=1e-5):
        raise ValueError("reduce_fit: the covariance is not symmetric.")
    if normal.precision is not None:
        return  # nothing is computed from the covariance's small eigenvalues
    values, vectors = np.linalg.eigh(0.5 * (correlation + correlation.T))
    if values[0] <= 10 * rounding * size:
        names = _listed(np.abs(vectors[:, 0]) > 0.1, labels)
        raise ValueError(
            f"reduce_fit: the covariance is singular: {names} determine each other, up to rounding. "
            "Leave one of them out, or give the covariance in double precision."
        )


def width(
    normal: JointNormal,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """Return the variances of the posterior per variance of the prior, ascending, with their directions.

    Args:
        normal: Posterior and prior.
    """
    scale = normal.prior_scale
    relative = normal.covariance / scale / scale[:, None]
    return np.linalg.eigh(0.5 * (relative + relative.T))


def most_width(size: int, independent_draws: float | None) -> float:
    """Return the largest relative variance that noise explains; a posterior beyond is wider than its prior.

    Args:
        size: Number of elements.
        independent_draws: Number of independent draws that the covariance is from; None for a closed form.

    References:
        Johnstone (2001), Annals of Statistics 29, for the largest eigenvalue of a sample covariance.
    """
    if independent_draws is None:
        return MOST_WIDTH
    count = max(independent_draws, 1.0)
    edge = (1 + math.sqrt(size / count)) ** 2
    return max(MOST_WIDTH, edge * (1 + 3 * math.sqrt(2 / count)))


def wide_elements(
    normal: JointNormal, labels: Sequence[str], independent_draws: float | None
) -> tuple[float, str] | None:
    """Return the largest relative variance, and where, if the posterior is wider than its prior.

    Args:
        normal: Posterior and prior.
        labels: Name of each element.
        independent_draws: As in `most_width`.
    """
    values, vectors = width(normal)
    if values[-1] <= most_width(len(labels), independent_draws):
        return None
    return float(values[-1]), _listed(np.abs(vectors[:, -1]) > 0.3, labels)


def _listed(chosen: Any, labels: Sequence[str]) -> str:
    return shortened([label for label, is_in in zip(labels, chosen, strict=True) if is_in])

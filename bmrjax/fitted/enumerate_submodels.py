"""Every submodel of a few units, many at a time."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.swept import Precision

# Numbers in the matrices of one chunk of submodels: 32 MB of them.
_CHUNK = 4_000_000


def all_masks(units: int) -> Bool[np.ndarray, "submodels units"]:
    """Return every choice of units, the full model first."""
    numbers = np.arange(2**units)
    return (numbers[:, None] >> np.arange(units)) & 1 == 0


def evaluate_submodels(
    precision: Precision, masks: Bool[np.ndarray, "submodels units"]
) -> tuple[
    Float[np.ndarray, " submodels"],
    Float[np.ndarray, "submodels n"],
    Float[np.ndarray, "submodels n"],
]:
    """Compute evidence and posterior of submodels from subsets of one precision.

    The matrices of a chunk are padded with the identity to full size and factored as one batch.

    Args:
        precision: The posterior and the units.
        masks: Units that are in, by submodel.

    Returns:
        `delta_f` of each submodel, relative to the full one in nats (positive favours the submodel); mean
        and variance of each element in it, zero where it is out.
    """
    found = [_evaluate(precision, chunk) for chunk in _chunks(precision, masks)]
    delta_f, loc, variance = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return delta_f, loc, variance


def _chunks(
    precision: Precision, masks: Bool[np.ndarray, "submodels units"]
) -> Iterator[Bool[np.ndarray, "some units"]]:
    step = max(1, _CHUNK // precision.size**2)
    for start in range(0, len(masks), step):
        yield masks[start : start + step]


def _evaluate(
    p: Precision, masks: Bool[np.ndarray, "some units"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    inside = p.elements(masks)
    both = inside[:, :, None] & inside[:, None, :]
    padded = np.where(both, p.matrix, 0.0)
    diagonal = np.arange(p.size)
    padded[:, diagonal, diagonal] += ~inside
    factor = np.linalg.cholesky(padded)
    log_det = 2.0 * np.log(factor[:, diagonal, diagonal]).sum(1)
    covariance = np.linalg.inv(padded)
    eta = np.where(inside, p.eta, 0.0)
    # By the factor: an inverse times η carries the error of hardly known directions into all.
    half = np.linalg.solve(factor, eta[..., None])
    loc = np.linalg.solve(factor.swapaxes(1, 2), half)[..., 0]
    quadratic = (half**2).sum((1, 2)) - p.loc @ p.eta
    at_zero = p.log_prior_at_zero + 0.5 * math.log(2 * math.pi)
    delta_f = 0.5 * (p.log_det - log_det + quadratic) - (~inside) @ at_zero
    variance = np.where(inside, covariance[:, diagonal, diagonal], 0.0)
    return delta_f, loc * p.scale, variance * p.scale**2

"""Draws from the posterior that is averaged over submodels."""

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.swept import Precision


def averaged_draws(
    precision: Precision,
    weight: Float[np.ndarray, " terms"],
    sets: Bool[np.ndarray, "terms units"],
    count: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "count n"]:
    """Draw a submodel by its weight, and the elements given that those outside it are zero.

    Args:
        precision: The posterior and the units.
        weight: Weight of each submodel; negative ones, which corrections may leave, count as zero.
        sets: Units that are in, by submodel.
        count: Number of draws.
        rng: Source of randomness.
    """
    masks, which = np.unique(sets, axis=0, return_inverse=True)
    total = np.maximum(np.bincount(which.ravel(), weight, len(masks)), 0.0)
    chosen = rng.choice(len(masks), count, p=total / total.sum())
    found = np.zeros((count, precision.size))
    for submodel in np.unique(chosen):
        rows = np.flatnonzero(chosen == submodel)
        kept = np.flatnonzero(precision.elements(masks[submodel]))
        factor = np.linalg.cholesky(precision.matrix[np.ix_(kept, kept)])
        half = np.linalg.solve(factor, precision.eta[kept])
        noise = rng.standard_normal((len(rows), len(kept)))
        found[np.ix_(rows, kept)] = np.linalg.solve(factor.T, (half + noise).T).T
    return found * precision.scale

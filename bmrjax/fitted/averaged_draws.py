"""Draws from the posterior that is averaged over submodels."""

import numpy as np
from jaxtyping import Bool, Float, Int

from bmrjax.fitted.nodes import Nodes


def averaged_draws(
    nodes: Nodes,
    weight: Float[np.ndarray, " terms"],
    sets: Bool[np.ndarray, "terms units"],
    node: Int[np.ndarray, " terms"],
    count: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "count n"]:
    """Draw a submodel by its weight, and the elements given that those outside it are zero.

    Args:
        nodes: The posterior and the units.
        weight: Weight of each submodel; negative ones, which corrections may leave, count as zero.
        sets: Units that are in, by submodel.
        node: Joint normal that each submodel is drawn under.
        count: Number of draws.
        rng: Source of randomness.
    """
    both = np.concatenate([sets, node[:, None]], 1).astype(int)
    terms, which = np.unique(both, axis=0, return_inverse=True)
    total = np.maximum(np.bincount(which.ravel(), weight, len(terms)), 0.0)
    chosen = rng.choice(len(terms), count, p=total / total.sum())
    found = np.zeros((count, nodes.size))
    for term in np.unique(chosen):
        rows = np.flatnonzero(chosen == term)
        precision = nodes.precisions[terms[term, -1]]
        kept = np.flatnonzero(precision.elements(terms[term, :-1].astype(bool)))
        factor = np.linalg.cholesky(precision.matrix[np.ix_(kept, kept)])
        half = np.linalg.solve(factor, precision.eta[kept])
        noise = rng.standard_normal((len(rows), len(kept)))
        drawn = np.linalg.solve(factor.T, (half + noise).T).T
        found[np.ix_(rows, kept)] = drawn * precision.scale[kept]
    return found

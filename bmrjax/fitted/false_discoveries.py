"""A list of candidates of which few are expected to be without effect."""

import numpy as np
from jaxtyping import Bool, Float


def within_false_discoveries(
    inclusion_prob: Float[np.ndarray, " units"], rate: float
) -> Bool[np.ndarray, " units"]:
    """Return the longest list of which a given share is expected to be without effect, at most.

    Args:
        inclusion_prob: Probability that each unit is in.
        rate: Expected share of false ones among those that are listed.

    References:
        Müller, Parmigiani, Robert and Rousseau (2004), Journal of the American Statistical Association 99.
    """
    order = np.argsort(-inclusion_prob, kind="stable")
    share = np.cumsum(1 - inclusion_prob[order]) / np.arange(1, len(order) + 1)
    found = np.zeros(len(order), bool)
    # The share grows along the order, up to rounding.
    found[order[: int(np.sum(share <= rate))]] = True
    return found

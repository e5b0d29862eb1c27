"""Which candidates to report: two rules for a selection, each with what it is best at."""

import numpy as np
from jaxtyping import Bool, Float


def largest_expected_f1(
    weight: Float[np.ndarray, " terms"], sets: Bool[np.ndarray, "terms units"]
) -> Bool[np.ndarray, " units"]:
    r"""Return the selection whose F1 score is the largest on average over the posterior.

    The F1 score of a selection A, the effects being S, is :math:`2|A ∩ S| / (|A| + |S|)`, and one if both
    are empty. Among selections of k candidates, its expectation is the sum over A of
    :math:`E[2 \cdot 1(i ∈ S) / (k + |S|)]`, so the k candidates with the largest terms are the best ones.

    Args:
        weight: Weight of each submodel; they add up to one, and corrections may be negative.
        sets: Units that are in, by submodel.

    References:
        Jansche (2007), ACL; Waegeman et al. (2014), Journal of Machine Learning Research 15.
    """
    held = np.asarray(sets, float)
    size = held.sum(1)
    units = held.shape[1]
    best, most = np.zeros(units, bool), float(weight @ (size == 0))
    for k in range(1, units + 1):
        terms = (2 * weight / (k + size)) @ held
        order = np.argsort(-terms, kind="stable")[:k]
        expected = float(terms[order].sum())
        if expected > most:
            best, most = np.isin(np.arange(units), order), expected
    return best


def within_false_discoveries(
    inclusion_prob: Float[np.ndarray, " units"], rate: float
) -> Bool[np.ndarray, " units"]:
    """Return the largest selection of which a given share is expected to be without effect, at most.

    Args:
        inclusion_prob: Probability that each unit is in.
        rate: Expected share of false ones among those that are selected.

    References:
        Müller, Parmigiani, Robert and Rousseau (2004), Journal of the American Statistical Association 99.
    """
    order = np.argsort(-inclusion_prob, kind="stable")
    share = np.cumsum(1 - inclusion_prob[order]) / np.arange(1, len(order) + 1)
    found = np.zeros(len(order), bool)
    # The share grows along the order, up to rounding.
    found[order[: int(np.sum(share <= rate))]] = True
    return found

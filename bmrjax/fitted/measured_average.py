"""Averages over submodels that have exchanged probability by their measured evidence."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.search import Found
from bmrjax.fitted.verification import Verification


@dataclass(frozen=True)
class MeasuredAverage:
    """What is shown of submodels once the evidence of the most probable ones has been measured.

    Attributes:
        found: The submodels as predicted, with terms for the probability that was moved. These may have
            negative weights, which a term of the same submodel makes up for.
        prob: Probability of each submodel that is listed, by measured evidence where it was measured.
        best: Place of the most probable one in the list.
    """

    found: Found
    prob: Float[np.ndarray, " submodels"]
    best: int

    @property
    def chosen(self) -> Bool[np.ndarray, " units"]:
        """Units of the most probable submodel."""
        return self.found.masks[self.best]


def by_measured_evidence(
    found: Found, verification: Verification | None, nodes: Nodes
) -> MeasuredAverage:
    """Let the submodels whose evidence was measured exchange probability, in what is averaged as well.

    Args:
        found: The submodels as predicted.
        verification: Predicted and measured evidence of the first of them; None leaves them as they are.
        nodes: The posterior and the units.
    """
    if verification is None:
        return MeasuredAverage(found, found.prob, 0)
    prob = found.prob.copy()
    count = len(verification.measured)
    prob[:count] = verification.prob(found.prob[:count])
    moved = prob - found.prob
    # Submodels without a part in any average cost time only.
    some = np.flatnonzero(np.abs(moved) > 1e-12)
    terms = [nodes.terms(found.masks[i]) for i in some]
    if not terms:
        return MeasuredAverage(found, prob, int(np.argmax(prob)))
    share, loc, variance = (np.concatenate(parts) for parts in zip(*terms, strict=True))
    masks = np.repeat(found.masks[some], len(nodes), 0)
    averaged = replace(
        found,
        weight=np.append(found.weight, share * np.repeat(moved[some], len(nodes))),
        inclusion=np.concatenate([found.inclusion, nodes.elements(masks).astype(float)]),
        loc=np.concatenate([found.loc, loc]),
        variance=np.concatenate([found.variance, variance]),
        sets=np.concatenate([found.sets, masks]),
        node=np.append(found.node, np.tile(np.arange(len(nodes)), len(some))),
    )
    return MeasuredAverage(averaged, prob, int(np.argmax(prob)))

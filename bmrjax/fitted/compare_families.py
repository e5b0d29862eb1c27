"""Families of submodels: which of several sets of candidates have an effect at all."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from pandas import DataFrame

# The most sets of candidates at once: two to this power are the families.
_MOST = 6


def compare_families(
    weight: Float[np.ndarray, " terms"],
    sets: Bool[np.ndarray, "terms units"],
    families: Mapping[str, Sequence[int]],
    log_odds: float,
) -> "DataFrame":
    """Return the probability of each combination of sets with and without an effect in them.

    Args:
        weight: Weight of each submodel; they add up to one, and corrections may be negative.
        sets: Units that are in, by submodel.
        families: Name of a set to its units; the sets are disjoint.
        log_odds: ln of the prior odds of each unit to be in.

    Raises:
        ValueError: For sets that overlap, or too many of them.
    """
    import pandas as pd

    if not families:
        raise ValueError("FitReduction.families: name at least one set of candidates.")
    if len(families) > _MOST:
        raise ValueError(
            f"FitReduction.families: {len(families)} sets make {2 ** len(families):,} families; at most "
            f"{_MOST} sets are compared at once."
        )
    owner: dict[int, str] = {}
    for name, units in families.items():
        for unit in units:
            if unit in owner:
                raise ValueError(
                    f"FitReduction.families: the sets '{owner[unit]}' and '{name}' overlap; each "
                    "candidate is in one."
                )
            owner[unit] = name
    present = np.stack([sets[:, list(units)].any(1) for units in families.values()], 1)
    # Probability that none of k candidates is in, before the data.
    log_none = [-len(units) * float(np.logaddexp(0.0, log_odds)) for units in families.values()]
    rows = []
    for combination in itertools.product([False, True], repeat=len(families)):
        prob = float(np.clip(weight @ (present == combination).all(1), 0.0, 1.0))
        log_prior = sum(
            math.log(-math.expm1(own)) if there else own
            for there, own in zip(combination, log_none, strict=True)
        )
        rows.append((*combination, math.exp(log_prior), prob, prob / math.exp(log_prior)))
    table = pd.DataFrame(rows, columns=[*families, "prior", "prob", "prob_equal"])
    table["prob_equal"] /= table["prob_equal"].sum()
    return table.sort_values("prob", ascending=False, ignore_index=True)

"""Families of submodels: which of several sets of candidates have an effect at all."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.enumerate_submodels import all_masks
from bmrjax.fitted.heredity import Heredity

if TYPE_CHECKING:
    from pandas import DataFrame

# Up to this many units the prior is summed over all submodels; beyond, over draws of many short chains.
_ENUMERATED, _CHAINS, _SWEEPS = 12, 20_000, 50

# The most sets of candidates at once: two to this power are the families.
_MOST = 6


def compare_families(
    weight: Float[np.ndarray, " terms"],
    sets: Bool[np.ndarray, "terms units"],
    families: Mapping[str, Sequence[int]],
    log_odds: float,
    heredity: Heredity,
) -> "DataFrame":
    """Return the probability of each combination of sets with and without an effect in them.

    Args:
        weight: Weight of each submodel; they add up to one, and corrections may be negative.
        sets: Units that are in, by submodel.
        families: Name of a set to its units; the sets are disjoint.
        log_odds: ln of the prior odds of each unit to be in.
        heredity: Which submodels are allowed.

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
    prior_of = _prior(list(families.values()), sets.shape[1], log_odds, heredity)
    rows = []
    for combination in itertools.product([False, True], repeat=len(families)):
        prob = float(np.clip(weight @ (present == combination).all(1), 0.0, 1.0))
        prior = prior_of(np.array(combination))
        # A family that heredity excludes is as improbable after the data as before.
        rows.append((*combination, prior, prob, prob / prior if prior else 0.0))
    table = pd.DataFrame(rows, columns=[*families, "prior", "prob", "prob_equal"])
    table["prob_equal"] /= table["prob_equal"].sum()
    return table.sort_values("prob", ascending=False, ignore_index=True)


def _prior(
    families: Sequence[Sequence[int]], units: int, log_odds: float, heredity: Heredity
) -> Callable[[Bool[np.ndarray, " families"]], float]:
    """Return the prior probability of a combination of sets with and without an effect, as a function."""
    if heredity.is_empty:
        # Probability that none of k candidates is in.
        log_none = np.array([-len(f) * float(np.logaddexp(0.0, log_odds)) for f in families])
        parts = np.stack([log_none, np.log(-np.expm1(log_none))])
        return lambda there: math.exp(sum(parts[1 if t else 0, i] for i, t in enumerate(there)))
    masks = _allowed(units, log_odds, heredity)
    present = np.stack([masks[:, list(members)].any(1) for members in families], 1)
    weight = np.exp(log_odds * masks.sum(1)) if units <= _ENUMERATED else np.ones(len(masks))
    return lambda there: float(weight @ (present == there).all(1) / weight.sum())


def _allowed(units: int, log_odds: float, heredity: Heredity) -> Bool[np.ndarray, "masks units"]:
    """Return every submodel that heredity allows, or draws of them from their prior if there are many."""
    if units <= _ENUMERATED:
        masks = all_masks(units)
        return masks[heredity.allows(masks)]
    rng = np.random.default_rng(0)
    prob = 1 / (1 + math.exp(-log_odds))
    masks = np.zeros((_CHAINS, units), bool)
    for _ in range(_SWEEPS):
        for unit in rng.permutation(units):
            free = heredity.is_free(int(unit), masks)
            masks[:, unit] = np.where(free, rng.random(_CHAINS) < prob, masks[:, unit])
    return masks

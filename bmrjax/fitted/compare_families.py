"""Families of submodels: which of several sets of candidates have an effect at all."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.enumerate_submodels import all_masks
from bmrjax.fitted.layout import ElementLayout, shortened
from bmrjax.fitted.model_prior import ModelPrior

if TYPE_CHECKING:
    from pandas import DataFrame

# Under heredity, the prior is summed over all submodels of up to this many units; beyond, over draws.
_ENUMERATED, _DRAWS = 12, 20_000

# The most sets of candidates at once: two to this power are the families.
_MOST = 6


def compare_families(
    weight: Float[np.ndarray, " terms"],
    sets: Bool[np.ndarray, "terms units"],
    families: Mapping[str, Sequence[int]],
    prior: ModelPrior,
) -> "DataFrame":
    """Return the probability of each combination of sets with and without an effect in them.

    Args:
        weight: Weight of each submodel; they add up to one, and corrections may be negative.
        sets: Units that are in, by submodel.
        families: Name of a set to its units; the sets are disjoint.
        prior: Prior on submodels.

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
    if taken := sorted({"prior", "prob", "prob_equal"} & set(families)):
        raise ValueError(
            f"FitReduction.families: {taken} are columns of the table; give the sets other names."
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
    prior_of = _prior(list(families.values()), prior)
    rows = []
    for combination in itertools.product([False, True], repeat=len(families)):
        prob = float(np.clip(weight @ (present == combination).all(1), 0.0, 1.0))
        before = prior_of(np.array(combination))
        # A family that heredity excludes is as improbable after the data as before.
        rows.append((*combination, before, prob, prob / before if before else 0.0))
    table = pd.DataFrame(rows, columns=[*families, "prior", "prob", "prob_equal"])
    table["prob_equal"] /= table["prob_equal"].sum()
    return table.sort_values("prob", ascending=False, ignore_index=True)


def _prior(
    families: Sequence[Sequence[int]], prior: ModelPrior
) -> Callable[[Bool[np.ndarray, " families"]], float]:
    """Return the prior probability of a combination of sets with and without an effect, as a function."""
    if prior.heredity.is_empty:
        weights, prob = prior.mixture()
        # Probability that none of k candidates is in.
        log_none = np.array([len(family) * np.log1p(-prob) for family in families])
        parts = np.stack([log_none, np.log(-np.expm1(log_none))])
        return lambda there: float(
            weights @ np.exp(sum(parts[1 if t else 0, i] for i, t in enumerate(there)))
        )
    if prior.units <= _ENUMERATED:
        masks = all_masks(prior.units)
        masks = masks[prior.heredity.allows(masks)]
        weight = np.exp(prior.log_prob(masks))
    else:
        masks = prior.draw(_DRAWS, np.random.default_rng(0))
        weight = np.ones(len(masks))
    present = np.stack([masks[:, list(members)].any(1) for members in families], 1)
    return lambda there: float(weight @ (present == there).all(1) / weight.sum())


def members_by_name(
    sets: Mapping[str, Sequence[str]], candidates: Sequence[str], layout: ElementLayout
) -> dict[str, list[int]]:
    """Return the units of each set.

    Args:
        sets: Name of a set to candidates, or to names of sites for all of theirs.
        candidates: Names of the units.
        layout: The judged elements.

    Raises:
        TypeError: For a text in place of a list.
        ValueError: For names that are not there, or an empty set.
    """
    members = {}
    for name, given in sets.items():
        if isinstance(given, str):
            raise TypeError(
                f"FitReduction.families: the set '{name}' is a list; write ['{given}']."
            )
        members[name] = [unit for one in given for unit in _units_named(one, candidates, layout)]
        if not members[name]:
            raise ValueError(f"FitReduction.families: the set '{name}' is empty.")
    return members


def _units_named(name: str, candidates: Sequence[str], layout: ElementLayout) -> list[int]:
    if name in candidates:
        return [candidates.index(name)]
    of_site = {label for label, site in zip(layout.label, layout.site, strict=True) if site == name}
    found = [i for i, candidate in enumerate(candidates) if candidate in of_site]
    if not found:
        raise ValueError(
            f"FitReduction.families: there is no candidate '{name}'; there are {shortened(candidates)}."
        )
    return found

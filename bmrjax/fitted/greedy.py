"""A climb to a submodel that no single move improves."""

import numpy as np
from jaxtyping import Bool

from bmrjax.fitted.swept import Precision, Swept

# A move has to gain this much, in nats, so that rounding cannot make the climb run in circles.
_LEAST_GAIN = 1e-9


def climb(
    precision: Precision, start: Bool[np.ndarray, " units"], log_odds: float
) -> Bool[np.ndarray, " units"]:
    """Add, remove or swap units, each time by the best move, until no move raises the probability.

    Swaps are looked at where neither adding nor removing one unit helps: two units that stand in for each
    other are exchanged in one move.

    Args:
        precision: The posterior and the units.
        start: Units that are in at the start.
        log_odds: ln of the prior odds of each unit to be in.

    Returns:
        The units that are in at the end.
    """
    swept = Swept(precision, start)
    if not len(swept.mask):
        return swept.mask
    while True:
        gain = _gains(swept, log_odds)
        best = int(np.argmax(gain))
        if gain[best] > _LEAST_GAIN:
            swept.flip(best)
            continue
        pair = _best_swap(swept, log_odds)
        if pair is None:
            return swept.mask
        for unit in pair:
            swept.flip(unit)


def _gains(swept: Swept, log_odds: float) -> np.ndarray:
    """Return what flipping each unit gains, in nats."""
    log_posterior_odds = swept.log_bayes_factors() + log_odds
    return np.where(swept.mask, -log_posterior_odds, log_posterior_odds)


def _best_swap(swept: Swept, log_odds: float) -> tuple[int, int] | None:
    """Return the unit to take in and the one to take out that gain most, or None if no swap gains."""
    if not swept.mask.any():
        return None
    first = _gains(swept, log_odds)
    found, most = None, _LEAST_GAIN
    for unit in np.flatnonzero(~swept.mask):
        trial = swept.copy()
        trial.flip(int(unit))
        second = np.where(swept.mask, _gains(trial, log_odds), -np.inf)
        other = int(np.argmax(second))
        gain = first[unit] + second[other]
        if gain > most:
            found, most = (int(unit), other), gain
    return found

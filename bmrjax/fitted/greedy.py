"""A climb to a submodel that no single move improves."""

import numpy as np
from jaxtyping import Bool

from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.swept import Precision, Swept

# A move has to gain this much, in nats, so that rounding cannot make the climb run in circles.
_LEAST_GAIN = 1e-9


def climb(
    precision: Precision,
    start: Bool[np.ndarray, " units"],
    prior: ModelPrior,
    *,
    swaps: bool = True,
) -> Bool[np.ndarray, " units"]:
    """Add, remove or swap units, each time by the best move, until no move raises the probability.

    Swaps are looked at where neither adding nor removing one unit helps: two units that stand in for each
    other are exchanged in one move, and a unit comes in with the parents that it lacks.

    Args:
        precision: The posterior and the units.
        start: Units that are in at the start.
        prior: Prior on submodels.
        swaps: Whether to exchange units as well, which costs more than the rest.

    Returns:
        The units that are in at the end.
    """
    swept = Swept(precision, start)
    if not len(swept.mask):
        return swept.mask
    while True:
        gain = _gains(swept, prior)
        best = int(np.argmax(gain))
        if gain[best] > _LEAST_GAIN:
            swept.flip(best)
            continue
        move = _best_swap(swept, prior) if swaps else None
        if move is None:
            return swept.mask
        for unit in move:
            swept.flip(unit)


def _gains(swept: Swept, prior: ModelPrior) -> np.ndarray:
    """Return what flipping each unit gains, in nats; minus infinity where it may not be flipped."""
    log_posterior_odds = swept.log_bayes_factors() + prior.log_odds(swept.mask)
    gain = np.where(swept.mask, -log_posterior_odds, log_posterior_odds)
    return np.where(prior.heredity.free(swept.mask), gain, -np.inf)


def _best_swap(swept: Swept, prior: ModelPrior) -> list[int] | None:
    """Return the units to flip: one in and one out, or one in with its parents; None if none gains."""
    found, most = None, _LEAST_GAIN
    if prior.heredity.is_empty:
        # Submodels of one size are equally probable before the data.
        single = swept.precision.single
        incoming, outgoing = single[~swept.mask[single]], single[swept.mask[single]]
        if len(incoming) and len(outgoing):
            gain = swept.swap_gains(incoming, outgoing)
            i, o = np.unravel_index(np.argmax(gain), gain.shape)
            if gain[i, o] > most:
                found, most = [int(incoming[i]), int(outgoing[o])], float(gain[i, o])
        if not swept.precision.several:
            return found
    first = _gains(swept, prior)
    for unit in np.flatnonzero(~swept.mask):
        if not np.isfinite(first[unit]):
            for way in prior.heredity.ways_in(int(unit), swept.mask):
                trial, gain = swept.copy(), 0.0
                for u in way:
                    gain += trial.log_bayes_factor(u)
                    trial.flip(u)
                gain += float(prior.log_prob(trial.mask) - prior.log_prob(swept.mask))
                if gain > most:
                    found, most = way, gain
        elif swept.mask.any():
            trial = swept.copy()
            trial.flip(int(unit))
            second = np.where(swept.mask, _gains(trial, prior), -np.inf)
            other = int(np.argmax(second))
            gain = first[unit] + second[other]
            if gain > most:
                found, most = [int(unit), other], gain
    return found


def best_by_size(
    precision: Precision,
    start: Bool[np.ndarray, " units"],
    prior: ModelPrior,
    largest: int,
) -> Bool[np.ndarray, "sizes units"]:
    """Return good submodels of all sizes, from one by adding or removing the best unit each time.

    Args:
        precision: The posterior and the units.
        start: Units that are in at the start.
        prior: Prior on submodels.
        largest: Size to stop at.

    Returns:
        One submodel for each size from zero on, the start among them.
    """
    down = [np.array(start, bool)]
    swept = Swept(precision, start)
    while swept.mask.any():
        gain = np.where(swept.mask, _gains(swept, prior), -np.inf)
        swept.flip(int(np.argmax(gain)))
        down.append(swept.mask.copy())
    up = []
    swept = Swept(precision, start)
    while int(swept.mask.sum()) < largest and not swept.mask.all():
        gain = np.where(~swept.mask, _gains(swept, prior), -np.inf)
        swept.flip(int(np.argmax(gain)))
        up.append(swept.mask.copy())
    return np.stack([*down[::-1], *up])

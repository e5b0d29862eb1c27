"""Submodels drawn in proportion to their probability, where there are too many to list."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bmrjax.fitted.log_sum_exp import log_sum_exp
from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.swept import Precision, Swept

# Units that are drawn together at most: 16 submodels are looked at for each draw.
_LARGEST_BLOCK = 4


@dataclass(frozen=True)
class Visited:
    """What a run of the sampler has seen.

    Attributes:
        inclusion: Probability of each unit given the other units, after each sweep.
        loc: Mean of each element where its unit is in, given the other units, after each sweep.
        variance: Its variance.
        masks: Units that are in, after each sweep.
        log_prob: ln of the probability of each of these submodels up to a constant, the same for all runs.
        node: Joint normal under which each sweep was made.
    """

    inclusion: Float[np.ndarray, "sweeps units"]
    loc: Float[np.ndarray, "sweeps n"]
    variance: Float[np.ndarray, "sweeps n"]
    masks: Bool[np.ndarray, "sweeps units"]
    log_prob: Float[np.ndarray, " sweeps"]
    node: Int[np.ndarray, " sweeps"]


def sample_submodels(
    nodes: Nodes,
    start: Bool[np.ndarray, " units"],
    prior: ModelPrior,
    *,
    sweeps: int,
    warmup: int,
    rng: np.random.Generator,
) -> Visited:
    """Run a Gibbs sampler over the units, with swaps of correlated ones.

    A sweep draws each unit given the others, in random order, and proposes to exchange half as many pairs, or
    fewer where few are correlated, chosen in proportion to their squared posterior correlation. After each
    sweep the probabilities of all units given the others are kept: their averages have less Monte Carlo error
    than counts. Where there are several joint normals, one of them is drawn before each sweep, given the
    submodel.

    Args:
        nodes: The posterior and the units.
        start: Units that are in at the start.
        prior: Prior on submodels.
        sweeps: Number of sweeps that are kept.
        warmup: Number of sweeps before.
        rng: Source of randomness.

    References:
        George and McCulloch (1997), Statistica Sinica 7, section 4.
    """
    several = len(nodes) > 1
    terms = nodes.by_node(start) if several else np.zeros(1)
    node = int(np.argmax(terms))
    precision = nodes.precisions[node]
    swept = Swept(precision, start)
    units = len(swept.mask)
    pairs = _correlated_pairs(precision, sweeps + warmup, (units + 1) // 2, rng)
    inclusion, masks = np.empty((sweeps, units)), np.empty((sweeps, units), bool)
    loc, variance = np.empty((sweeps, nodes.size)), np.empty((sweeps, nodes.size))
    log_prob, drawn = np.empty(sweeps), np.zeros(sweeps, int)
    rule = prior.heredity
    families = [rule.family(int(u)) for u in np.flatnonzero(rule.parents.any(1))]
    families = [family for family in families if len(family) <= _LARGEST_BLOCK]
    current = nodes.delta_f(start) + float(prior.log_prob(swept.mask))
    for sweep in range(-warmup, sweeps):
        if several:
            # A node given the submodel.
            node = int(np.argmax(terms + rng.gumbel(size=len(terms))))
            swept = Swept(nodes.precisions[node], swept.mask)
        current += _scan(swept, prior, rng)
        for one, other in pairs[sweep]:
            if swept.mask[one] != swept.mask[other]:
                current += _swap(swept, int(one), int(other), prior, rng)
        for _ in range((len(families) + 7) // 8):
            family = families[rng.integers(len(families))]
            current += _draw_block(swept, family, prior, rng)
        if several:
            terms = nodes.by_node(swept.mask)
            current = log_sum_exp(terms) + float(prior.log_prob(swept.mask))
        if sweep < 0:
            continue
        odds = swept.log_bayes_factors() + prior.log_odds(swept.mask)
        probability = 0.5 * (1 + np.tanh(0.5 * odds))
        inclusion[sweep] = np.where(prior.heredity.free(swept.mask), probability, swept.mask)
        masks[sweep], log_prob[sweep], drawn[sweep] = swept.mask, current, node
        loc[sweep], variance[sweep] = swept.moments()
    return Visited(inclusion, loc, variance, masks, log_prob, drawn)


def _scan(swept: Swept, prior: ModelPrior, rng: np.random.Generator) -> float:
    """Draw each unit given the others, and return by how much ln of the probability has changed."""
    units = len(swept.mask)
    order, thresholds = rng.permutation(units), rng.logistic(size=units)
    done, change = 0, 0.0
    # What a unit is drawn from changes only when another one is flipped.
    while done < units:
        odds = swept.log_bayes_factors() + prior.log_odds(swept.mask)
        left = order[done:]
        flipped = (odds[left] > thresholds[left]) != swept.mask[left]
        flips = np.flatnonzero(flipped & prior.heredity.free(swept.mask)[left])
        if not len(flips):
            break
        unit = int(left[flips[0]])
        change += -odds[unit] if swept.mask[unit] else odds[unit]
        swept.flip(unit)
        done += int(flips[0]) + 1
    return float(change)


def _swap(swept: Swept, one: int, other: int, prior: ModelPrior, rng: np.random.Generator) -> float:
    """Exchange two units of which one is in, by Metropolis; return the change of ln of the probability."""
    incoming, outgoing = (other, one) if swept.mask[one] else (one, other)
    change = 0.0
    if not prior.heredity.is_empty:
        proposed = swept.mask.copy()
        proposed[[incoming, outgoing]] = True, False
        if not prior.heredity.allows(proposed):
            return 0.0
        change = float(prior.log_prob(proposed) - prior.log_prob(swept.mask))
    # Without heredity, submodels of one size are equally probable before the data.
    if len(swept.precision.units[one]) == len(swept.precision.units[other]) == 1:
        gain = change + swept.swap_gain(incoming, outgoing)
        if gain >= 0 or rng.random() < math.exp(gain):
            swept.flip(incoming)
            swept.flip(outgoing)
            return gain
        return 0.0
    gain = change + swept.log_bayes_factor(incoming)
    swept.flip(incoming)
    gain -= swept.log_bayes_factor(outgoing)
    if gain >= 0 or rng.random() < math.exp(gain):
        swept.flip(outgoing)
        return gain
    swept.flip(incoming)
    return 0.0


def _draw_block(
    swept: Swept,
    block: list[int],
    prior: ModelPrior,
    rng: np.random.Generator,
) -> float:
    """Draw a unit and its parents together, given the others; return the change of ln of the probability.

    One at a time, an interaction could come in only after main effects that the data may not support.
    """
    before = swept.mask.copy()
    changes, visited, current = [0.0], [before], 0.0
    gray = [i ^ (i >> 1) for i in range(2 ** len(block))]
    for last, now in zip(gray, gray[1:], strict=False):
        unit = block[(last ^ now).bit_length() - 1]
        of_unit = swept.log_bayes_factor(unit)
        current += -of_unit if swept.mask[unit] else of_unit
        swept.flip(unit)
        changes.append(current)
        visited.append(swept.mask.copy())
    masks = np.stack(visited)
    of_prior = prior.log_prob(masks)
    total = np.array(changes) + of_prior - of_prior[0]
    score = np.where(prior.heredity.allows(masks), total, -np.inf) + rng.gumbel(size=len(total))
    chosen = int(np.argmax(score))
    for place, unit in enumerate(block):
        is_flipped = bool(gray[chosen] >> place & 1)
        if swept.mask[unit] != (before[unit] != is_flipped):
            swept.flip(unit)
    return float(total[chosen])


def _correlated_pairs(
    precision: Precision, sweeps: int, most: int, rng: np.random.Generator
) -> Int[np.ndarray, "sweeps swaps 2"]:
    """Draw pairs of units in proportion to the square of their largest posterior correlation.

    Each sweep has twice as many as these squares add up to, and at most `most`: a single pair of copies need
    not be exchanged a hundred times.
    """
    covariance = np.linalg.inv(precision.matrix)
    diagonal = np.diag(covariance)
    squared = covariance**2 / np.multiply.outer(diagonal, diagonal)
    units = precision.units
    order = np.concatenate(units)
    starts = np.cumsum([0, *(len(unit) for unit in units[:-1])])
    between = np.maximum.reduceat(squared[np.ix_(order, order)], starts, axis=0)
    between = np.maximum.reduceat(between, starts, axis=1)
    first, second = np.triu_indices(len(units), 1)
    # A swap costs two updates, which pairs that are hardly correlated do not need.
    weights = np.where(between[first, second] > 0.05, between[first, second], 0.0)
    total = float(weights.sum())
    if not total:
        return np.zeros((sweeps, 0, 2), int)
    swaps = min(most, math.ceil(2 * total))
    drawn = rng.choice(len(weights), sweeps * swaps, p=weights / total)
    return np.stack([first[drawn], second[drawn]], 1).reshape(sweeps, swaps, 2)

"""The submodels that the evidence supports: all of them, or those that a climb and a sampler find."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp

from bmrjax.fitted.enumerate_submodels import all_masks, evaluate_submodels
from bmrjax.fitted.gibbs import Visited, sample_submodels
from bmrjax.fitted.greedy import best_by_size, climb
from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.nodes import Nodes

# Up to this many units every submodel is computed: 4,096 of them.
EXHAUSTIVE_UNITS = 12

# The submodels that are listed: these many, and all that are not less probable than the best by this factor.
LISTED, OCCAMS_WINDOW = 64, 20.0

# Two runs of the sampler, from the best submodel of a climb and from the smallest one.
_SWEEPS, _WARMUP, _BATCHES = 500, 50, 10


@dataclass(frozen=True)
class Found:
    """Submodels with their probabilities, and what averages are taken over.

    Attributes:
        masks: Units that are in, by submodel, the most probable first: the first 64, and those within Occam's
            window.
        prob: Probability of each, among all submodels.
        delta_f: ln of the evidence of each over that of the full model, in nats.
        weight: Weights of the terms of an average over submodels; they add up to one.
        inclusion: Probability that each element is in, by term.
        loc: Mean of each element where it is in, by term.
        variance: Its variance, by term.
        sets: Units that are in, by term.
        node: Which joint normal a term is of.
        path: The most probable submodel of each size that was found, from no unit on.
        error: Largest Monte Carlo standard error of an inclusion probability; zero if all were computed.
        text: How they were found, in words.
    """

    masks: Bool[np.ndarray, "submodels units"]
    prob: Float[np.ndarray, " submodels"]
    delta_f: Float[np.ndarray, " submodels"]
    weight: Float[np.ndarray, " terms"]
    inclusion: Float[np.ndarray, "terms n"]
    loc: Float[np.ndarray, "terms n"]
    variance: Float[np.ndarray, "terms n"]
    sets: Bool[np.ndarray, "terms units"]
    node: Int[np.ndarray, " terms"]
    path: Bool[np.ndarray, "sizes units"]
    error: float
    text: str


def search(
    nodes: Nodes,
    prior: ModelPrior,
    rng: np.random.Generator,
) -> Found:
    """Find the submodels that matter.

    Up to 12 units, every submodel is computed. Beyond, the most probable submodel is looked for by climbing
    from the full and from the smallest one, and from the best that a Gibbs sampler meets; averages
    are over the sampler's sweeps, and so do not miss the many improbable submodels that together have weight.

    Args:
        nodes: The posterior and the units.
        prior: Prior on submodels.
        rng: Source of randomness.
    """
    if len(nodes.units) <= EXHAUSTIVE_UNITS:
        return _exhaustive(nodes, prior)
    return _sampled(nodes, prior, rng)


def most_probable(nodes: Nodes, prior: ModelPrior) -> Bool[np.ndarray, " units"]:
    """Return the most probable submodel, beyond 12 units the best one that a greedy search finds.

    Args:
        nodes: The posterior and the units.
        prior: Prior on submodels.
    """
    if len(nodes.units) <= EXHAUSTIVE_UNITS:
        return _exhaustive(nodes, prior).masks[0]
    peaks = _climb_from_both_ends(nodes, prior)
    return max(peaks, key=lambda mask: nodes.delta_f(mask) + float(prior.log_prob(mask)))


def _climb_from_both_ends(nodes: Nodes, prior: ModelPrior) -> list[np.ndarray]:
    units = len(nodes.units)
    return [_climb(nodes, start, prior) for start in (np.ones(units, bool), np.zeros(units, bool))]


def _exhaustive(nodes: Nodes, prior: ModelPrior) -> Found:
    masks = all_masks(len(nodes.units))
    masks = masks[prior.heredity.allows(masks)]
    parts = [evaluate_submodels(precision, masks) for precision in nodes.precisions]
    by_node = np.stack([part[0] for part in parts]) + nodes.log_weight[:, None]
    delta_f = np.asarray(logsumexp(by_node, axis=0)) if len(nodes) > 1 else by_node[0]
    log_prior = prior.log_prob(masks)
    log_prob = delta_f + log_prior
    weight = np.exp(log_prob - log_prob.max())
    total = weight.sum()
    weight /= total
    order = np.argsort(-weight, kind="stable")
    window = weight[order] * OCCAMS_WINDOW >= weight[order[0]]
    listed = order[window | (np.arange(len(order)) < LISTED)]
    size = masks.sum(1)
    path = np.stack([masks[order[size[order] == k][0]] for k in range(len(nodes.units) + 1)])
    which = "" if prior.heredity.is_empty else " that heredity allows"
    text = f"all {len(masks):,} submodels{which} computed"
    return Found(
        masks[listed],
        weight[listed],
        delta_f[listed],
        (np.exp(by_node + log_prior - log_prob.max()) / total).ravel(),
        np.tile(nodes.elements(masks).astype(float), (len(nodes), 1)),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
        np.tile(masks, (len(nodes), 1)),
        np.repeat(np.arange(len(nodes)), len(masks)),
        path,
        0.0,
        text,
    )


def _sampled(nodes: Nodes, prior: ModelPrior, rng: np.random.Generator) -> Found:
    units = len(nodes.units)
    smallest = np.zeros(units, bool)

    def log_prob(mask: np.ndarray) -> float:
        return nodes.delta_f(mask) + float(prior.log_prob(mask))

    peaks = _climb_from_both_ends(nodes, prior)
    best = max(peaks, key=log_prob)
    runs = [
        sample_submodels(nodes, start, prior, sweeps=_SWEEPS, warmup=_WARMUP, rng=rng)
        for start in (best, smallest)
    ]
    met = max(runs, key=lambda run: run.log_prob.max())
    mode = met.masks[np.argmax(met.log_prob)]
    peaks.append(_climb(nodes, mode, prior))
    masks, values, prob = _probabilities(runs, {mask.tobytes(): log_prob(mask) for mask in peaks})
    window = values >= values[0] - np.log(OCCAMS_WINDOW)
    listed = window | (np.arange(len(window)) < LISTED)
    of_units = np.concatenate([run.inclusion for run in runs])
    inclusion = np.ones((len(of_units), nodes.size))
    for u, unit in enumerate(nodes.units):
        inclusion[:, unit] = of_units[:, u, None]
    batches = np.stack([b.mean(0) for b in np.array_split(of_units, 2 * _BATCHES)])
    error = float((batches.std(0, ddof=1) / np.sqrt(len(batches))).max())
    text = (
        f"{units} candidates: a greedy search, and {len(of_units):,} sweeps of a Gibbs sampler (largest "
        f"Monte Carlo error of a probability {error:.2g})"
    )
    precision = nodes.precisions[nodes.heaviest(masks[0])]
    largest = min(2 * int(masks[0].sum()) + 10, units)
    return Found(
        masks[listed],
        prob[listed],
        (values - prior.log_prob(masks))[listed],
        np.full(len(of_units), 1 / len(of_units)),
        inclusion,
        np.concatenate([run.loc for run in runs]),
        np.concatenate([run.variance for run in runs]),
        np.concatenate([run.masks for run in runs]),
        np.concatenate([run.node for run in runs]),
        best_by_size(precision, masks[0], prior, largest),
        error,
        text,
    )


def _climb(nodes: Nodes, start: np.ndarray, prior: ModelPrior) -> np.ndarray:
    """Climb under the joint normal that a submodel has most of its evidence from, until it stays the same."""
    node, mask = nodes.heaviest(start), start
    for _ in range(len(nodes)):
        mask = climb(nodes.precisions[node], mask, prior)
        last, node = node, nodes.heaviest(mask)
        if node == last:
            break
    return mask


def _probabilities(
    runs: list[Visited], peaks: dict[bytes, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the submodels that were met, the most probable first, ln of their weights, and probabilities.

    The constant between the two is estimated as George and McCulloch (1997, section 4.4) do: from how often
    the later part of a run meets what the first part met; if that never happens, as if it had half a time.
    """
    met: dict[bytes, float] = {}
    for run in runs:
        for mask, value in zip(run.masks, run.log_prob, strict=True):
            met[mask.tobytes()] = value
    met |= peaks
    masks = np.array([np.frombuffer(key, bool) for key in met])
    log_prob = np.array(list(met.values()))
    order = np.argsort(-log_prob, kind="stable")
    masks, log_prob = masks[order], log_prob[order]
    early = {mask.tobytes() for run in runs for mask in run.masks[: _SWEEPS // 4]}
    early |= set(peaks)
    late = [mask.tobytes() in early for run in runs for mask in run.masks[_SWEEPS // 4 :]]
    frequency = max(float(np.mean(late)), 0.5 / len(late))
    relative = np.exp(log_prob - log_prob[0])
    of_early = sum(np.exp(met[key] - log_prob[0]) for key in early)
    # Where all early submodels are improbable beyond what a number can hold, they say nothing of the mass.
    share = frequency / of_early if of_early > 0 else np.inf
    prob = relative * min(share, 1 / relative.sum())
    return masks, log_prob, prob

"""A guess of a layer's fixed point from a small part of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import digamma

from bmrjax.streaming.folder import Pair, Width
from bmrjax.streaming.solve import zeta_of
from bmrjax.streaming.sums import MARGIN

# Whole pages of a disk: smaller blocks cost as much and say less.
BLOCK = 1024
# Layers up to here are sampled whole; of larger ones, a fiftieth, and not less or more than these.
LEAST, MOST = 2**15, 2**18
_ERRORS = 5.0
_SEED = 0


class Guess(NamedTuple):
    """What a sample says of a layer.

    Attributes:
        centers: ζ of each iteration, in nats; the first one is exact.
        window: Between these the last ζ very probably lies.
        sampled: How many weights were read for it.
    """

    centers: Float[np.ndarray, " steps"]
    window: tuple[float, float]
    sampled: int


def blocks_of(size: int, wanted: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return begin and end of about `wanted` of `size` elements, in blocks one a stratum.

    Where in its stratum a block lies is random, since rows of weights are periodic.
    """
    if wanted >= size or size <= BLOCK:
        return [(i, min(i + BLOCK, size)) for i in range(0, size, BLOCK)]
    count = max(1, round(wanted / BLOCK))
    edges = np.linspace(0, size - BLOCK, count + 1)
    begins = np.floor(edges[:-1] + rng.random(count) * np.diff(edges))
    return [(int(i), min(int(i) + BLOCK, size)) for i in begins]


def guess(
    layer: Sequence[tuple[Pair, float]],
    read: Callable[[Pair, int, int], tuple[np.ndarray, np.ndarray]],
    announce: Callable[[Pair, int, int], None],
    *,
    alpha: float,
    beta: float,
    num_steps: int,
) -> Guess:
    """Sample a layer, and iterate on the sample as if it were the layer.

    Args:
        layer: Its tensors, each with its prior scale.
        read: Returns means and widths of a pair from one index to another.
        announce: Called with every such stretch before the first is read.
        alpha: α_0 of the criterion.
        beta: β_0.
        num_steps: Iterations.
    """
    rng = np.random.default_rng(_SEED)
    total = sum(pair.size for pair, _ in layer)
    budget = min(total, max(LEAST, min(MOST, total // 50)))
    plans = [blocks_of(p.size, round(budget * p.size / max(total, 1)), rng) for p, _ in layer]
    for (pair, _), plan in zip(layer, plans, strict=True):
        for block in plan:
            announce(pair, *block)
    found, sizes = [], []
    for (pair, prior_scale), plan in zip(layer, plans, strict=True):
        blocks = [read(pair, *block) for block in plan]
        sizes += [len(loc) for loc, _ in blocks]
        if blocks:
            loc, width = (np.concatenate(part) for part in zip(*blocks, strict=True))
            found.append(_odds(loc, width, pair.kind, prior_scale))
    odds = np.concatenate(found)
    sampled = len(odds)
    starts = np.cumsum(sizes) - sizes
    centers = [float(digamma(alpha) - digamma(beta))]
    window = (centers[0], centers[0])
    for _ in range(num_steps - 1):
        q = 1.0 / (1.0 + np.float32(np.exp(-centers[-1])) * odds)
        included = float(q.sum(dtype=np.float64)) * total / sampled
        centers.append(zeta_of(included, total, alpha, beta))
        if sampled == total:
            window = (centers[-1], centers[-1])
            continue
        # Blocks, not weights, are independent: whole rows are alive or dead.
        means = np.add.reduceat(q, starts, dtype=np.float64) / sizes
        error = total * float(np.std(means)) / np.sqrt(len(means))
        # What a sample cannot see: some few weights in all of it.
        error = _ERRORS * error + 3.0 * total / sampled
        ends = max(included - error, 0.0), min(included + error, total)
        window = tuple(zeta_of(end, total, alpha, beta) for end in ends)
    return Guess(np.array(centers), (window[0] - MARGIN, window[1] + MARGIN), sampled)


def _odds(loc: np.ndarray, width: np.ndarray, kind: Width, prior_scale: float) -> np.ndarray:
    """Return e^{ΔF} in single precision, of what has one."""
    # What is not a number or not a width is reported by the pass that sees all of it.
    with np.errstate(all="ignore"):
        loc, inverse = loc.astype(np.float32), width.astype(np.float32)
        if kind == "scale":
            inverse = 1 / inverse
        else:
            inverse = np.sqrt(inverse) if kind == "precision" else 1 / np.sqrt(inverse)
        z = loc * inverse
        odds = np.float32(prior_scale) * inverse * np.exp(np.float32(-0.5) * z * z)
    return np.clip(np.nan_to_num(odds, nan=1.0), 1e-35, 1e35).astype(np.float32)

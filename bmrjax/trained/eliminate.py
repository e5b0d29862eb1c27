"""One round of removals: all rows of all layers compete, and what stays in a row is moved to compensate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from threadpoolctl import ThreadpoolController

from bmrjax.trained.quadratic import Quadratic

# Rows from which the price of a removal is estimated before all rows are gone through.
SAMPLE = 96

# Rows are small: threads within LAPACK cost more than they bring. On a busy machine, 64 inputs took
# 23 ms with them.
_threads = ThreadpoolController()


@dataclass
class WeightRow:
    """One row of weights: all that one output of a layer is a sum over.

    Attributes:
        layer: Number of the layer.
        group: Group of the layer.
        output: Output of the group.
        keep: Which inputs stay, the bias included.
        weights: Their weights, zero where they are removed.
        fixed: Inputs that must stay; the bias is one.
        block: Block of each input, for patterns such as 2:4; -1 is in none. None for no pattern.
        room: How many more inputs each block may lose.
    """

    layer: int
    group: int
    output: int
    keep: Bool[np.ndarray, " inputs"]
    weights: Float[np.ndarray, " inputs"]
    fixed: Bool[np.ndarray, " inputs"]
    block: Int[np.ndarray, " inputs"] | None = None
    room: Int[np.ndarray, " blocks"] | None = None

    def loose(self) -> Bool[np.ndarray, " inputs"]:
        """Return which weights may still go."""
        found = self.keep & ~self.fixed
        if self.block is not None and self.room is not None:
            found &= (self.block >= 0) & (self.room[self.block] > 0)
        return found

    def free(self) -> int:
        """Return how many of the weights that may be judged are there."""
        return int(np.sum(self.keep & ~self.fixed))


@dataclass
class _Offer:
    """What a row may lose, in the order in which it would go."""

    row: WeightRow
    order: np.ndarray  # inputs
    loss: np.ndarray  # nats that each costs, those before it gone
    log_occam: np.ndarray  # −½ ln(δ C) of each, those before it gone
    price: np.ndarray  # what it is sorted by; does not fall along the order
    mean: np.ndarray
    columns: np.ndarray  # of the covariance, one for each that may go, in that order


@dataclass(frozen=True)
class Removed:
    """Single weights that went, in the order in which they went.

    Attributes:
        layer: Layer of each.
        place: (group, output, input) of each.
        saliency: w² / 2C of each, in nats, those before it gone: what the log evidence loses.
        log_occam: −½ ln(δ C) of each, C its variance given those before it gone: what the evidence gains
            by a parameter less, in nats.
        loss: Predicted increase of the loss over all data by all of them, in nats: the likelihood's part
            of what the evidence loses, without the prior's.
    """

    layer: np.ndarray
    place: np.ndarray
    saliency: np.ndarray
    log_occam: np.ndarray
    loss: float


def remove_elements(
    rows: Sequence[WeightRow],
    quadratics: Sequence[Sequence[Quadratic]],
    count: int,
) -> Removed:
    """Remove weights from rows, those that cost least first, and move those that stay.

    In each row, weights go one at a time by the saliency of Optimal Brain Surgeon, w² / 2C with C the
    conditional variance, which is updated after each; between rows, the smallest cost is removed first.

    Args:
        rows: All rows; changed in place.
        quadratics: By layer and group.
        count: How many go.

    Returns:
        What went.
    """
    with _threads.limit(limits=1, user_api="blas"):
        parts = [_remove(rows, quadratics, count)]
        # A sample of prices may have been too low a limit.
        while (left := count - sum(len(part.saliency) for part in parts)) > 0 and len(
            parts[-1].saliency
        ):
            parts.append(_remove(rows, quadratics, left))
    if len(parts) == 1:
        return parts[0]
    return Removed(
        np.concatenate([part.layer for part in parts]),
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.saliency for part in parts]),
        np.concatenate([part.log_occam for part in parts]),
        sum(part.loss for part in parts),
    )


def _remove(
    rows: Sequence[WeightRow], quadratics: Sequence[Sequence[Quadratic]], count: int
) -> Removed:
    rng = np.random.default_rng(0)
    some = rng.permutation(len(rows))[:SAMPLE]
    prices = [_prices(rows[i], quadratics) for i in some]
    weight = sum(int(row.loose().sum()) for row in rows) / max(sum(map(len, prices)), 1)
    sampled = np.sort(np.concatenate(prices)) if prices else np.zeros(0)
    limit = np.inf
    wanted = int(1.3 * count / weight) + 8 if weight else 0
    if wanted < len(sampled):
        limit = sampled[wanted]
    offers = [_offer(row, quadratics, limit) for row in rows]
    price = np.concatenate([offer.price for offer in offers])
    owner = np.repeat(np.arange(len(offers)), [len(offer.price) for offer in offers])
    order = np.argsort(price, kind="stable")[:count]
    taken = np.bincount(owner[order], minlength=len(offers))
    inputs = np.concatenate([o.order for o in offers])[order]
    place = np.array([[offers[k].row.group, offers[k].row.output, 0] for k in owner[order]], int)
    place = place.reshape(-1, 3)
    place[:, 2] = inputs
    loss = np.concatenate([o.loss for o in offers])[order]
    occam = np.concatenate([o.log_occam for o in offers])[order]
    layer = np.array([offers[k].row.layer for k in owner[order]], int)
    lost = sum(
        _apply(offer, int(number), quadratics) for offer, number in zip(offers, taken, strict=True)
    )
    return Removed(layer, place, loss, occam, float(lost))


def _prices(row: WeightRow, quadratics: Sequence[Sequence[Quadratic]]) -> np.ndarray:
    found = quadratics[row.layer][row.group].row(row.output, row.keep)
    loose = row.loose()[row.keep]
    return 0.5 * (found.mean**2 / found.variance)[loose]


def _offer(row: WeightRow, quadratics: Sequence[Sequence[Quadratic]], limit: float) -> _Offer:
    quadratic = quadratics[row.layer][row.group]
    found = quadratic.row(row.output, row.keep)
    where = np.flatnonzero(row.keep)
    price = 0.5 * found.mean**2 / found.variance
    candidates = np.flatnonzero(row.loose()[where] & (price <= limit))
    columns = found.covariance.columns(candidates)
    c, w = columns[candidates], found.mean[candidates]
    variance, left = np.diagonal(c).copy(), np.ones(len(candidates), bool)
    # Columns of the pivoted Cholesky factor of what went, in order.
    factor = np.zeros((len(candidates), len(candidates)))
    order, losses, occam = [], [], []
    block = None if row.block is None else row.block[where[candidates]]
    room = None if row.room is None else row.room.copy()
    for t in range(len(candidates)):
        if not left.any():
            break
        s = np.where(left, 0.5 * w**2 / variance, np.inf)
        j = int(np.argmin(s))
        order.append(j)
        losses.append(s[j])
        occam.append(-0.5 * np.log(quadratic.prior_precision * variance[j]))
        left[j] = False
        if block is not None and room is not None:
            room[block[j]] -= 1
            if room[block[j]] == 0:
                left &= block != block[j]
        root = np.sqrt(variance[j])
        factor[:, t] = (c[j] - factor[:, :t] @ factor[j, :t]) / root
        w = w - factor[:, t] * (w[j] / root)
        # Rounding must not take a variance to zero.
        variance = np.maximum(variance - factor[:, t] ** 2, 1e-12 * np.diagonal(c))
    loss = np.array(losses)
    return _Offer(
        row,
        where[candidates[order]] if order else np.zeros(0, int),
        loss,
        np.array(occam),
        np.maximum.accumulate(loss) if order else loss,
        found.mean,
        columns[:, order] if order else columns[:, :0],
    )


def _apply(offer: _Offer, number: int, quadratics: Sequence[Sequence[Quadratic]]) -> float:
    """Take the first weights of an offer away, move the others, and return what the likelihood loses."""
    row = offer.row
    where = np.flatnonzero(row.keep)
    gone = np.searchsorted(where, offer.order[:number])
    mean = offer.mean
    if number:
        c = offer.columns[:, :number]
        mean = mean - c @ np.linalg.solve(c[gone], mean[gone])
        mean[gone] = 0.0
    row.keep[where[gone]] = False
    if row.block is not None and row.room is not None:
        np.subtract.at(row.room, row.block[where[gone]], 1)
    row.weights[:] = 0.0
    row.weights[where] = mean
    if not number:
        return 0.0
    return quadratics[row.layer][row.group].loss(row.output, where, mean - offer.mean)

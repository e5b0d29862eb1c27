"""One round of removals: all rows of all layers compete, and what stays in a row is moved to compensate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from threadpoolctl import ThreadpoolController

from bmrjax.trained.quadratic import Quadratic
from bmrjax.trained.removal_order import Removable, removal_orders

# In a row, what is dearer than this many times the removals that are wanted is not gone through; more for
# the first rows, when prices are hardly known.
WIDER = 1.3

# Numbers in columns of covariances that are kept until it is known which are removed; what would not fit is
# computed again.
KEPT_COLUMNS = 2**24

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

    def removable(self) -> int:
        """Return how many weights may still go, blocks of a pattern being left with what they must keep."""
        loose = self.loose()
        if self.block is None or self.room is None:
            return int(loose.sum())
        in_block = np.bincount(self.block[loose], minlength=len(self.room))
        return int(np.minimum(in_block, self.room).sum())

    def free(self) -> int:
        """Return how many of the weights that may be judged are there."""
        return int(np.sum(self.keep & ~self.fixed))


@dataclass
class _Offer:
    """What a row may lose, in the order of removal."""

    row: WeightRow
    order: np.ndarray  # inputs
    loss: np.ndarray  # nats that each costs, those before it gone
    log_occam: np.ndarray  # −½ ln(δ C) of each, those before it gone
    price: np.ndarray  # what it is sorted by; does not fall along the order
    limit: float  # up to which price there are weights in it
    mean: np.ndarray
    columns: np.ndarray | None  # of the covariance, one for each that may be removed, in that order


@dataclass(frozen=True)
class Removed:
    """Single weights that were removed, in the order of removal.

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
        count: How many are removed.

    Returns:
        What was removed.
    """
    with _threads.limit(limits=1, user_api="blas"):
        parts = [_remove(rows, quadratics, count)]
        # Each removal makes others dearer than the limit up to which they were gone through.
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


def fit(rows: Sequence[WeightRow], quadratics: Sequence[Sequence[Quadratic]]) -> None:
    """Set the weights that rows keep to their posterior mean.

    Args:
        rows: Changed in place.
        quadratics: By layer and group.
    """
    with _threads.limit(limits=1, user_api="blas"):
        for row in rows:
            row.weights[:] = 0.0
            row.weights[row.keep] = quadratics[row.layer][row.group].mean(row.output, row.keep)


def _remove(
    rows: Sequence[WeightRow], quadratics: Sequence[Sequence[Quadratic]], count: int
) -> Removed:
    limits = _Limits(count / max(sum(int(row.loose().sum()) for row in rows), 1), len(rows))
    shuffled = np.random.default_rng(0).permutation(len(rows))
    room = _Room(KEPT_COLUMNS)
    found = dict(
        zip(shuffled, _offers([rows[i] for i in shuffled], quadratics, limits, room), strict=True)
    )
    offers = [found[i] for i in range(len(rows))]
    order, price, owner = _cheapest(offers, count)
    if len(order) == count and count:
        last = float(price[order[-1]])
        again = [i for i in shuffled if offers[i].limit < last]
        fresh = _offers([rows[i] for i in again], quadratics, last, room)
        for i, offer in zip(again, fresh, strict=True):
            offers[i] = offer
        order, price, owner = _cheapest(offers, count)
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


class _Limits:
    """Up to which price it is worth going through a row, by the prices of the rows so far."""

    def __init__(self, share: float, rows: int):
        self._share, self._rows = share, rows
        self._prices: list[np.ndarray] = []
        self._limit, self._next = np.inf, 1

    def limit(self, prices: np.ndarray) -> float:
        """Add the prices of one row and return the limit."""
        self._prices.append(prices)
        n = len(self._prices)
        if n >= self._next or n == self._rows:
            # All prices are looked at again: rarely enough that it takes time in proportion to the rows.
            self._next = 2 * n if n < 32 else n + 32 * -(-n // 1024)
            margin = WIDER if n == self._rows else WIDER + 1.5 / np.sqrt(n)
            seen = np.concatenate(self._prices)
            wanted = int(margin * self._share * len(seen)) + 8
            self._limit = np.partition(seen, wanted)[wanted] if wanted < len(seen) else np.inf
        return float(self._limit)


@dataclass
class _Draft:
    """A row before it is known in which order its weights would be removed."""

    row: WeightRow
    where: np.ndarray  # of what is kept
    candidates: np.ndarray  # among these
    limit: float  # up to which price there are candidates
    mean: np.ndarray
    columns: np.ndarray  # of the covariance, one for each candidate


def _draft(
    row: WeightRow, quadratics: Sequence[Sequence[Quadratic]], limits: _Limits | float
) -> _Draft:
    found = quadratics[row.layer][row.group].row(row.output, row.keep)
    where = np.flatnonzero(row.keep)
    price, loose = 0.5 * found.mean**2 / found.variance, row.loose()[where]
    limit = limits.limit(price[loose]) if isinstance(limits, _Limits) else limits
    candidates = np.flatnonzero(loose & (price <= limit))
    columns = found.covariance.columns(candidates)
    return _Draft(row, where, candidates, limit, found.mean, columns)


@dataclass
class _Room:
    """How many numbers may still be kept."""

    left: int


def _offers(
    rows: Sequence[WeightRow],
    quadratics: Sequence[Sequence[Quadratic]],
    limits: _Limits | float,
    room: _Room,
) -> list[_Offer]:
    """Return what rows may lose; some rows at a time, since their covariances take memory."""
    found: list[_Offer] = []
    drafts: list[_Draft] = []
    size = 0
    for row in rows:
        drafts.append(_draft(row, quadratics, limits))
        size += drafts[-1].columns.size
        if size > KEPT_COLUMNS // 2:
            found += _ordered(drafts, quadratics, room)
            drafts, size = [], 0
    return found + _ordered(drafts, quadratics, room)


def _ordered(
    drafts: Sequence[_Draft], quadratics: Sequence[Sequence[Quadratic]], room: _Room
) -> list[_Offer]:
    orders = removal_orders(
        [
            Removable(
                draft.columns[draft.candidates],
                draft.mean[draft.candidates],
                quadratics[draft.row.layer][draft.row.group].prior_precision,
                None if block is None else block[draft.where[draft.candidates]],
                draft.row.room,
            )
            for draft in drafts
            for block in [draft.row.block]
        ]
    )
    found = []
    for draft, of in zip(drafts, orders, strict=True):
        size = len(draft.where) * len(of.order)
        fits = size <= room.left
        room.left -= size if fits else 0
        found.append(
            _Offer(
                draft.row,
                draft.where[draft.candidates[of.order]],
                of.loss,
                of.log_occam,
                np.maximum.accumulate(of.loss),
                draft.limit,
                draft.mean,
                draft.columns[:, of.order] if fits else None,
            )
        )
    return found


def _cheapest(offers: Sequence[_Offer], count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of the cheapest removals, and the price and the row of all."""
    price = np.concatenate([offer.price for offer in offers])
    owner = np.repeat(np.arange(len(offers)), [len(offer.price) for offer in offers])
    return np.argsort(price, kind="stable")[:count], price, owner


def _apply(offer: _Offer, number: int, quadratics: Sequence[Sequence[Quadratic]]) -> float:
    """Take the first weights of an offer away, move the others, and return what the likelihood loses."""
    row = offer.row
    where = np.flatnonzero(row.keep)
    gone = np.searchsorted(where, offer.order[:number])
    mean = offer.mean
    quadratic = quadratics[row.layer][row.group]
    if number and offer.columns is not None:
        c = offer.columns[:, :number]
        mean = mean - c @ np.linalg.solve(c[gone], mean[gone])
        mean[gone] = 0.0
    row.keep[where[gone]] = False
    if number and offer.columns is None:
        mean = np.zeros_like(mean)
        mean[row.keep[where]] = quadratic.mean(row.output, row.keep)
    if row.block is not None and row.room is not None:
        np.subtract.at(row.room, row.block[where[gone]], 1)
    row.weights[:] = 0.0
    row.weights[where] = mean
    if not number:
        return 0.0
    return quadratic.loss(row.output, where, mean - offer.mean)

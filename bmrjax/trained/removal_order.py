"""In which order rows of weights lose weights, one at a time, and at what cost: many rows at once."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass
class Removable:
    """Weights of one row that may be removed.

    Attributes:
        covariance: Posterior covariance of these weights.
        mean: Their posterior mean.
        prior_precision: δ.
        block: Block of each, for patterns such as 2:4. None for no pattern.
        room: How many more weights each block may lose.
    """

    covariance: Float[np.ndarray, "n n"]
    mean: Float[np.ndarray, " n"]
    prior_precision: float
    block: Int[np.ndarray, " n"] | None = None
    room: Int[np.ndarray, " blocks"] | None = None


@dataclass(frozen=True)
class RemovalOrder:
    """In which order the weights of one row go.

    Attributes:
        order: Number of each among the candidates; fewer than these if blocks have no more room.
        loss: w² / 2C of each in nats, w and C those given that the ones before it are zero.
        log_occam: −½ ln(δ C) of each, C as above.
    """

    order: Int[np.ndarray, " removed"]
    loss: Float[np.ndarray, " removed"]
    log_occam: Float[np.ndarray, " removed"]


# Numbers in the covariances of the rows that are gone through together, at most.
TOGETHER = 2**21


def removal_orders(some: list[Removable]) -> list[RemovalOrder]:
    """Return in which order the candidates of each row go by the saliency of Optimal Brain Surgeon.

    After each removal, means and variances of the others are those given that it is zero: a pivoted
    Cholesky factorisation of the covariance. Rows do not depend on each other; they are gone through together
    because a step of one row is too little work for an operation on arrays.
    """
    found: list[RemovalOrder | None] = [None] * len(some)
    by_size = sorted(range(len(some)), key=lambda k: len(some[k].mean))
    while by_size:
        largest = max(len(some[by_size[-1]].mean), 1)
        size = max(1, TOGETHER // largest**2)
        together, by_size = by_size[-size:], by_size[:-size]
        for k, order in zip(together, _together([some[k] for k in together]), strict=True):
            found[k] = order
    return [order for order in found if order is not None]


def _together(some: list[Removable]) -> list[RemovalOrder]:
    rows, size = np.arange(len(some)), max(len(one.mean) for one in some)
    covariance = np.zeros((len(some), size, size))
    w, left = np.zeros((len(some), size)), np.zeros((len(some), size), bool)
    for r, one in enumerate(some):
        n = len(one.mean)
        covariance[r, :n, :n], w[r, :n], left[r, :n] = one.covariance, one.mean, True
    blocks = _Blocks(some, size)
    diagonal = np.einsum("rii->ri", covariance)
    smallest = 1e-12 * np.where(left, diagonal, 1.0)
    variance = np.where(left, diagonal, 1.0)
    # Rows of the pivoted Cholesky factor of what was removed, in order.
    factor = np.zeros((len(some), size, size))
    order = np.zeros((len(some), size), int)
    loss, spread = np.full((len(some), size), np.inf), np.ones((len(some), size))
    for t in range(size):
        saliency = np.where(left, 0.5 * w**2 / variance, np.inf)
        j = np.argmin(saliency, 1)
        order[:, t], loss[:, t], spread[:, t] = j, saliency[rows, j], variance[rows, j]
        going = left[rows, j]
        if not going.any():
            break
        left[rows, j] = False
        blocks.remove(left, j, going)
        # Rows without any more candidates change no more.
        root = np.where(going, np.sqrt(variance[rows, j]), np.inf)
        before = factor[:, :t]
        column = covariance[rows, j] - (before[rows, :, j][:, None] @ before)[:, 0]
        factor[:, t] = column / root[:, None]
        w -= factor[:, t] * (w[rows, j] / root)[:, None]
        # Rounding must not take a variance to zero.
        variance = np.maximum(variance - factor[:, t] ** 2, smallest)
    counts = np.sum(np.isfinite(loss), 1)
    return [
        RemovalOrder(order[r, :n], loss[r, :n], -0.5 * np.log(one.prior_precision * spread[r, :n]))
        for r, (one, n) in enumerate(zip(some, counts, strict=True))
    ]


class _Blocks:
    """Blocks that may lose so many weights and no more, in all rows."""

    def __init__(self, some: list[Removable], size: int):
        self._any = any(one.block is not None for one in some)
        if not self._any:
            return
        rooms = [np.zeros(0, int) if one.room is None else one.room for one in some]
        # The last place has room for all that is in no block.
        self._room = np.full((len(some), max(map(len, rooms)) + 1), size + 1)
        self._block = np.full((len(some), size), self._room.shape[1] - 1)
        for r, (one, room) in enumerate(zip(some, rooms, strict=True)):
            self._room[r, : len(room)] = room
            if one.block is not None:
                self._block[r, : len(one.block)] = one.block

    def remove(
        self, left: Bool[np.ndarray, "rows n"], j: Int[np.ndarray, " rows"], going: np.ndarray
    ) -> None:
        """Take one weight from each row, and what has no more room from those that are left."""
        if not self._any:
            return
        rows = np.arange(len(j))
        mine = self._block[rows, j]
        self._room[rows, mine] -= going
        full = going & (self._room[rows, mine] == 0)
        left &= ~(full[:, None] & (self._block == mine[:, None]))

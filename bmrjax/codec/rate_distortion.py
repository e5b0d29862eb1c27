"""Quantisation that weighs what a value costs against how well the data determine it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bmrjax.codec.layouts import as_matrix, presence
from bmrjax.codec.quantise import (
    STEP_BITS,
    Grid,
    Quantised,
    Quantiser,
    Uniform,
    check_positive,
    on_grid,
    step_below,
    step_of,
)

# Steps that are tried, relative to the posterior width of an array, and points tried towards zero.
ZERO_WIDTHS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
TOWARDS_ZERO = 6


@dataclass(frozen=True)
class RateDistortion(Quantiser):
    r"""For each weight the point of a grid that costs least, given its posterior width.

    .. math:: \hat w = \arg\min_v \frac{(w - v)^2}{2σ^2} + λ \, \mathrm{bits}(v)

    with the posterior N(w, σ²) of the weight. The first term is what the log posterior density loses, in
    nats. The bits are those of the code that the network will have: the frequencies of the array's own
    values, and for where the weight is, those of its row and column. Zero is one of the points, and costs
    only the place;
    so a weight that is known badly goes. Frequencies and values are found in turns. The step of each array's
    grid is the best of several multiples of its posterior width.

    Arrays without a posterior are quantised by `Uniform`.

    Args:
        rate: λ, in nats per bit; more for a smaller file. With ln 2, the sum is the length of a message that
            describes network and data. But the posterior of independent weights does not know what many
            changes do together, so the default is less; choose it on validation data.
        iterations: Turns.
        without_posterior: For arrays that have none.

    Raises:
        ValueError: For settings that are not positive.

    Example:
        >>> import numpy as np
        >>> from bmrjax import codec
        >>> w, scale = np.array([1.02, 0.03, 0.98], np.float32), np.array([0.1, 0.1, 0.1])
        >>> codec.RateDistortion()({"w": w}, {"w": scale})["w"].values.round(1)
        array([1., 0., 1.], dtype=float32)

    References:
        Sullivan (1996) for the principle; Hinton and van Camp (1993) for the width of the posterior.
    """

    rate: float = 0.1
    iterations: int = 6
    without_posterior: Quantiser = Uniform()

    def __post_init__(self) -> None:
        check_positive("RateDistortion: rate", self.rate)
        check_positive("RateDistortion: iterations", self.iterations)

    def __call__(
        self, arrays: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> dict[str, Quantised]:
        """See `Quantiser`."""
        others = {name: array for name, array in arrays.items() if name not in scales}
        found = self.without_posterior(others, {}) if others else {}
        for name in arrays:
            if name in scales:
                found[name] = self._array(arrays[name], np.asarray(scales[name]))
        return {name: found[name] for name in arrays}

    def _array(self, array: np.ndarray, scale: np.ndarray) -> Quantised:
        matrix = array.reshape(as_matrix(array.shape)).astype(np.float64)
        row, column = np.nonzero(matrix)
        if not len(row):
            return Quantised(np.zeros(array.shape, np.int64), Grid(0))
        weights = matrix[row, column]
        scales = np.broadcast_to(scale, array.shape).reshape(matrix.shape)[row, column]
        # A weight of no width would need its own infinitely fine grid.
        known = np.maximum(scales.astype(np.float64), 1e-6 * np.abs(weights))
        width = math.exp(float(np.mean(np.log(known))))
        best: tuple[float, int, np.ndarray] | None = None
        tried = set()
        for multiple in ZERO_WIDTHS:
            index = on_grid(weights, step_below(multiple * width)).levels
            assert isinstance(index, Grid)
            if index.index in tried or index.index >= 2**STEP_BITS:
                continue
            tried.add(index.index)
            cost, codes = self._on_grid(
                weights, known, row, column, matrix.shape, step_of(index.index)
            )
            if best is None or cost < best[0]:
                best = cost, index.index, codes
        assert best is not None
        codes = np.zeros(matrix.shape, np.int64)
        codes[row, column] = best[2]
        return Quantised(codes.reshape(array.shape), Grid(best[1]))

    def _on_grid(
        self,
        weights: np.ndarray,
        scales: np.ndarray,
        row: np.ndarray,
        column: np.ndarray,
        shape: tuple[int, int],
        step: float,
    ) -> tuple[float, np.ndarray]:
        """Return the cost in nats of the best codes on a grid, and those codes."""
        start = np.rint(weights / step).astype(np.int64)
        sign = np.sign(start)
        points = [start - sign * k for k in range(TOWARDS_ZERO)]
        # Beyond zero and twice the same are no other points.
        points = np.stack([np.where(p * sign > 0, p, 0) for p in points] + [np.zeros_like(start)])
        distortion = np.square((weights - points * step) / scales) / 2
        codes, cost, lowest = start, math.inf, int(points.min())
        size = int(points.max()) - lowest + 1
        for _ in range(self.iterations):
            bits = _bits(codes, points, row, column, shape, lowest, size)
            each = distortion + self.rate * bits
            choice = each.argmin(0)
            fresh = np.take_along_axis(points, choice[None], 0)[0]
            cost = float(np.take_along_axis(each, choice[None], 0).sum())
            if np.array_equal(fresh, codes):
                break
            codes = fresh
        return cost, codes


def _bits(
    codes: np.ndarray,
    points: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    shape: tuple[int, int],
    lowest: int,
    size: int,
) -> np.ndarray:
    """Return what each point costs, under the frequencies of the codes as they are."""
    there = codes != 0
    counts = np.bincount(codes[there] - lowest, minlength=size) + 0.5
    counts[-lowest] = 0.0
    values = np.zeros(size)
    used = counts > 0
    values[used] = -np.log2(counts[used] / counts.sum())
    rows = np.bincount(row[there], minlength=shape[0])
    columns = np.bincount(column[there], minlength=shape[1])
    by_row, by_column = presence(rows[rows > 0], columns[columns > 0])
    odds = np.zeros(shape[0]), np.zeros(shape[1])
    odds[0][rows > 0], odds[1][columns > 0] = by_row, by_column
    # A row or a column that has none left would have to be opened again: rarer than any place that is.
    rarest = by_row.min(initial=1.0) * by_column.min(initial=1.0)
    each = np.maximum(odds[0][row] * odds[1][column], rarest / 4)
    present, absent = np.log2(1 + 1 / each), np.log2(1 + each)
    return np.where(points != 0, values[points - lowest] + present, absent)

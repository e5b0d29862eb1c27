"""Fit the kept weights of a layer that is in parts: the least-squares problem of all parts together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int
from threadpoolctl import ThreadpoolController

from bmrjax.trained.eliminate import WeightRow
from bmrjax.trained.layers import TracedLayer, layer_parts, layer_weights
from bmrjax.trained.quadratic import Quadratic

# Conjugate gradients end where a step gains less than this share of what all steps have gained, in all
# layers together, or after so many steps.
SMALL_GAIN = 1e-3
STEPS = 50

# Most numbers in the Cholesky factors of the preconditioner; its blocks are made narrower to keep to that,
# but not narrower than this.
FACTORS = 2**25
NARROWEST_BLOCK = 16

_lapack: Any = scipy.linalg.lapack
_blas_threads = ThreadpoolController()

# From changes of weights, by number of the part, E[Σ y xᵀ] of each: y is what all parts' changes together
# add to the layer's outputs, x the inputs of the part.
MomentProducts = Callable[
    [Mapping[int, Float[np.ndarray, "groups outputs inputs"]]],
    dict[int, Float[np.ndarray, "groups outputs inputs"]],
]


def fit_together(
    layers: Sequence[TracedLayer],
    rows: Sequence[WeightRow],
    quadratics: Sequence[Sequence[Quadratic]],
    arrays: Sequence[Array],
    products: MomentProducts,
) -> None:
    """Move the weights that rows of layers in parts keep towards their posterior mean in the whole layer.

    Conjugate gradients of all rows side by side, from where the rows are. The second moments of inputs of
    different parts are never formed: a step multiplies by all of them in one pass over the calibration rows.
    The blocks of each part, which its moments give, are the preconditioner. A row whose loss is not lower in
    the end, by a product with its whole change, stays as it was.

    Args:
        layers: All layers of the network.
        rows: Changed in place; those of layers that are not in parts are left alone.
        quadratics: By layer and group.
        arrays: Arrays of the network, at which the moments were taken.
        products: Multiplies by the moments.
    """
    systems = _systems(layers, rows, quadratics, arrays)
    if not systems:
        return
    with _blas_threads.limit(limits=1, user_api="blas"):
        _solve(systems, products)
    for system in systems:
        system.write()


def block_width(kept: int) -> int:
    """Return how many inputs blocks of a preconditioner may have, for so many weights."""
    return max(NARROWEST_BLOCK, FACTORS // max(1, kept))


def row_factors(
    row: WeightRow, quadratic: Quadratic, width: int
) -> Iterator[tuple[Int[np.ndarray, " some"], Float[np.ndarray, "some some"]]]:
    """Yield the kept inputs of a row, at most so many at a time, and a factor of their precision."""
    where = np.flatnonzero(row.keep)
    for some in np.array_split(where, max(1, -(-len(where) // width))):
        if len(some):
            yield some, quadratic.factor(row.output, some).astype(np.float32)


def solved(
    factor: Float[np.ndarray, "n n"], vector: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return a vector divided by a precision, which is given by its factor in single precision."""
    size = np.abs(vector).max()
    return _lapack.spotrs(factor, vector / size, lower=1)[0] * size if size > 0 else vector


def _solve(systems: Sequence["_System"], products: MomentProducts) -> None:
    starts = [system.change for system in systems]
    if any(start.any() for start in starts):
        for system, times in zip(systems, _times(systems, starts, products), strict=True):
            system.residual -= times
    slopes = [system.residual for system in systems]
    width = block_width(sum(int(system.keep.sum()) for system in systems))
    for system in systems:
        system.begin(width)
    total = 0.0
    for _ in range(STEPS):
        times = _times(systems, [system.direction for system in systems], products)
        gain = sum(system.step(of) for system, of in zip(systems, times, strict=True))
        total += gain
        if gain <= SMALL_GAIN * total:
            break
    changes = [system.change - start for system, start in zip(systems, starts, strict=True)]
    for system, change, start, slope, times in zip(
        systems, changes, starts, slopes, _times(systems, changes, products), strict=True
    ):
        gains = np.sum(change * (slope - 0.5 * times), 1)
        system.change = np.where((gains > 0)[:, None], system.change, start)


def _times(
    systems: Sequence["_System"], changes: Sequence[np.ndarray], products: MomentProducts
) -> list[np.ndarray]:
    """Return changes times the curvature, zero where there are no weights."""
    parts: dict[int, np.ndarray] = {}
    for system, change in zip(systems, changes, strict=True):
        parts |= system.split(change)
    found = products(parts)
    return [
        np.where(s.keep, s.strengths[:, None] * s.join(found) + s.precisions * change, 0.0)
        for s, change in zip(systems, changes, strict=True)
    ]


@dataclass
class _System:
    """The rows of one layer: inputs of all its parts one after the other, biases among them.

    Attributes:
        parts: Numbers of the parts.
        rows: Of each part.
        quadratics: Of each part, by group.
        current: Weights at which the moments were taken.
        keep: Which weights stay.
        strengths: Curvature at the output of each row.
        precisions: Of the prior.
        change: Of the weights, from the current ones.
        residual: Minus the gradient.
        direction: Of the next step.
    """

    parts: list[int]
    rows: list[list[WeightRow]]
    quadratics: list[Sequence[Quadratic]]
    current: Float[np.ndarray, "rows inputs"]
    keep: np.ndarray
    strengths: Float[np.ndarray, " rows"]
    precisions: Float[np.ndarray, " inputs"]
    change: np.ndarray
    residual: np.ndarray
    direction: np.ndarray = field(init=False)

    def begin(self, width: int) -> None:
        """Set the first direction; blocks of the preconditioner are no wider than `width`."""
        self._blocks = list(self._factors(width))
        self.direction = self._preconditioned()
        self._square = np.sum(self.residual * self.direction, 1)

    def step(self, times: np.ndarray) -> float:
        """Go along the direction, given its product with the curvature, and return what is gained in nats."""
        curvature = np.sum(self.direction * times, 1)
        before = self._square
        # Rounding leaves no direction to a row that is at its minimum.
        goes = (curvature > 0) & (before > 0)
        size = np.where(goes, before / np.where(goes, curvature, 1.0), 0.0)[:, None]
        self.change = self.change + size * self.direction
        self.residual = np.where(goes[:, None], self.residual - size * times, 0.0)
        fresh = self._preconditioned()
        self._square = np.sum(self.residual * fresh, 1)
        turn = np.where(goes, self._square / np.where(goes, before, 1.0), 0.0)[:, None]
        self.direction = np.where(goes[:, None], fresh + turn * self.direction, 0.0)
        return float(0.5 * np.sum(size[goes, 0] * before[goes]))

    def write(self) -> None:
        """Set the weights of the rows."""
        whole = np.where(self.keep, self.current + self.change, 0.0)
        for rows, weights in zip(self.rows, self._split(whole), strict=True):
            for row, of in zip(rows, weights, strict=True):
                row.weights[:] = of

    def split(self, values: np.ndarray) -> dict[int, np.ndarray]:
        """Return values by part, as (groups, outputs, inputs)."""
        groups = len(self.quadratics[0])
        return {
            k: of.reshape(groups, -1, of.shape[1])
            for k, of in zip(self.parts, self._split(values), strict=True)
        }

    def join(self, values: Mapping[int, np.ndarray]) -> np.ndarray:
        """Return what `split` has taken apart."""
        return _joined([values[k] for k in self.parts])

    def _split(self, values: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([len(rows[0].keep) for rows in self.rows])[:-1]
        return np.split(values, ends, 1)

    def _factors(self, width: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield blocks of the preconditioner: a row, some of its inputs, and a factor of the precision."""
        start = 0
        for rows, groups in zip(self.rows, self.quadratics, strict=True):
            for number, row in enumerate(rows):
                for some, factor in row_factors(row, groups[row.group], width):
                    yield number, start + some, factor
            start += len(rows[0].keep)

    def _preconditioned(self) -> np.ndarray:
        found = np.zeros_like(self.residual)
        for row, where, factor in self._blocks:
            found[row, where] = solved(factor, self.residual[row, where])
        return found


def _systems(
    layers: Sequence[TracedLayer],
    rows: Sequence[WeightRow],
    quadratics: Sequence[Sequence[Quadratic]],
    arrays: Sequence[Array],
) -> list[_System]:
    by_part: dict[int, list[WeightRow]] = {}
    for row in rows:
        by_part.setdefault(row.layer, []).append(row)
    found = []
    for parts in layer_parts(layers):
        if layers[parts[0]].part is None or parts[0] not in by_part:
            continue
        mine = [by_part[k] for k in parts]
        of = [quadratics[k] for k in parts]
        weights = [layer_weights(layers[k], arrays) for k in parts]
        # A part's loss has an nth of what its layer's outputs lack, and of what the prior pulls.
        slope = len(parts) * _joined(
            [
                np.stack([q.slope(w) for q, w in zip(groups, part, strict=True)])
                for groups, part in zip(of, weights, strict=True)
            ]
        )
        keep = np.concatenate([np.stack([row.keep for row in some]) for some in mine], 1)
        start = np.concatenate([np.stack([row.weights for row in some]) for some in mine], 1)
        current = _joined(weights)
        found.append(
            _System(
                parts,
                mine,
                of,
                current,
                keep,
                np.concatenate([q.strengths for q in of[0]]),
                np.concatenate([groups[0].prior_precisions for groups in of]),
                np.where(keep, start, 0.0) - current,
                np.where(keep, slope, 0.0),
            )
        )
    return found


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return (groups, outputs, inputs) of parts as (groups outputs, inputs of all)."""
    return np.concatenate([of.reshape(-1, of.shape[-1]) for of in parts], 1)

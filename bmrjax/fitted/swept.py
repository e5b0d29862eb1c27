"""The evidence of every submodel that is one unit away, from one matrix that is swept."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import cho_factor, cho_solve

from bmrjax.fitted.joint_normal import JointNormal

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
# Sweeps in and out between computing the matrix afresh, which bounds what rounding adds up to.
_FLIPS_BEFORE_REFRESH = 2000


_ROUNDED = (
    "reduce_fit: the covariance is singular up to rounding: some elements follow from others, or are known "
    "so much better than the rest that their evidence cannot be computed. Leave out elements that repeat "
    "others, and look whether the noise of the model is far too small for its data."
)


class Precision:
    r"""A joint normal posterior in the form that submodels are read from.

    A reduced prior that puts the elements outside a set K at zero and leaves the others leaves the
    precision of K as it is: with posterior precision Λ and η = Λ m, the reduced posterior is

    .. math::  N(Λ_{KK}^{-1} η_K, Λ_{KK}^{-1}),

    and its evidence, relative to the full model, that of `reduction.remove`.

    Args:
        normal: Posterior and prior over n elements.
        units: Elements of each unit that is in a submodel or not; elements in no unit are in all of them.
    """

    def __init__(self, normal: JointNormal, units: Sequence[Int[np.ndarray, " k"]]):
        # In units of the posterior standard deviation, so that the matrix is well scaled.
        self.scale: np.ndarray = np.sqrt(np.diag(normal.covariance))
        size = len(self.scale)
        if normal.precision is None:
            correlation = normal.covariance / self.scale / self.scale[:, None]
            factor = cho_factor(0.5 * (correlation + correlation.T), lower=True)
            inverse = cho_solve(factor, np.eye(size))
            sign = -1
        else:
            # The error of an inverse would be that of rounding times the square of the ratio of eigenvalues.
            inverse = normal.precision * self.scale * self.scale[:, None]
            factor, sign = cho_factor(inverse, lower=True), 1
        # Λ with η beside it.
        self.augmented: np.ndarray = np.empty((size, size + 1))
        self.matrix: np.ndarray = self.augmented[:, :-1]
        self.matrix[:] = 0.5 * (inverse + inverse.T)
        self.loc: np.ndarray = normal.loc / self.scale
        self.eta: np.ndarray = self.matrix @ self.loc
        self.augmented[:, -1] = self.eta
        self.log_det: float = 2.0 * sign * float(np.log(np.diag(factor[0])).sum())
        prior_scale = normal.prior_scale / self.scale
        ratio = normal.prior_loc / normal.prior_scale
        self.log_prior_at_zero: np.ndarray = (
            -0.5 * ratio**2 - np.log(prior_scale) - _HALF_LOG_TWO_PI
        )
        self.units: list[np.ndarray] = [np.asarray(unit) for unit in units]
        sizes = np.array([len(unit) for unit in self.units], int)
        # Units of one element, where they are, and the other units.
        self.single: np.ndarray = np.flatnonzero(sizes == 1)
        self.single_at: np.ndarray = np.array([self.units[u][0] for u in self.single], int)
        self.several: list[int] = [int(u) for u in np.flatnonzero(sizes > 1)]
        self.unit_at_zero: np.ndarray = np.array(
            [self.log_prior_at_zero[unit].sum() for unit in self.units]
        )
        in_units = np.concatenate(self.units) if self.units else np.zeros(0, int)
        self.always: np.ndarray = np.setdiff1d(np.arange(size), in_units)

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.scale)

    def elements(self, masks: Bool[np.ndarray, "*lead units"]) -> Bool[np.ndarray, "*lead n"]:
        """Return which elements are in, from which units are."""
        found = np.ones((*masks.shape[:-1], self.size), bool)
        found[..., self.single_at] = masks[..., self.single]
        for u in self.several:
            found[..., self.units[u]] = masks[..., u, None]
        return found


class Swept:
    r"""One submodel, and what every unit would gain by coming in or going out.

    The matrix of Λ and η is swept on the elements that are in. Then the block of a unit that is in holds
    minus its posterior covariance, with its mean beside it; the block of a unit that is out holds the
    precision that it would have, with the score beside it. A Savage-Dickey ratio needs nothing else. Only the
    rows of the elements that are in, the diagonal and the last column are kept: with k of n elements in,
    taking one in or out costs O(k n).

    Args:
        precision: The posterior and the units.
        mask: Units that are in.

    References:
        Goodnight (1979), The American Statistician 33, A tutorial on the sweep operator.
    """

    def __init__(self, precision: Precision, mask: Bool[np.ndarray, " units"]):
        self.precision = precision
        self.mask: np.ndarray = np.array(mask, bool)
        self._refresh()

    def _refresh(self) -> None:
        """Compute the rows of the swept matrix from the start."""
        p, n = self.precision, self.precision.size
        kept = np.flatnonzero(p.elements(self.mask))
        self._count, self._flips = len(kept), 0
        self._at = np.full(n, -1)
        self._at[kept] = np.arange(len(kept))
        self._kept = np.zeros(n, int)
        self._kept[: len(kept)] = kept
        of_kept = p.augmented[kept]
        rows, covariance = np.zeros_like(of_kept), np.zeros((0, 0))
        if len(kept):
            # A solution is wrong in the directions that are hardly known; the inverse's product in all.
            factor = cho_factor(of_kept[:, kept], lower=True)
            rows = cho_solve(factor, of_kept)
            covariance = cho_solve(factor, np.eye(len(kept)))
            covariance = 0.5 * (covariance + covariance.T)
        explained = (of_kept[:, :-1] * rows[:, :-1]).sum(0)
        diagonal, beside = np.diag(p.matrix) - explained, p.eta - of_kept[:, -1] @ rows[:, :-1]
        rows[:, kept] = -covariance
        diagonal[kept], beside[kept] = -np.diag(covariance), rows[:, -1]
        self._rows = np.empty((min(n, 2 * len(kept) + 8), n + 1))
        self._rows[: len(kept)] = rows
        self._diagonal, self._beside = diagonal, beside

    def copy(self) -> "Swept":
        """Return another one in the same state."""
        twin = object.__new__(Swept)
        twin.__dict__.update(self.__dict__)
        for name in ("mask", "_at", "_kept", "_rows", "_diagonal", "_beside"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def flip(self, unit: int) -> None:
        """Take a unit in if it is out, and out if it is in."""
        of_unit = self.precision.units[unit]
        for i in of_unit:
            if self.mask[unit]:
                self._take_out(int(i))
            else:
                self._take_in(int(i))
        self.mask[unit] = not self.mask[unit]
        self._flips += len(of_unit)
        if self._flips > _FLIPS_BEFORE_REFRESH:
            self._refresh()

    def _take_in(self, i: int) -> None:
        row, rows = self._row(i), self._rows[: self._count]
        across, pivot = rows[:, i] / row[i], row[i]
        rows -= np.multiply.outer(across, row)
        rows[:, i] = across
        along = row / pivot
        self._diagonal -= along[:-1] * row[:-1]
        self._beside -= along[:-1] * row[-1]
        along[i] = -1.0 / pivot
        self._diagonal[i], self._beside[i] = along[i], along[-1]
        if self._count == len(self._rows):
            more = np.empty((min(self.precision.size, 2 * self._count), len(row)))
            more[: self._count] = self._rows
            self._rows = more
        self._rows[self._count] = along
        self._kept[self._count], self._at[i] = i, self._count
        self._count += 1

    def _take_out(self, i: int) -> None:
        self._count -= 1
        place, last = self._at[i], self._count
        row = self._rows[place].copy()
        if place != last:
            self._rows[place] = self._rows[last]
            moved = self._kept[last]
            self._kept[place], self._at[moved] = moved, place
        self._at[i] = -1
        rows, pivot = self._rows[:last], row[i]
        across = rows[:, i] / pivot
        rows -= np.multiply.outer(across, row)
        rows[:, i] = -across
        along = row / pivot
        self._diagonal -= along[:-1] * row[:-1]
        self._beside -= along[:-1] * row[-1]
        self._diagonal[i], self._beside[i] = -1.0 / pivot, -along[-1]

    def _row(self, i: int) -> Float[np.ndarray, " n+1"]:
        """Return the row of the swept matrix of an element that is out."""
        kept, rows = self._kept[: self._count], self._rows[: self._count]
        of_i = self.precision.augmented[i]
        row = of_i - of_i[kept] @ rows
        row[kept] = rows[:, i]
        return row

    def _block(self, where: Int[np.ndarray, " k"], *, is_in: bool) -> Float[np.ndarray, "k k"]:
        """Return the block of a unit."""
        if is_in:
            return self._rows[np.ix_(self._at[where], where)]
        kept, rows = self._kept[: self._count], self._rows[: self._count]
        of_unit = self.precision.augmented[where]
        return of_unit[:, where] - of_unit[:, kept] @ rows[:, where]

    def log_bayes_factors(self) -> Float[np.ndarray, " units"]:
        """Return ln of the evidence with each unit over that without it, given the other units, in nats."""
        p = self.precision
        found = np.empty(len(p.units))
        block, beside = self._diagonal[p.single_at], self._beside[p.single_at]
        size = np.abs(block)
        if ((block > 0) == self.mask[p.single]).any():
            raise ValueError(_ROUNDED)
        found[p.single] = 0.5 * (beside**2 / size - np.sign(block) * np.log(size))
        found[p.single] += _HALF_LOG_TWO_PI
        for u in p.several:
            found[u] = self._of_several(u)
        return found + p.unit_at_zero

    def log_bayes_factor(self, unit: int) -> float:
        """Return that of one unit."""
        where, at_zero = self.precision.units[unit], float(self.precision.unit_at_zero[unit])
        if len(where) > 1:
            return self._of_several(unit) + at_zero
        block, beside = float(self._diagonal[where[0]]), float(self._beside[where[0]])
        size = abs(block)
        half_log = 0.5 * math.log(size)
        log_det = -half_log if block > 0 else half_log
        return log_det + 0.5 * beside**2 / size + _HALF_LOG_TWO_PI + at_zero

    def swap_gain(self, incoming: int, outgoing: int) -> float:
        """Return what exchanging two units of one element adds to ln of the evidence, in nats.

        Args:
            incoming: A unit that is out.
            outgoing: A unit that is in.
        """
        i, o = self.precision.units[incoming][0], self.precision.units[outgoing][0]
        pivot, score = float(self._diagonal[i]), float(self._beside[i])
        across = float(self._rows[self._at[o], i]) / pivot
        variance = across**2 * pivot - float(self._diagonal[o])
        loc = float(self._beside[o]) - across * score
        if not (pivot > 0 and variance > 0):
            raise ValueError(_ROUNDED)
        of_in = 0.5 * (score**2 / pivot - math.log(pivot))
        of_out = 0.5 * (loc**2 / variance + math.log(variance))
        at_zero = self.precision.unit_at_zero
        return of_in - of_out + float(at_zero[incoming] - at_zero[outgoing])

    def swap_gains(
        self, incoming: Int[np.ndarray, " a"], outgoing: Int[np.ndarray, " b"]
    ) -> Float[np.ndarray, "a b"]:
        """Return `swap_gain` of each pair.

        Args:
            incoming: Units of one element that are out.
            outgoing: Units of one element that are in.
        """
        p = self.precision
        i = np.array([p.units[u][0] for u in incoming], int)
        o = np.array([p.units[u][0] for u in outgoing], int)
        pivot, score = self._diagonal[i][:, None], self._beside[i][:, None]
        across = self._rows[np.ix_(self._at[o], i)].T / pivot
        variance = across**2 * pivot - self._diagonal[o]
        loc = self._beside[o] - across * score
        of_in = 0.5 * (score**2 / pivot - np.log(pivot)) + p.unit_at_zero[incoming][:, None]
        return of_in - 0.5 * (loc**2 / variance + np.log(variance)) - p.unit_at_zero[outgoing]

    def _of_several(self, unit: int) -> float:
        where, is_in = self.precision.units[unit], bool(self.mask[unit])
        sign = 1.0 if is_in else -1.0
        factor = np.linalg.cholesky(-sign * self._block(where, is_in=is_in))
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        half = np.linalg.solve(factor, self._beside[where])
        return 0.5 * float(sign * log_det + half @ half) + len(where) * _HALF_LOG_TWO_PI

    def moments(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return mean and variance that each element has where its unit is in, given the other units."""
        diagonal, beside = self._diagonal, self._beside
        outside = diagonal > 0
        size = np.abs(diagonal)
        loc, variance = np.where(outside, beside / size, beside), np.where(outside, 1 / size, size)
        for u in self.precision.several:
            if not self.mask[u]:
                where = self.precision.units[u]
                covariance = np.linalg.inv(self._block(where, is_in=False))
                loc[where] = covariance @ beside[where]
                variance[where] = np.diag(covariance)
        return loc * self.precision.scale, variance * self.precision.scale**2

    def delta_f(self) -> float:
        """Return ln of the evidence of this submodel over that of the full one, in nats; exact if normal."""
        p = self.precision
        inside = self._at >= 0
        log_det = np.linalg.slogdet(p.matrix[np.ix_(inside, inside)])[1]
        quadratic = p.eta[inside] @ self._beside[inside] - p.loc @ p.eta
        gone = ~inside
        at_zero = p.log_prior_at_zero[gone].sum() + gone.sum() * _HALF_LOG_TWO_PI
        return 0.5 * float(p.log_det - log_det + quadratic) - float(at_zero)

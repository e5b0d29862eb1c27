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
        correlation = normal.covariance / self.scale / self.scale[:, None]
        factor = cho_factor(0.5 * (correlation + correlation.T), lower=True)
        size = len(self.scale)
        self.matrix: np.ndarray = cho_solve(factor, np.eye(size))
        self.matrix = 0.5 * (self.matrix + self.matrix.T)
        self.loc: np.ndarray = normal.loc / self.scale
        self.eta: np.ndarray = self.matrix @ self.loc
        self.log_det: float = -2.0 * float(np.log(np.diag(factor[0])).sum())
        prior_scale = normal.prior_scale / self.scale
        ratio = normal.prior_loc / normal.prior_scale
        self.log_prior_at_zero: np.ndarray = (
            -0.5 * ratio**2 - np.log(prior_scale) - _HALF_LOG_TWO_PI
        )
        self.units: list[np.ndarray] = [np.asarray(unit) for unit in units]
        in_units = np.concatenate(self.units) if self.units else np.zeros(0, int)
        self.always: np.ndarray = np.setdiff1d(np.arange(size), in_units)

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.scale)

    def elements(self, masks: Bool[np.ndarray, "*lead units"]) -> Bool[np.ndarray, "*lead n"]:
        """Return which elements are in, from which units are."""
        found = np.ones((*masks.shape[:-1], self.size), bool)
        for u, unit in enumerate(self.units):
            found[..., unit] = masks[..., u, None]
        return found


class Swept:
    r"""One submodel, and what every unit would gain by coming in or going out.

    The matrix of Λ and η is swept on the elements that are in. Then the block of a unit that is in holds
    minus its posterior covariance, with its mean beside it; the block of a unit that is out holds the
    precision that it would have, with the score beside it. A Savage-Dickey ratio needs nothing else. Taking
    one element in or out is one update, O(n²).

    Args:
        precision: The posterior and the units.
        mask: Units that are in.

    References:
        Goodnight (1979), The American Statistician 33, A tutorial on the sweep operator.
    """

    def __init__(self, precision: Precision, mask: Bool[np.ndarray, " units"]):
        self.precision = precision
        self.mask: np.ndarray = np.array(mask, bool)
        units = precision.units
        self._single = np.array([u for u, unit in enumerate(units) if len(unit) == 1], int)
        self._single_at = np.array([units[u][0] for u in self._single], int)
        self._several = [u for u, unit in enumerate(units) if len(unit) > 1]
        self._at_zero = np.array([precision.log_prior_at_zero[unit].sum() for unit in units])
        self._refresh()

    def _refresh(self) -> None:
        """Compute the swept matrix from the start."""
        p, n = self.precision, self.precision.size
        inside = p.elements(self.mask)
        kept, out = np.flatnonzero(inside), np.flatnonzero(~inside)
        a = np.zeros((n + 1, n + 1))
        covariance = np.linalg.inv(p.matrix[np.ix_(kept, kept)])
        covariance = 0.5 * (covariance + covariance.T)
        across = np.concatenate([p.matrix[np.ix_(kept, out)], p.eta[kept, None]], 1)
        rest = np.append(out, n)
        beside = covariance @ across
        whole = np.zeros((n + 1, n + 1))
        whole[:n, :n], whole[:n, n], whole[n, :n] = p.matrix, p.eta, p.eta
        a[np.ix_(kept, kept)] = -covariance
        a[np.ix_(kept, rest)], a[np.ix_(rest, kept)] = beside, beside.T
        a[np.ix_(rest, rest)] = whole[np.ix_(rest, rest)] - across.T @ beside
        self._a, self._update, self._flips = a, np.empty_like(a), 0

    def copy(self) -> "Swept":
        """Return another one in the same state."""
        twin = object.__new__(Swept)
        twin.__dict__.update(self.__dict__)
        twin.mask, twin._a = self.mask.copy(), self._a.copy()
        return twin

    def flip(self, unit: int) -> None:
        """Take a unit in if it is out, and out if it is in."""
        a = self._a
        direction = -1.0 if self.mask[unit] else 1.0
        for i in self.precision.units[unit]:
            pivot, column = a[i, i], a[i].copy()
            # Into memory that is there: new pages for each update cost more than the update.
            np.multiply.outer(column / pivot, column, out=self._update)
            a -= self._update
            column *= direction / pivot
            a[i], a[:, i] = column, column
            a[i, i] = -1.0 / pivot
        self.mask[unit] = not self.mask[unit]
        self._flips += len(self.precision.units[unit])
        if self._flips > _FLIPS_BEFORE_REFRESH:
            self._refresh()

    def log_bayes_factors(self) -> Float[np.ndarray, " units"]:
        """Return ln of the evidence with each unit over that without it, given the other units, in nats."""
        found = np.empty(len(self.precision.units))
        at = self._single_at
        block, beside = self._a[at, at], self._a[at, -1]
        size = np.abs(block)
        found[self._single] = 0.5 * (beside**2 / size - np.sign(block) * np.log(size))
        found[self._single] += _HALF_LOG_TWO_PI
        for u in self._several:
            found[u] = self._of_several(u)
        return found + self._at_zero

    def log_bayes_factor(self, unit: int) -> float:
        """Return that of one unit."""
        where = self.precision.units[unit]
        if len(where) > 1:
            return self._of_several(unit) + self._at_zero[unit]
        block, beside = float(self._a[where[0], where[0]]), float(self._a[where[0], -1])
        size = abs(block)
        half_log = 0.5 * math.log(size)
        log_det = -half_log if block > 0 else half_log
        return log_det + 0.5 * beside**2 / size + _HALF_LOG_TWO_PI + float(self._at_zero[unit])

    def _of_several(self, unit: int) -> float:
        where = self.precision.units[unit]
        sign = 1.0 if self.mask[unit] else -1.0
        block, beside = -sign * self._a[np.ix_(where, where)], self._a[where, -1]
        factor = np.linalg.cholesky(block)
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        half = np.linalg.solve(factor, beside)
        return 0.5 * float(sign * log_det + half @ half) + len(where) * _HALF_LOG_TWO_PI

    def moments(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return mean and variance that each element has where its unit is in, given the other units."""
        n = self.precision.size
        diagonal, beside = np.diag(self._a)[:n], self._a[:n, -1]
        outside = diagonal > 0
        size = np.abs(diagonal)
        loc, variance = np.where(outside, beside / size, beside), np.where(outside, 1 / size, size)
        for u in self._several:
            if not self.mask[u]:
                where = self.precision.units[u]
                covariance = np.linalg.inv(self._a[np.ix_(where, where)])
                loc[where] = covariance @ self._a[where, -1]
                variance[where] = np.diag(covariance)
        return loc * self.precision.scale, variance * self.precision.scale**2

    def delta_f(self) -> float:
        """Return ln of the evidence of this submodel over that of the full one, in nats; exact if normal."""
        p = self.precision
        inside = p.elements(self.mask)
        log_det = np.linalg.slogdet(p.matrix[np.ix_(inside, inside)])[1]
        quadratic = -self._a[-1, -1] - p.loc @ p.eta
        gone = ~inside
        at_zero = p.log_prior_at_zero[gone].sum() + gone.sum() * _HALF_LOG_TWO_PI
        return 0.5 * float(p.log_det - log_det + quadratic) - float(at_zero)

"""Prior on submodels: how probable a set of candidates is before the data."""

import abc
import math
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.heredity import Heredity
from bmrjax.fitted.log_sum_exp import log_sum_exp


class ModelPrior(abc.ABC):
    """Probability of every submodel before the data, under which the candidates are exchangeable.

    The size of a submodel is the number of its candidates: a group counts once, however many elements it has,
    and what is forced does not count. Submodels that heredity excludes have no probability.

    Implementing a prior: `log_prob` for many submodels at once, `log_odds` for all moves away from one
    submodel, which has to agree with it, and `mixture`, by which families of submodels are summed.

    Args:
        units: Number of candidates.
        heredity: Which submodels are allowed; by default all.
    """

    def __init__(self, units: int, heredity: Heredity | None = None):
        self.units = units
        self.heredity = Heredity.none(units) if heredity is None else heredity

    @abc.abstractmethod
    def log_prob(self, masks: Bool[np.ndarray, "*lead units"]) -> Float[np.ndarray, "*lead"]:
        """Return ln of the prior probability of submodels, up to one constant; all have to be allowed."""

    @abc.abstractmethod
    def log_odds(self, mask: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " units"]:
        """Return ln of the prior odds of each unit to be in, given the others, in an allowed submodel.

        Args:
            mask: Units that are in.

        Returns:
            ln of the prior with the unit over that without it. Of no meaning for units that are not free.
        """

    @abc.abstractmethod
    def mixture(self) -> tuple[Float[np.ndarray, " parts"], Float[np.ndarray, " parts"]]:
        """Return the prior as a mixture of independent candidates, for sums over submodels.

        Returns:
            Weights, which add up to one, and for each the probability of a candidate to be in where nothing
            keeps it out. Sums over polynomials of that probability, of a degree up to the number of
            candidates, are exact.
        """

    @abc.abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Bool[np.ndarray, "count units"]:
        """Draw submodels from the prior."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Return what is assumed, in words."""


@final
class SharedProbability(ModelPrior):
    r"""Candidates share a probability π of being in that is uniform between 0 and ½: a beta-binomial prior.

    A set S of k out of n candidates then has the prior probability

    .. math::  p(S) = 2 \int_0^{1/2} π^k (1 - π)^{n - k} dπ.

    While few are in, the prior odds of one more are about (k + 1) / (n - k): the more candidates are
    found to have no effect, the more evidence each asks for, which corrects for multiplicity. They are
    never above one. With π up to 1, as Scott and Berger have it, the set of all n candidates alone is as
    probable as all sets of one size together, and prior odds of up to n pay for effects of which there is
    no evidence.

    Under heredity, π is the probability of a candidate that may come in: one whose parents are in (one of
    them, if heredity is weak). With k candidates in and m that could come in but are out, m takes the place
    of n - k. Candidates whose parents are out do not count as found without effect.

    References:
        Scott and Berger (2010), Annals of Statistics 38, equation 10; Taylor-Rodriguez, Womack and Bliznyuk
        (2016), Journal of Computational and Graphical Statistics 25, for the prior under heredity.
    """

    def __init__(self, units: int, heredity: Heredity | None = None):
        super().__init__(units, heredity)
        # Exact for polynomials of degree `units`, and a sum of positive terms.
        nodes, weights = np.polynomial.legendre.leggauss(units // 2 + 1)
        self._weights, self._nodes = 0.5 * weights, 0.25 * (nodes + 1)
        self._logs = np.log(np.stack([self._weights, self._nodes, 1 - self._nodes]))
        # By how many are in, and how many are out and could not come in.
        closed = 0 if self.heredity.is_empty else units
        self._table = np.full((units + 1, closed + 1), np.nan)
        if not closed:
            self._table[:, 0] = [self._integral(k, units - k) for k in range(units + 1)]
        self._odds = np.diff(self._table[:, 0])

    def log_prob(self, masks: Bool[np.ndarray, "*lead units"]) -> Float[np.ndarray, "*lead"]:
        """Return ln of the prior probability of submodels."""
        inside = masks.sum(-1)
        if self.heredity.is_empty:
            return self._table[inside, 0]
        return self._log_prob(inside, self.heredity.could_enter(masks).sum(-1))

    def log_odds(self, mask: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " units"]:
        """Return ln of the prior odds of each unit to be in, given the others, in an allowed submodel."""
        k = int(mask.sum())
        if self.heredity.is_empty:
            return np.where(mask, self._odds[k - 1], self._odds[min(k, self.units - 1)])
        m, change = self.heredity.openings(mask)
        with_it = self._log_prob(np.where(mask, k, k + 1), np.where(mask, m, m + change))
        without = self._log_prob(np.where(mask, k - 1, k), np.where(mask, m + change, m))
        return with_it - without

    def _log_prob(self, inside: Any, outside: Any) -> np.ndarray:
        """Return ln of the integral for numbers of candidates that are in, and that could come in."""
        # Units that are not free are in the arrays too, with counts of sets that do not exist.
        inside = np.minimum(np.maximum(inside, 0), self.units)
        closed = np.minimum(np.maximum(self.units - inside - outside, 0), self.units)
        found = self._table[inside, closed]
        if np.isnan(found).any():
            for k, c in set(zip(np.ravel(inside), np.ravel(closed), strict=True)):
                self._table[k, c] = self._integral(int(k), int(self.units - k - c))
            found = self._table[inside, closed]
        return found

    def _integral(self, k: int, m: int) -> float:
        return log_sum_exp(self._logs[0] + k * self._logs[1] + max(m, 0) * self._logs[2])

    def mixture(self) -> tuple[Float[np.ndarray, " parts"], Float[np.ndarray, " parts"]]:
        """Return nodes of Gauss-Legendre quadrature over π, exact up to the number of candidates."""
        return self._weights, self._nodes

    def draw(self, count: int, rng: np.random.Generator) -> Bool[np.ndarray, "count units"]:
        """Draw π, and then each candidate after its parents."""
        prob = 0.5 * rng.random(count)
        masks = np.zeros((count, self.units), bool)
        for unit in self.heredity.parents_first():
            may = self.heredity.may_enter(unit, masks)
            masks[:, unit] = may & (rng.random(count) < prob)
        return masks

    def __str__(self) -> str:
        """Return what is assumed, in words."""
        who = "candidates" if self.heredity.is_empty else "candidates that may be in"
        return f"{who} share a probability that is uniform between 0 and 1/2 before the data"


@final
class Independent(ModelPrior):
    """Candidates are in independently of each other, with one probability for all: the Bernoulli prior.

    Under heredity, submodels that are not allowed are left out, and the others keep their proportions.

    Args:
        units: Number of candidates.
        expected: Expected number of candidates that are in, above 0 and below `units`; under heredity,
            before submodels are left out.
        heredity: Which submodels are allowed; by default all.

    Raises:
        ValueError: For an expected number out of range.
    """

    # Chains that draw from the prior under heredity make this many sweeps.
    _SWEEPS = 50

    def __init__(self, units: int, expected: float, heredity: Heredity | None = None):
        super().__init__(units, heredity)
        if not 0 < expected < units:
            raise ValueError(
                f"reduce_fit: expected is a number of candidates between 0 and {units}, got {expected}."
            )
        self.expected = expected
        self.prob = expected / units
        self._log_odds = math.log(expected) - math.log(units - expected)

    def log_prob(self, masks: Bool[np.ndarray, "*lead units"]) -> Float[np.ndarray, "*lead"]:
        """Return ln of the prior probability of submodels, up to one constant."""
        return self._log_odds * masks.sum(-1)

    def log_odds(self, mask: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " units"]:
        """Return ln of the prior odds, which are the same for all."""
        return np.full(len(mask), self._log_odds)

    def mixture(self) -> tuple[Float[np.ndarray, " parts"], Float[np.ndarray, " parts"]]:
        """Return the one part that there is."""
        return np.ones(1), np.array([self.prob])

    def draw(self, count: int, rng: np.random.Generator) -> Bool[np.ndarray, "count units"]:
        """Draw by independent chains, each unit given the others."""
        masks = np.zeros((count, self.units), bool)
        for _ in range(self._SWEEPS):
            for unit in rng.permutation(self.units):
                free = self.heredity.is_free(int(unit), masks)
                masks[:, unit] = np.where(free, rng.random(count) < self.prob, masks[:, unit])
        return masks

    def __str__(self) -> str:
        """Return what is assumed, in words."""
        return f"{self.expected:g} effects expected before the data"


def model_prior(expected: float | None, units: int, heredity: Heredity | None = None) -> ModelPrior:
    """Return the prior on submodels that the option `expected` of `reduce_fit` stands for.

    Args:
        expected: Expected number of candidates that are in, which makes them independent; None for
            a probability that they share.
        units: Number of candidates.
        heredity: Which submodels are allowed; by default all.
    """
    if expected is None:
        return SharedProbability(units, heredity)
    return Independent(units, expected, heredity)

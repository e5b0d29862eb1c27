"""The free energy of the states of a run, measured on as many batches as a decision needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import stdtrit

from bmrjax.infer.arguments import length
from bmrjax.run.fit import Fit
from bmrjax.run.fit_state import FitState
from bmrjax.run.point import Point

# Batches of the first look; each look doubles them. So few batches are all taken: on small data they are the
# posterior samples of a pass, which cost next to nothing, and the path shall have exact values.
_FIRST, _FEW = 16, 128
# How often a look may come out on the wrong side of a limit, if differences are normal.
_RISK = 1e-6


@dataclass(frozen=True)
class Measured:
    """What was measured of a state.

    Attributes:
        vfe: Its VFE, in nats for all data.
        error: The standard error that comes from batches that were left out; 0 if none were.
        values: VFE by batch; NaN where it is not known, and filled where it is needed later.
    """

    vfe: float
    error: float = 0.0
    values: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def exact(self) -> float | None:
        """The VFE by all batches, if all are known; `vfe` counts from a reference."""
        if self.values is None or np.isnan(self.values).any():
            return None
        return float(np.mean(self.values))


class Measurer:
    """Measure the VFE of states of one run, all under the same random numbers.

    A VFE is a mean over batches. Two states of a run differ much less batch by batch, under the same
    posterior noise, than batches differ: so the VFE of a state is that of an earlier one, the reference, plus
    the mean difference over a random sample of batches (a control variate). The sample is doubled until a
    t-test at 1e-6 says on which side of a limit the value is. Where the value is nearer to the limit than
    that, every batch is used in the end, and the difference is exact.

    Args:
        fit: The program with its data.
        key: PRNG key of all measurements.
    """

    def __init__(self, fit: Fit, key: Array):
        self._fit, self._key = fit, key
        self._batches: np.ndarray | None = None

    def exactly(self, state: FitState | Point) -> Measured:
        """Measure a state on all batches.

        Args:
            state: Of the run, or a point of its path; kept intact.
        """
        order = self._order()
        values = np.full(len(order), np.nan)
        self._fill(values, state, np.sort(order))
        return Measured(float(np.mean(values)), 0.0, values)

    def against(
        self,
        state: FitState | Point,
        limits: Sequence[float],
        reference: tuple[FitState | Point, Measured] | None = None,
    ) -> Measured:
        """Measure a state on so many batches that it is clear how it compares.

        Args:
            state: Of the run, or a point of its path; kept intact.
            limits: What the value is compared with, in nats for all data. If all are infinite, the
                value is only recorded.
            reference: An earlier state, with what was measured of it. Without one, only the first look is
                taken, and `limits` do not count.

        Returns:
            What was measured. On which side of each limit its value is, the difference from the reference on
            all batches would say too. Its error counts from the last exact value.
        """
        order = self._order()
        size, mine = len(order), np.full(len(order), np.nan)
        if reference is None:
            sample = order[: _FIRST if size > _FEW else size]
            self._fill(mine, state, sample)
            values = mine[sample]
            return Measured(float(np.mean(values)), standard_error(values, size), mine)
        other, before = reference
        theirs = np.full(size, np.nan) if before.values is None else before.values
        count = _FIRST if size > _FEW else size
        while True:
            sample = order[:count]
            self._fill(mine, state, sample)
            self._fill(theirs, other, sample)
            with np.errstate(invalid="ignore"):  # inf - inf is as good as NaN: never clear
                differences = mine[sample] - theirs[sample]
                vfe = before.vfe + float(np.mean(differences))
                error = standard_error(differences, size)
            lacking = shortage(vfe, error, limits, count)
            if lacking < 1 or count == size:
                break
            count = next_look(count, size, lacking)
        return Measured(vfe, math.hypot(error, before.error), mine)

    def _order(self) -> np.ndarray:
        """Return the numbers of all batches, shuffled: rows may be sorted."""
        if self._batches is None:
            size = self._fit.engine.free_energy.num_batches(length(self._fit.arrays))
            self._batches = np.random.default_rng(_words(self._key)).permutation(size)
        return self._batches

    def _fill(self, values: np.ndarray, state: FitState | Point, numbers: np.ndarray) -> None:
        missing = numbers[np.isnan(values[numbers])]
        if not len(missing):
            return
        fit = self._fit
        keep: Any = state.keep
        if isinstance(state, FitState):
            params = fit.params(state)
        else:
            params, keep = fit.placement.parted((state.params, state.keep))
        values[missing] = fit.engine.free_energy.by_batch(
            params, keep, fit.arrays, self._key, missing
        )


def settled(
    path: Sequence[Point], last: tuple[FitState, Measured] | None, measurer: Measurer
) -> list[Point]:
    """Return a path whose points are measured against its best one, and that one on all rows.

    During a run, errors of differences add up from point to point. Differences from the best point have less.

    Args:
        path: Points of a run.
        last: The state of the last one, with what was measured of it, exactly.
        measurer: Of the run.
    """
    path = list(path)
    if last is None or not any(point.vfe_error for point in path):
        return path
    reference: tuple[FitState | Point, Measured] | None = last
    lowest = path[-1].objective
    if not math.isfinite(lowest):
        reference, lowest = None, math.inf
    for i in reversed(range(len(path) - 1)):
        point = path[i]
        if point.vfe_error:
            cost = point.mask_cost
            found = None
            if reference is not None:
                found = measurer.against(point, (lowest - cost,), reference)
            if found is None or found.vfe + cost < lowest:
                found = measurer.exactly(point)
                if found.vfe + cost < lowest:
                    reference = point, found
            path[i] = point = replace(point, vfe=found.vfe, vfe_error=found.error)
        if point.objective < lowest:
            lowest = point.objective
    return path


def next_look(count: int, size: int, lacking: float) -> int:
    """Return how many batches the next look has: so many doublings that it may be clear, or all.

    Args:
        count: Batches of the last look.
        size: Of how many.
        lacking: What `shortage` returned for it.
    """
    wanted = count * min(lacking, size) ** 2
    while count < wanted and count < size:
        count *= 2
    return count if 2 * count <= size else size


def standard_error(values: np.ndarray, size: int) -> float:
    """Return the standard error of a mean over a sample without replacement from `size` values."""
    count = len(values)
    if count == size:
        return 0.0
    return float(np.std(values, ddof=1)) * math.sqrt(1 / count - 1 / size)


def shortage(vfe: float, error: float, limits: Sequence[float], count: int) -> float:
    """Return how many times closer to a limit a value is than a sample can tell; below 1, it is clear.

    Args:
        vfe: Estimate by the sample.
        error: Its standard error.
        limits: What it is compared with.
        count: Size of the sample.
    """
    gaps = [abs(vfe - limit) for limit in limits]
    if not (math.isfinite(vfe) and math.isfinite(error)) or any(map(math.isnan, gaps)):
        return math.inf
    clear = -float(stdtrit(count - 1, _RISK)) * error if count > 1 else math.inf
    return max((clear / gap if gap else math.inf for gap in gaps), default=0.0)


def _words(key: Array) -> np.ndarray:
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if typed else key).ravel()

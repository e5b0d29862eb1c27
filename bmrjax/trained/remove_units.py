"""One round of removals of units: all kinds compete, and the weights that stay are moved to compensate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bmrjax.trained.shared_posterior import SharedPosterior
from bmrjax.trained.unit_graph import Resource, UnitGraph

# Numbers of covariances that are kept for one round at most; if there are more, only units that seemed cheap
# at its start are judged again after each removal.
COVARIANCES = 2**25


@dataclass(frozen=True)
class RemovedUnits:
    """Units that were removed, in the order of removal.

    Attributes:
        unit: Number of each.
        saliency: ½ wᵀ C⁻¹ w of the weights that read each, in nats, those before it gone: what the log
            evidence loses.
        log_occam: −½ ln |δ C| of each: what the evidence gains by parameters less, in nats.
        parameters: How many parameters were removed with each.
        flops: How many operations in products per row.
    """

    unit: Int[np.ndarray, " gone"]
    saliency: Float[np.ndarray, " gone"]
    log_occam: Float[np.ndarray, " gone"]
    parameters: Float[np.ndarray, " gone"]
    flops: Float[np.ndarray, " gone"]


class _Level:
    """Rows of one layer and one strength: covariance and weights of the inputs that can be removed."""

    def __init__(self, covariance: np.ndarray, weights: np.ndarray, units: list[np.ndarray]):
        self.covariance, self.weights = covariance, weights
        self._units = units
        self._left = np.ones(len(covariance), bool)
        self._floor = 1e-12 * np.diagonal(covariance)

    def scores(self, count: int, precision: float) -> tuple[np.ndarray, np.ndarray]:
        """Return saliency and Occam term of each of all units, in nats; zero where nothing reads one."""
        saliency, occam = np.zeros(count), np.zeros(count)
        for units in self._units:
            places = np.flatnonzero((units >= 0) & self._left)
            places = places[np.argsort(units[places], kind="stable")]
            ids, first, sizes = np.unique(units[places], return_index=True, return_counts=True)
            for size in np.unique(sizes):
                same = sizes == size
                block = places[first[same][:, None] + np.arange(size)]
                c = self.covariance[block[:, :, None], block[:, None, :]]
                w = self.weights[:, block].transpose(1, 2, 0)
                values, vectors = np.linalg.eigh(c)
                # Rounding must not take a variance to zero.
                values = np.maximum(values, 1e-12 * values[:, -1:])
                turned = np.swapaxes(vectors, 1, 2) @ w
                saliency[ids[same]] = 0.5 * np.sum(turned**2 / values[:, :, None], (1, 2))
                determinant = np.log(precision * values).sum(1)
                occam[ids[same]] = -0.5 * len(self.weights) * determinant
        return saliency, occam

    def remove(self, unit: int) -> None:
        """Set the weights that read a unit to zero, and move the others."""
        gone = np.zeros(len(self._left), bool)
        for units in self._units:
            gone |= units == unit
        gone &= self._left
        if not gone.any():
            return
        columns = self.covariance[:, gone]
        gain = np.linalg.solve(columns[gone], columns.T)
        self.weights = self.weights - self.weights[:, gone] @ gain
        self.covariance = self.covariance - columns @ gain
        # Rounding must not take a variance to zero.
        diagonal = np.maximum(np.diagonal(self.covariance), self._floor)
        np.fill_diagonal(self.covariance, diagonal)
        self._left &= ~gone


@dataclass
class _Group:
    """One group of a layer with its units' scores."""

    levels: list[_Level]
    precision: float
    saliency: np.ndarray
    log_occam: np.ndarray
    units: set[int]

    def score(self) -> None:
        found = [level.scores(len(self.saliency), self.precision) for level in self.levels]
        self.saliency = np.sum([a for a, _ in found], 0)
        self.log_occam = np.sum([b for _, b in found], 0)


Posteriors = Sequence[tuple[int, SharedPosterior]]


def remove_units(
    graph: UnitGraph,
    posteriors: Posteriors,
    gone: Bool[np.ndarray, " units"],
    resource: Resource,
    target: float,
    *,
    least: Int[np.ndarray, " kinds"],
    may_empty: Callable[[Bool[np.ndarray, " units"]], bool],
    multiple: int = 1,
) -> RemovedUnits:
    """Remove units, those that cost least for what they release first, and move the weights that stay.

    The cost of a unit is the saliency of all weights that read it, in all layers, given what is gone; it
    is divided by the parameters or operations that the network loses with it.

    Args:
        graph: The units.
        posteriors: For each judged layer and group of it, its number and its posterior.
        gone: Which are gone; changed in place.
        resource: What is to be released.
        target: How much of it stays at most, if enough units can be removed.
        least: How many units of each kind stay at least.
        may_empty: Says whether the network still depends on its inputs without some units.
        multiple: Of which the number of units of each kind is one, where units of it go at all.

    Returns:
        What was removed.
    """
    if multiple == 1:
        return _walk(graph, posteriors, gone, resource, target, least, may_empty)
    start = gone.copy()
    sizes = np.bincount(graph.kind, minlength=len(graph.kinds))
    aim, slack = target, 0.0
    while True:
        trial = start.copy()
        found = _walk(graph, posteriors, trial, resource, aim, least, may_empty)
        done = bool(resource.total(trial) > aim) or len(found.unit) == 0
        stay = sizes - np.bincount(graph.kind[trial], minlength=len(sizes))
        back = np.minimum(-(-stay // multiple) * multiple, sizes) - stay
        order = []
        for unit in found.unit[::-1].tolist():
            kind = graph.kind[unit]
            if back[kind] > 0 and not start[unit]:
                back[kind] -= 1
            else:
                order.append(unit)
        whole = start.copy()
        whole[order] = True
        if done or resource.total(whole) <= target:
            break
        slack = max(1.5 * slack, 0.02 * resource.total(start))
        aim = target - slack
    return _walk(graph, posteriors, gone, resource, 0.0, least, may_empty, order=order[::-1])


def _walk(
    graph: UnitGraph,
    posteriors: Posteriors,
    gone: np.ndarray,
    resource: Resource,
    target: float,
    least: np.ndarray,
    may_empty: Callable[[np.ndarray], bool],
    order: list[int] | None = None,
) -> RemovedUnits:
    count = len(gone)
    size = sum(min(len(p.levels) * len(p.where) ** 2, COVARIANCES) for _, p in posteriors)
    allowed = ~gone
    if size > COVARIANCES and order is None:
        allowed = _cheap(graph, posteriors, gone, resource, target)
    elif order is not None:
        allowed = np.zeros(count, bool)
        allowed[order] = True
    groups = [_group(graph, k, p, allowed) for k, p in posteriors]
    groups = [group for group in groups if group.units]
    for group in groups:
        group.score()
    found = RemovedUnits(*(np.zeros(0) for _ in range(5)))
    rows: list[tuple[int, float, float, float, float]] = []
    left = np.bincount(graph.kind[~gone], minlength=len(graph.kinds))
    waiting = list(order or ())
    now = resource.total(gone)
    while now > target if order is None else waiting:
        saliency = np.sum([group.saliency for group in groups], 0)
        if order is None:
            may = allowed & ~gone & (left > least)[graph.kind]
            price = np.where(may, saliency / np.maximum(resource.released(gone), 1e-9), np.inf)
            unit = int(np.argmin(price))
            if not np.isfinite(price[unit]):
                break
            if left[graph.kind[unit]] == 1 and not _stays_alive(gone, unit, may_empty):
                allowed[unit] = False
                continue
        else:
            unit = waiting.pop(0)
        occam = float(sum(group.log_occam[unit] for group in groups))
        parameters, flops = (float(x.released(gone)[unit]) for x in (graph.parameters, graph.flops))
        rows.append((unit, float(saliency[unit]), occam, parameters, flops))
        gone[unit] = True
        left[graph.kind[unit]] -= 1
        for group in groups:
            if unit in group.units:
                for level in group.levels:
                    level.remove(unit)
                group.score()
        now = resource.total(gone)
    if rows:
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        found = RemovedUnits(columns[0].astype(int), *columns[1:])
    return found


def _stays_alive(gone: np.ndarray, unit: int, may_empty: Callable[[np.ndarray], bool]) -> bool:
    trial = gone.copy()
    trial[unit] = True
    return may_empty(trial)


def _group(graph: UnitGraph, layer: int, posterior: SharedPosterior, allowed: np.ndarray) -> _Group:
    units = [_with_bias(axis, posterior)[posterior.where] for axis in graph.readers[layer]]
    some = np.zeros(len(posterior.where), bool)
    for axis in units:
        some |= (axis >= 0) & allowed[axis]
    where = np.flatnonzero(some)
    units = [np.where((x[where] >= 0) & allowed[x[where]], x[where], -1) for x in units]
    ids = {int(u) for axis in units for u in np.unique(axis[axis >= 0])}
    levels = [
        _Level(posterior.covariance(strength, where), posterior.mean[np.ix_(rows, where)], units)
        for strength, rows in (posterior.levels if len(where) else [])
    ]
    none = np.zeros(len(allowed))
    return _Group(levels, posterior.quadratic.prior_precision, none, none, ids)


def _with_bias(units: np.ndarray, posterior: SharedPosterior) -> np.ndarray:
    """Return the units of inputs, with −1 for the bias behind them if there is one."""
    return np.append(units, -1) if posterior.quadratic.has_bias else units


def _cheap(
    graph: UnitGraph, posteriors: Posteriors, gone: np.ndarray, resource: Resource, target: float
) -> np.ndarray:
    """Return units that are cheap as long as nothing else goes, three times as many as should go."""
    saliency = np.zeros(len(gone))
    for k, posterior in posteriors:
        group = _group_scores(graph, k, posterior, ~gone)
        saliency += group
    released = resource.released(gone)
    price = np.where(gone, np.inf, saliency / np.maximum(released, 1e-9))
    order = np.argsort(price, kind="stable")
    wanted = 3 * (resource.total(gone) - target)
    number = int(np.searchsorted(np.cumsum(released[order]), wanted)) + 8
    allowed = np.zeros(len(gone), bool)
    allowed[order[:number]] = True
    return allowed & ~gone


def _group_scores(
    graph: UnitGraph, layer: int, posterior: SharedPosterior, allowed: np.ndarray
) -> np.ndarray:
    """Return the saliency of all units in one layer, one strength at a time."""
    units = [_with_bias(axis, posterior)[posterior.where] for axis in graph.readers[layer]]
    units = [np.where((x >= 0) & allowed[x], x, -1) for x in units]
    everything, total = np.arange(len(posterior.where)), np.zeros(len(allowed))
    for strength, rows in posterior.levels:
        level = _Level(posterior.covariance(strength, everything), posterior.mean[rows], units)
        total += level.scores(len(allowed), posterior.quadratic.prior_precision)[0]
    return total

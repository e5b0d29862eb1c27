"""What may go from a network, and what it leaves behind."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bmrjax.backend.jaxprs import bind_one
from bmrjax.structure.cost import compiled_exactly
from bmrjax.structure.dataflow import Dataflow, Site, product, reached_by, sites
from bmrjax.structure.flatten import flatten_jaxpr
from bmrjax.structure.fold import BIAS_TOLERANCE, Target, Targets
from bmrjax.structure.rescale import scaling_weights
from bmrjax.structure.traced_once import TracedOnce
from bmrjax.structure.units import Units, weight_sums

# For the position of a contraction: its arguments, and 1 where its result reaches an output.
Products = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]
# Axes of parameters, as (parameter, axis).
Dims = Collection[tuple[int, int]]
# Units of one kind are indices of the same axes: the neurons of a layer, the heads of another.
Kinds = Collection[int]
SHARED = "the same place in others is needed, as of a dimension that all heads have"
NORMED = "a sum over a weight, as in its norm, needs them"
UNABSORBED = "they are constant, and no bias can take that up"


@dataclass
class Plan:
    """Which indices of each array stay, and the arrays with what was folded into them.

    Attributes:
        arrays: All parameters at their old size, constants folded into biases.
        keep: For each parameter, for each axis, a mask of what stays.
        input_keep: The same for the inputs.
        stays: For a parameter and an axis, reasons and how many indices stay for each though nothing
            needs them.
        dims: For a parameter and an axis, the classes of its indices.
        kinds: For each kind of units, the axes of parameters that lose indices with some of them.
        split: For a parameter and an axis, the several axes that the network's code makes of it or that it
            was made of, each time as their sizes before and after.
        goes: For each class, whether it goes.
    """

    arrays: list[Array]
    keep: list[list[np.ndarray]]
    input_keep: list[list[np.ndarray]]
    goes: np.ndarray
    stays: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    dims: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    kinds: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    split: dict[tuple[int, int], list[list[tuple[int, int]]]] = field(default_factory=dict)

    def sliced(self) -> list[Array]:
        """Return the parameters at their new size."""
        return [_take(a, keep) for a, keep in zip(self.arrays, self.keep, strict=True)]

    def emptied(self) -> set[tuple[int, int]]:
        """Return the axes that lose all their indices."""
        return {place for place in self.dims if not self.keep[place[0]][place[1]].any()}


def _take(array: Array, keep: Sequence[np.ndarray]) -> Array:
    if all(mask.all() for mask in keep):
        return array
    # On the host: a device would compile a program for each shape.
    found = np.asarray(array)
    for axis, mask in enumerate(keep):
        if not mask.all():
            found = np.take(found, np.flatnonzero(mask), axis=axis)
    return jax.numpy.asarray(found)


class Planner:
    """Finds out what may go.

    Args:
        function: Of a list of parameters and a list of inputs, traced.
        arrays: The parameters.
        inputs: Example inputs. Only their shapes count.
        free_inputs: Whether indices of the last axis of an input may go.
        varies: For each parameter, which of its elements may have any value; the others are zero. Only what
            adds nothing for any such values goes then, and no constant is folded. By default parameters are
            what they are.
    """

    def __init__(
        self,
        function: TracedOnce,
        arrays: Sequence[Array],
        inputs: Sequence[Array],
        *,
        free_inputs: bool = False,
        varies: Sequence[Array] | None = None,
    ):
        self._only_nothing = varies is not None
        self.arrays: list[Array] = list(arrays)
        self.inputs: list[Array] = list(inputs)
        args = [*self.arrays, *self.inputs]
        count = len(self.arrays)
        traced = flatten_jaxpr(function.closed, *args)
        self._jaxpr = traced.jaxpr
        self._consts = traced.consts
        self._units = Units(self._jaxpr, count, free_inputs=free_inputs, free_norms=True)
        self._norms = [self._jaxpr.eqns[i] for i in weight_sums(self._jaxpr, count).values()]
        self._sites = sites(self._jaxpr)
        self._dims = {
            (i, k): self._units.roots(x)
            for i, v in enumerate(self._jaxpr.invars[:count])
            for k, x in enumerate(self._units.of(v))
        }
        self._products = self._units.products
        self._targets = Targets(self._jaxpr, count)
        self._targets_of: dict[int, Target | None] = {}
        self._kinds = _kinds(self._units, self._dims, self._products)
        flags = [*([False] * count if varies is None else varies), *([True] * len(inputs))]
        self._reached = reached_by(self._jaxpr, self._jaxpr.invars[count:])
        jaxpr = self._jaxpr

        where = sorted({site.index for site in self._sites})

        def facts(consts: Any, args: Any) -> Any:
            flow = Dataflow(jaxpr, consts, args, flags)
            norms = [flow.nonzero(eqn.invars[0]) > 0 for eqn in self._norms]
            return (
                [flow.needed(site) for site in self._sites],
                norms,
                {
                    i: (
                        *(flow.value(v) for v in jaxpr.eqns[i].invars),
                        flow.wanted(jaxpr.eqns[i].outvars[0]),
                    )
                    for i in where
                },
            )

        run = compiled_exactly(facts, self._consts, args)
        self._needed, self._nonzero, found = jax.device_get(run(self._consts, args))
        self._arguments: Products = found

    def plan(self, fixed: Kinds = (), empty: Dims | None = None) -> Plan:
        """Return the largest removal that changes no output.

        Args:
            fixed: Kinds of units that must stay.
            empty: Axes that may lose all of them; any other keeps one, though nothing needs it. All
                may by default.
        """
        units, jaxpr = self._units, self._jaxpr
        params = jaxpr.invars[: len(self.arrays)]
        dims = self._dims
        used, summed = self._used_and_summed()
        stay, reasons = np.isin(self._kinds, list(fixed)), {}

        normed = self._normed()

        def going() -> np.ndarray:
            blocked = units.gather(used | normed | stay | units.is_fixed)
            return units.spread(units.gather(summed) & ~blocked)

        goes = going()
        for place, labels in dims.items():
            may_be_empty = (empty is None or place in empty) and not self._only_nothing
            if not may_be_empty and len(labels) and goes[labels].all():
                stay[labels[0]] = True
                goes = going()
        while True:
            arrays, refused = self._folded(goes)
            if not refused:
                break
            refused |= {part for label in refused for part in units.parts(label)}
            stay[list(refused)] = True
            reasons |= dict.fromkeys(refused, UNABSORBED)
            goes = going()
        keep = [[~goes[dims[i, k]] for k in range(v.aval.ndim)] for i, v in enumerate(params)]
        inputs = jaxpr.invars[len(self.arrays) :]
        input_keep = [[~goes[units.roots(x)] for x in units.of(v)] for v in inputs]
        found = Plan(arrays, keep, input_keep, goes, dims=dims, split=self._split(goes))
        for place, labels in dims.items():
            for unit in labels[summed[labels] & ~used[labels] & ~goes[labels]].tolist():
                reason = units.reason(unit) or reasons.get(unit)
                if reason is None and normed[unit]:
                    reason = NORMED
                if reason is None and len(units.parts(unit)) > 1:
                    reason = SHARED
                if reason:
                    why = found.stays.setdefault(place, {})
                    why[reason] = why.get(reason, 0) + 1
            for label in set(labels[goes[labels]].tolist()):
                for kind in {self._kinds[u] for u in units.parts(label) if goes[u]}:
                    found.kinds.setdefault(int(kind), set()).add(place)
        return found

    def _split(self, goes: np.ndarray) -> dict[tuple[int, int], list[list[tuple[int, int]]]]:
        """Return what axes of parameters are made of; see `Plan.split`."""
        owners: dict[int, list[tuple[int, int]]] = {}
        for place, labels in self._dims.items():
            for label in set(labels.tolist()):
                owners.setdefault(label, []).append(place)
        found: dict[tuple[int, int], list[list[tuple[int, int]]]] = {}
        for one in self._products:
            sizes = [(len(x), int((~goes[x]).sum())) for x in one.axes]
            for place in owners.get(int(one.flat.flat[0]), ()):
                known = found.setdefault(place, [])
                if sizes not in known and np.isin(one.flat, self._dims[place]).all():
                    known.append(sizes)
        return found

    def rescaled(self, plan: Plan) -> list[Array] | None:
        """Return the parameters of a plan at their new size, for code that divides by the root of its sizes.

        Attention divides products of queries and keys by the square root of the size of a head. Where
        that is read off an array, a head that loses dimensions is divided by less; its queries become
        smaller in the same proportion. None if no product has that form.
        """
        arrays, changed = list(plan.arrays), False
        for site in self._sites:
            eqn = self._jaxpr.eqns[site.index]
            goes = plan.goes[self._units.roots(self._labels(site))]
            if not all(v in self._reached for v in eqn.invars) or not goes.any() or goes.all():
                continue
            if self._only_nothing:
                return None
            factor = np.sqrt((~goes).sum() / len(goes))
            weights = None
            for var in eqn.invars:
                weights = scaling_weights(self._jaxpr, var, len(arrays), self._reached)
                if weights is not None:
                    break
            for i, where in (weights or {}).items():
                scale = np.where(where, factor, 1).astype(np.float32)
                arrays[i] = (arrays[i] * scale).astype(arrays[i].dtype)
                changed = True
        if not changed:
            return None
        return dataclasses.replace(plan, arrays=arrays).sliced()

    def _used_and_summed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each class, whether a contraction needs it, and whether any sums over it."""
        used, summed = np.zeros((2, self._units.count), bool)
        for site, needed in zip(self._sites, self._needed, strict=True):
            labels = self._units.roots(self._labels(site))
            used[labels[needed]] = True
            summed[labels] = True
        return used, summed

    def _normed(self) -> np.ndarray:
        """Return, for each class, whether a sum over a weight needs it."""
        found = np.zeros(self._units.count, bool)
        for eqn, nonzero in zip(self._norms, self._nonzero, strict=True):
            labels = self._units.of(eqn.invars[0])
            for axis in eqn.params["axes"]:
                others = tuple(i for i in range(nonzero.ndim) if i != axis)
                found[self._units.roots(labels[axis])[nonzero.any(axis=others)]] = True
        return found

    def _labels(self, site: Site) -> np.ndarray:
        return self._units.of(self._jaxpr.eqns[site.index].invars[0])[site.axis]

    def _drops(self, goes: np.ndarray) -> dict[int, dict[int, np.ndarray]]:
        """Return, for each contraction and axis of its first argument, which terms go."""
        found: dict[int, dict[int, np.ndarray]] = {}
        for site in self._sites:
            labels = self._units.roots(self._labels(site))
            found.setdefault(site.index, {})[site.axis] = goes[labels]
        return found

    def _folded(self, goes: np.ndarray) -> tuple[list[Array], set[int]]:
        """Return the parameters with the constants in them, and units whose constants found no place."""
        lost = [self._lost(index, drop, goes) for index, drop in self._drops(goes).items()]
        arrays = list(self.arrays)
        refused: set[int] = set()
        by_target: dict[int, list[_Lost]] = {}
        for one in lost:
            if one.target is None or self._only_nothing:
                refused |= self._guilty(one)
            else:
                by_target.setdefault(one.target.argument, []).append(one)
        for argument, those in by_target.items():
            if not any(one.constant.any() for one in those):
                continue
            shift = _shift(those)
            if shift is None:
                refused |= set().union(*map(self._guilty, those))
            else:
                arrays[argument] = arrays[argument] + shift.astype(arrays[argument].dtype)
        return arrays, refused

    def _lost(self, index: int, drop: dict[int, np.ndarray], goes: np.ndarray) -> "_Lost":
        """Return what a contraction loses with the terms that go."""
        eqn = self._jaxpr.eqns[index]
        a, b, wanted = self._arguments[index]
        gone = np.zeros(a.shape, bool)
        for site in (s for s in self._sites if s.index == index):
            mask = drop[site.axis]
            if len(mask) == b.shape[site.other]:  # what is multiplied by zeros adds nothing
                others = tuple(i for i in range(b.ndim) if i != site.other)
                mask = mask & (b != 0).any(axis=others)
            if mask.any():
                gone |= _along(mask, site.axis, a.ndim)
        if gone.any():
            gone &= a != 0
        (var,) = eqn.outvars
        # What is removed need not be right itself.
        for axis, labels in enumerate(self._units.of(var)):
            wanted = wanted * _along(~goes[self._units.roots(labels)], axis, wanted.ndim)
        constant = np.zeros(wanted.shape, var.aval.dtype)
        if gone.any() and np.any(wanted):
            with jax.default_matmul_precision("highest"):
                lost = bind_one(eqn, [np.where(gone, a, 0).astype(a.dtype), b])
            constant = np.asarray(lost) * (wanted > 0)
        if index not in self._targets_of:
            self._targets_of[index] = self._targets.of(var)
        return _Lost(index, drop, gone, constant, wanted, self._targets_of[index])

    def _guilty(self, lost: "_Lost") -> set[int]:
        """Return the dropped units of a contraction that add something to it where that is wanted."""
        index, drop, gone, wanted = lost.index, lost.drop, lost.gone, lost.wanted
        if not lost.constant.any():
            return set()
        eqn, b = self._jaxpr.eqns[index], self._arguments[index][1]
        # How many of the wanted results each element of the first argument adds to.
        ones = np.zeros(gone.shape, np.float32)
        _, back = jax.vjp(lambda m: product(eqn, [m, (b != 0).astype(np.float32)]), ones)
        terms = gone & (np.asarray(back(wanted.astype(np.float32))[0]) > 0)
        guilty: set[int] = set()
        for site in (s for s in self._sites if s.index == index):
            labels = self._units.roots(self._labels(site))
            some = terms.any(axis=tuple(i for i in range(terms.ndim) if i != site.axis))
            guilty |= set(labels[some & drop[site.axis]].tolist())
        return guilty


@dataclass(frozen=True)
class _Lost:
    """What a contraction loses with the terms that go.

    Attributes:
        index: Position of the contraction.
        drop: For axes of its first argument, which terms go.
        gone: Which elements of that argument go that are not zero.
        constant: What they added.
        wanted: Where its result reaches an output.
        target: The parameter that can take the constant up.
    """

    index: int
    drop: dict[int, np.ndarray]
    gone: np.ndarray
    constant: np.ndarray
    wanted: np.ndarray
    target: Target | None


def _shift(lost: Sequence[_Lost]) -> Array | None:
    """Return what to add to a parameter for all contractions that it is added to; None if they differ."""
    target = lost[0].target
    assert target is not None
    if target.uses != len(lost):
        return None
    total, where = None, None
    for one in lost:
        assert one.target is not None
        found = one.target.shift(jax.numpy.asarray(one.constant), jax.numpy.asarray(one.wanted))
        if found is None:
            return None
        shift, mine = found
        if total is None or where is None:
            total, where = shift, mine
            continue
        both = where & mine
        apart = jax.numpy.max(jax.numpy.abs(shift - total) * both, initial=0.0)
        if apart > BIAS_TOLERANCE * (1 + jax.numpy.max(jax.numpy.abs(total), initial=0.0)):
            return None
        total, where = jax.numpy.where(where, total, shift), where | mine
    return total


def _along(mask: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return mask.reshape([-1 if i == axis else 1 for i in range(rank)])


def _kinds(units: Units, dims: dict[tuple[int, int], np.ndarray], products: Any) -> np.ndarray:
    """Return a number for each class: that of its kind."""
    axes = [*dims.values(), *(x for product in products for x in product.axes)]
    several = np.zeros(units.count, bool)
    several[units.within[0]] = True
    chains = [x[~several[x]] for x in axes]
    pairs = [np.stack([x[:-1], x[1:]]) for x in chains if len(x) > 1]
    edges = np.concatenate([*pairs, np.zeros((2, 0), int)], axis=1)
    graph = coo_array((np.ones(edges.shape[1], bool), edges), shape=(units.count,) * 2)
    return connected_components(graph, directed=False)[1]

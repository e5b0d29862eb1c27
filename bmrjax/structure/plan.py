"""What may go from a network, and what it leaves behind."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from bmrjax.backend.jaxprs import bind_one
from bmrjax.structure.cost import compiled_exactly
from bmrjax.structure.dataflow import Dataflow, Site, product, sites
from bmrjax.structure.flatten import flatten
from bmrjax.structure.fold import target
from bmrjax.structure.units import Units

# For the position of a contraction: its arguments, and 1 where its result reaches an output.
Products = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]
# Axes of parameters, as (parameter, axis).
Dims = Collection[tuple[int, int]]
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
        dims: For a parameter and an axis, the units of its indices.
    """

    arrays: list[Array]
    keep: list[list[np.ndarray]]
    input_keep: list[list[np.ndarray]]
    stays: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    dims: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def sliced(self) -> list[Array]:
        """Return the parameters at their new size."""
        return [_take(a, keep) for a, keep in zip(self.arrays, self.keep, strict=True)]

    def emptied(self) -> set[tuple[int, int]]:
        """Return the axes that lose all their indices."""
        return {place for place in self.dims if not self.keep[place[0]][place[1]].any()}

    def together(self) -> list[list[tuple[int, int]]]:
        """Return the axes that lose indices, in groups that lose the same ones."""
        owners: dict[int, set[tuple[int, int]]] = {}
        for (i, axis), labels in self.dims.items():
            for unit in labels[~self.keep[i][axis]].tolist():
                owners.setdefault(unit, set()).add((i, axis))
        groups: list[set[tuple[int, int]]] = []
        for dims in owners.values():
            touching = [g for g in groups if g & dims]
            groups = [g for g in groups if not g & dims]
            groups.append(dims.union(*touching))
        return [sorted(group) for group in groups]


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
    """Finds out what may go; traces the network once.

    Args:
        function: Of a list of parameters and a list of inputs.
        arrays: The parameters.
        inputs: Example inputs. Only their shapes count.
        free_inputs: Whether indices of the last axis of an input may go.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arrays: Sequence[Array],
        inputs: Sequence[Array],
        *,
        free_inputs: bool = False,
    ):
        self.arrays, self.inputs = list(arrays), list(inputs)
        args = [*self.arrays, *self.inputs]
        count = len(self.arrays)
        traced = flatten(lambda *values: function(values[:count], values[count:]), *args)
        self._jaxpr = traced.jaxpr
        self._consts = traced.consts
        self._units = Units(self._jaxpr, count, free_inputs=free_inputs)
        self._sites = sites(self._jaxpr)
        varies = [i >= count for i in range(len(args))]
        jaxpr = self._jaxpr

        where = sorted({site.index for site in self._sites})

        def found(consts: Any, args: Any) -> Any:
            facts = Dataflow(jaxpr, consts, args, varies)
            return [facts.needed(site) for site in self._sites], {
                i: (
                    *(facts.value(v) for v in jaxpr.eqns[i].invars),
                    facts.wanted(jaxpr.eqns[i].outvars[0]),
                )
                for i in where
            }

        run = compiled_exactly(found, self._consts, args)
        self._needed, products = jax.device_get(run(self._consts, args))
        self._products: Products = products

    def plan(self, fixed: Dims = (), empty: Dims | None = None) -> Plan:
        """Return the largest removal that changes no output.

        Args:
            fixed: Axes of parameters whose indices must stay.
            empty: Axes that may lose all of them; any other keeps one, though nothing needs it. All
                may by default.
        """
        units, jaxpr = self._units, self._jaxpr
        used: set[int] = set()
        for site, needed in zip(self._sites, self._needed, strict=True):
            used |= set(units.roots(self._labels(site))[needed].tolist())
        # A network can lose what some contraction sums over.
        summed = {int(u) for site in self._sites for u in units.roots(self._labels(site))}
        reasons: dict[int, str] = {}
        params = jaxpr.invars[: len(self.arrays)]
        dims = {
            (i, k): units.roots(x) for i, v in enumerate(params) for k, x in enumerate(units.of(v))
        }
        stay = {int(u) for place in fixed for u in dims[place]}
        for place, labels in dims.items():
            if empty is None or place in empty or not len(labels):
                continue
            if not any(u in used or u in stay or units.reason(int(u)) for u in labels):
                stay.add(int(labels[0]))

        free = summed - used

        def goes(unit: int) -> bool:
            return unit in free and unit not in stay and units.reason(unit) is None

        while True:
            arrays, refused = self._folded(goes)
            if not refused:
                break
            stay |= refused
            reasons |= dict.fromkeys(refused, UNABSORBED)
        keep = [[_mask(dims[i, k], goes) for k in range(v.aval.ndim)] for i, v in enumerate(params)]
        found = Plan(
            arrays,
            keep,
            [
                [_mask(units.roots(x), goes) for x in units.of(v)]
                for v in jaxpr.invars[len(self.arrays) :]
            ],
            dims=dims,
        )
        for place, labels in dims.items():
            for unit in labels.tolist():
                reason = units.reason(unit) or reasons.get(unit)
                if unit not in used and reason and unit in summed:
                    why = found.stays.setdefault(place, {})
                    why[reason] = why.get(reason, 0) + 1
        return found

    def _labels(self, site: Site) -> np.ndarray:
        return self._units.of(self._jaxpr.eqns[site.index].invars[0])[site.axis]

    def _drops(self, goes: Callable[[int], bool]) -> dict[int, dict[int, np.ndarray]]:
        """Return, for each contraction and axis of its first argument, which terms go."""
        found: dict[int, dict[int, np.ndarray]] = {}
        for site in self._sites:
            labels = self._units.roots(self._labels(site))
            found.setdefault(site.index, {})[site.axis] = ~_mask(labels, goes)
        return found

    def _folded(self, goes: Callable[[int], bool]) -> tuple[list[Array], set[int]]:
        """Return the parameters with the constants in them, and units whose constants found no place."""
        arrays = list(self.arrays)
        refused: set[int] = set()
        for index, drop in self._drops(goes).items():
            eqn = self._jaxpr.eqns[index]
            a, b, wanted = self._products[index]
            gone = np.zeros(a.shape, bool)
            for axis, mask in drop.items():
                gone |= _along(mask, axis, a.ndim)
            gone &= a != 0
            (var,) = eqn.outvars
            # What goes itself need not be right.
            for axis, labels in enumerate(self._units.of(var)):
                wanted = wanted * _along(_mask(self._units.roots(labels), goes), axis, wanted.ndim)
            if not gone.any() or not wanted.any():
                continue
            with jax.default_matmul_precision("highest"):
                constant = np.asarray(bind_one(eqn, [np.where(gone, a, 0).astype(a.dtype), b]))
            if not np.any(constant * wanted):
                continue
            where = target(self._jaxpr, var, len(arrays))
            lost = jax.numpy.asarray(constant * (wanted > 0)), jax.numpy.asarray(wanted)
            shift = None if where is None else where.shift(*lost)
            if where is None or shift is None:
                refused |= self._guilty(index, drop, gone, wanted)
            else:
                old = arrays[where.argument]
                arrays[where.argument] = old + shift.astype(old.dtype)
        return arrays, refused

    def _guilty(
        self, index: int, drop: dict[int, np.ndarray], gone: np.ndarray, wanted: np.ndarray
    ) -> set[int]:
        """Return the dropped units of a contraction that add something to it where that is wanted."""
        eqn, b = self._jaxpr.eqns[index], self._products[index][1]
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


def _along(mask: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return mask.reshape([-1 if i == axis else 1 for i in range(rank)])


def _mask(labels: np.ndarray, goes: Callable[[int], bool]) -> np.ndarray:
    return np.array([not goes(int(u)) for u in labels], bool)

"""Which indices of which arrays can only go together: the dependency graph of a network.

Every index of every axis of every array belongs to a *unit*. An operation joins units: the columns of a
weight with the features that they multiply, the summands of a skip connection with each other, the
channels of a convolution with the blocks of columns behind a flattening. Removing a unit means
taking all its indices out of all arrays. Units that a network's code could not lose are *fixed*, with
a reason.

Where an axis is several axes in one, as the outputs of a query projection are heads times the
dimensions of a head, an index belongs to several units and goes with any of them.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jec
import numpy as np

from bmrjax.structure.dataflow import reached_by
from bmrjax.structure.solve_units import NO_REASON, TWO_WAYS, AxisProduct, UnitClasses, solve_units
from bmrjax.structure.unit_rules import Labels, reduced, rule_of

INPUT = "the input has them"
OUTPUT = "they are outputs"


def weight_sums(jaxpr: Any, num_params: int) -> dict[int, int]:
    """Return the sums over elements of weights alone: `id` of the operation to its position."""
    reached = reached_by(jaxpr, jaxpr.invars[num_params:])
    return {
        id(eqn): i
        for i, eqn in enumerate(jaxpr.eqns)
        if eqn.primitive.name == "reduce_sum" and not set(eqn.outvars) & reached
    }


class Units:
    """The units of a flat jaxpr.

    Args:
        jaxpr: Without calls.
        num_params: How many of its arguments are parameters; the rest are inputs.
        free_inputs: Whether indices of the last axis of an input may go.
        free_norms: Whether indices may go that a sum over a weight runs over, as in its norm, for the caller
            to see that they add nothing to it.

    Attributes:
        products: Axes that are several axes in one, as classes; see `AxisProduct`.
        within: Pairs of a class and one of the units that it goes with, for classes that go with several.
    """

    def __init__(
        self, jaxpr: Any, num_params: int, *, free_inputs: bool = False, free_norms: bool = False
    ):
        self._weights = weight_sums(jaxpr, num_params) if free_norms else {}
        self._count = 0
        self._reasons: list[str] = []
        self._why: dict[str, int] = {}
        self._fixes: list[tuple[np.ndarray, int]] = []
        self._joins: list[tuple[np.ndarray, np.ndarray]] = []
        self._products: list[AxisProduct] = []
        self._labels: dict[Any, Labels] = {}
        for i, var in enumerate([*jaxpr.constvars, *jaxpr.invars]):
            self._labels[var] = [self.fresh(n) for n in var.aval.shape]
            argument = i - len(jaxpr.constvars)
            if argument < 0:
                self.fix(self._labels[var], "a constant of the code has them")
            elif argument >= num_params:
                self.fix(self._labels[var][: -1 if free_inputs else None], INPUT)
        for eqn in jaxpr.eqns:
            self._visit(eqn)
        for var in jaxpr.outvars:
            self.fix(self.of(var), OUTPUT)
        self._solution: UnitClasses = solve_units(
            self._count, self._fixes, self._joins, self._products
        )
        self.within = self._solution.within

    @property
    def count(self) -> int:
        """How many classes of indices there are."""
        return self._solution.count

    @property
    def products(self) -> list[AxisProduct]:
        """Axes that are several axes in one, as classes."""
        return [
            AxisProduct(self.roots(p.flat), [self.roots(x) for x in p.axes]) for p in self._products
        ]

    def of(self, var: Any) -> Labels:
        """Return the labels of each axis of a variable; `roots` says which are one unit."""
        if isinstance(var, jec.Literal):
            return [self.fresh(n) for n in np.shape(var.val)]
        return self._labels[var]

    def roots(self, labels: np.ndarray) -> np.ndarray:
        """Return the class of each label: indices of one class go together."""
        return self._solution.classes[labels]

    def reason(self, unit: int) -> str | None:
        """Return why a class has to stay, None if it may go."""
        found = int(self._solution.reasons[unit])
        if found == NO_REASON:
            return None
        return "two reshapes cut them differently" if found == TWO_WAYS else self._reasons[found]

    @property
    def is_fixed(self) -> np.ndarray:
        """For each class, whether it has to stay."""
        return self._solution.reasons != NO_REASON

    def parts(self, unit: int) -> tuple[int, ...]:
        """Return the units that a class goes with, the outermost first; itself if it is one."""
        return self._solution.parts.get(unit, (unit,))

    def spread(self, flags: np.ndarray) -> np.ndarray:
        """Flag each class that goes with a unit that is flagged; those that are units keep their flags."""
        found = flags.copy()
        inner, outer = self.within
        found[inner] = False
        np.logical_or.at(found, inner, flags[outer])
        return found

    def gather(self, flags: np.ndarray) -> np.ndarray:
        """Flag each unit, too, of which a class that goes with it is flagged."""
        found = flags.copy()
        inner, outer = self.within
        np.logical_or.at(found, outer, flags[inner])
        return found

    def fresh(self, size: int) -> np.ndarray:
        """Return new labels."""
        start = self._count
        self._count += size
        return np.arange(start, start + size)

    def fixed(self, size: int, reason: str) -> np.ndarray:
        """Return new labels of indices that have to stay."""
        found = self.fresh(size)
        self.fix([found], reason)
        return found

    def fix(self, labels: Sequence[np.ndarray], reason: str) -> None:
        """Note that indices have to stay."""
        if reason not in self._why:
            self._why[reason] = len(self._reasons)
            self._reasons.append(reason)
        self._fixes += [(axis, self._why[reason]) for axis in labels]

    def join(self, first: np.ndarray, second: np.ndarray) -> None:
        """Note that indices go together."""
        if len(first) != len(second):
            raise AssertionError("axes of different sizes cannot go together")
        if first is not second:
            self._joins.append((first, second))

    def product(self, flat: np.ndarray, axes: Sequence[np.ndarray]) -> None:
        """Note that an index of one axis goes where an index of several axes, of which it is made, goes."""
        wide = [x for x in axes if len(x) > 1] or list(axes[:1])
        # One index of an axis is all of it.
        self.fix([x for x in axes if not any(x is y for y in wide)], "it is all of an axis")
        if not wide:
            self.fix([flat], "it is all of an axis")
        elif len(wide) == 1:
            self.join(flat, wide[0])
        else:
            self._products.append(AxisProduct(flat.reshape([len(x) for x in wide]), wide))

    def _visit(self, eqn: Any) -> None:
        name = eqn.primitive.name
        rule = rule_of(name)
        if id(eqn) in self._weights:
            rule = reduced
        inputs = [self.of(v) for v in eqn.invars]
        found = rule(self, eqn, inputs) if rule else None
        if found is None:
            for labels in inputs:
                self.fix(labels, f"'{name}' reads them")
            found = [
                [self.fixed(n, f"'{name}' makes them") for n in v.aval.shape] for v in eqn.outvars
            ]
        self._labels.update(zip(eqn.outvars, found, strict=True))

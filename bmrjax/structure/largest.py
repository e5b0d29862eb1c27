"""The largest removal that a network's own code can do with."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import lazy_loader
import numpy as np
from jaxtyping import Array

from bmrjax.structure.attribute_sizes import Choice, FoundSizes, choices
from bmrjax.structure.equivalence import Trial, difference
from bmrjax.structure.network_arrays import Parts
from bmrjax.structure.plan import Plan, Planner
from bmrjax.structure.traced_once import TracedOnce, trace_once

_select: Any = lazy_loader.load("bmrjax.structure.select", suppress_warning=True)  # loads Equinox

# How many ways to set attributes are traced, and how many of those that run are compared.
MOST_TRACED, MOST_COMPARED = 64, 4
HINT = " (structure.sizes_of says which attributes of a module are sizes)"
ELSE = "its code gives something else without them"


@dataclass(frozen=True)
class Tried:
    """A smaller network that gives the same outputs.

    Attributes:
        network: The network.
        plan: What was removed.
        inputs: Positions of the input features that it reads; None for all.
        error: How far its outputs are from those of the old one; see `difference`.
        flops: Floating-point operations of a call.
        refused: For axes of parameters that had to stay, what was wrong without them.
    """

    network: Any
    plan: Plan
    inputs: np.ndarray | None
    error: float
    flops: float
    refused: dict[tuple[int, int], str] = field(default_factory=dict)


def largest(
    parts: Parts, again: Callable[[Any], Parts], planner: Planner, old: Trial, *, flat: bool
) -> Tried:
    """Return the smallest network that gives the same outputs.

    All that may go is tried at once. If the network's code does not run without, or gives something else,
    the kinds of units are halved until those that have to stay are known.

    Args:
        parts: The network.
        again: Takes a smaller network apart.
        planner: What may go from it.
        old: The network, run.
        flat: Whether it takes a flattened input, of which features may go.
    """
    search = _Search(parts, again, planner, old, flat=flat)
    whole = planner.plan()
    found = search.try_plan(whole)
    if isinstance(found, Tried):
        return found
    refused: dict[int, str] = {}
    kinds = sorted(whole.kinds)
    one_left = search.try_plan(planner.plan(empty=()))
    if not isinstance(one_left, Tried):
        for runs in (search.run_plan, search.try_plan):

            def alone(those: Collection[int], runs: Any = runs) -> str | None:
                plan = planner.plan({k for k in kinds if k not in those}, empty=())
                problem = runs(plan)
                return problem if isinstance(problem, str) else None

            refused |= _halved([k for k in kinds if k not in refused], alone)
            one_left = search.try_plan(planner.plan(refused, empty=()))
            if isinstance(one_left, Tried):
                break
    if not isinstance(one_left, Tried):
        refused = dict.fromkeys(kinds, one_left)
        one_left = search.try_plan(planner.plan(refused, ()), flat=False)
    if not isinstance(one_left, Tried):
        raise RuntimeError(  # noqa: TRY004
            f"compact: the network does not give its own outputs: {one_left}."
        )
    found = _emptied(search, planner, whole, refused) or one_left
    places = {place: why for k, why in refused.items() for place in whole.kinds[k]}
    return dataclasses.replace(found, refused=places)


def _emptied(
    search: "_Search", planner: Planner, whole: Plan, refused: dict[int, str]
) -> Tried | None:
    """Return a network of which some axes lose all indices, if it can do without them."""
    emptied = whole.emptied()
    kinds = [k for k, places in whole.kinds.items() if places & emptied and k not in refused]
    if not kinds:
        return None

    def places(those: Collection[int]) -> set[tuple[int, int]]:
        return {place for k in those for place in whole.kinds[k] & emptied}

    def without(those: Collection[int]) -> str | None:
        found = search.try_plan(planner.plan(refused, empty=places(those)))
        return found if isinstance(found, str) else None

    wrong = _halved(kinds, without)
    kept = [k for k in kinds if k not in wrong]
    found = search.try_plan(planner.plan(refused, empty=places(kept))) if kept else ""
    return found if isinstance(found, Tried) else None


def _halved(items: Sequence[int], wrong: Callable[[Collection[int]], str | None]) -> dict[int, str]:
    """Return the items, with the reason, without which the others are right together.

    Args:
        items: All.
        wrong: Says what is wrong with some of them; None if nothing is.
    """
    good: list[int] = []
    found: dict[int, str] = {}
    waiting = [list(items)] if items else []
    while waiting:
        part = waiting.pop()
        problem = wrong([*good, *part])
        if problem is None:
            good += part
        elif len(part) == 1:
            found[part[0]] = problem
        else:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
    return found


@dataclass(frozen=True)
class _Built:
    """A smaller network whose code runs.

    Attributes:
        network: The network.
        parts: Taken apart.
        traced: Traced.
        inputs: Positions of the input features that it reads; None for all.
    """

    network: Any
    parts: Parts
    traced: TracedOnce
    inputs: np.ndarray | None


class _Search:
    """Builds networks of plans and runs them; remembers which attributes are sizes."""

    def __init__(
        self,
        parts: Parts,
        again: Callable[[Any], Parts],
        planner: Planner,
        old: Trial,
        *,
        flat: bool,
    ):
        self._parts, self._again, self._flat = parts, again, flat
        self._planner, self._old = planner, old
        self._choice: Choice = {}

    def run_plan(self, plan: Plan, *, flat: bool | None = None) -> Any | str:
        """Return a network of a plan that runs, or what is wrong."""
        found, problem = next(self._running(plan, flat=flat), (None, None)), self._problem
        return problem if found is None else found

    def try_plan(self, plan: Plan, *, flat: bool | None = None) -> Tried | str:
        """Return the network of a plan, if it gives the same outputs; else what is wrong."""
        found: str | None = None
        for built, sizes in islice(self._running(plan, flat=flat), MOST_COMPARED):
            compared = self._compared(plan, built)
            if isinstance(compared, Tried):
                self._choice = sizes
                return compared
            found = found or compared
        return found or self._problem

    def _running(self, plan: Plan, *, flat: bool | None) -> Iterator[tuple["_Built", Choice]]:
        """Yield networks of a plan that run: with attributes as known so far, then with others."""
        yield from self._with_sizes(plan, plan.sliced(), flat=flat)
        arrays = self._planner.rescaled(plan)
        if arrays is not None:
            yield from self._with_sizes(plan, arrays, flat=flat)

    def _with_sizes(
        self, plan: Plan, arrays: Sequence[Array], *, flat: bool | None
    ) -> Iterator[tuple["_Built", Choice]]:
        seen = self._sizes(plan, self._choice)
        built = self._built(plan, arrays, seen, flat=flat)
        if built is not None:
            yield built, self._choice
        for choice in islice(choices(seen.candidates), MOST_TRACED):
            if choice != self._choice:
                built = self._built(plan, arrays, self._sizes(plan, choice), flat=flat)
                if built is not None:
                    yield built, choice

    def _sizes(self, plan: Plan, choice: Choice) -> FoundSizes:
        names = self._parts.names
        shapes = {
            name: (a.shape, tuple(int(mask.sum()) for mask in keep))
            for name, a, keep in zip(names, self._parts.arrays, plan.keep, strict=True)
        }
        split = {(names[i], axis): known for (i, axis), known in plan.split.items()}
        return FoundSizes(shapes, split, choice)

    def _built(
        self, plan: Plan, arrays: Sequence[Array], sizes: FoundSizes, *, flat: bool | None
    ) -> "_Built | None":
        """Return a network if its code runs."""
        chosen = None
        try:
            small = self._parts.build(arrays, sizes)
            if (self._flat if flat is None else flat) and not plan.input_keep[0][-1].all():
                chosen = np.flatnonzero(plan.input_keep[0][-1])
                small = _select.select_inputs(small, chosen)
            parts = self._again(small)
            traced = trace_once(parts.call, parts.arrays, self._old.inputs[0])
            self._old.check_shapes(traced.shapes)
        except Exception as problem:  # whatever the network's code makes of smaller arrays
            self._problem = f"{_told(problem)}{HINT}"
            return None
        return _Built(small, parts, traced, chosen)

    def _compared(self, plan: Plan, built: "_Built") -> Tried | str:
        """Return a network if it gives the same outputs; else what is wrong."""
        try:
            new = Trial(built.traced, built.parts.arrays, self._old.inputs)
            error = difference(self._old, new)
        except Exception as problem:  # checks within the network's code
            return _told(problem)
        if error is None:
            return ELSE
        return Tried(built.network, plan, built.inputs, error, new.flops)

    _problem = ELSE


def _told(problem: Exception) -> str:
    return f"its code does not run without them: {problem}".split("\n")[0]

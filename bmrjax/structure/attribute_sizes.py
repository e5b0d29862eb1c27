"""Which attributes of a network's modules are sizes: by rules, or found by trying."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bmrjax.structure.sizes import changed, rule_for, shapes_in

# An axis of a module's arrays: the path to the array from the module, the axis, and, where the code makes
# several axes of it, their sizes and which of them.
SizeSource = tuple[str, int, tuple[int, ...], int]
# For a class and an attribute (or a place in one that is a tuple), where its value comes from.
Choice = dict[tuple[type, str, int], SizeSource]


class AttributeSizes(Protocol):
    """Says what the attributes of a smaller module are."""

    def __call__(self, path: str, old: Any, new: Any) -> Mapping[str, Any]:
        """Return attributes by name.

        Args:
            path: To the module, with a dot at its end.
            old: The module as it was.
            new: The module with smaller arrays.
        """
        ...


class ByRules:
    """Sizes that `structure.sizes_of` tells of."""

    def __call__(self, path: str, old: Any, new: Any) -> Mapping[str, Any]:
        """See `AttributeSizes`."""

        def split(path: str, axis: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
            # The last of several axes keeps its size, as nothing says otherwise.
            array = new
            for step in path.split("."):
                array = array[int(step)] if step.isdigit() else getattr(array, step)
            last = sizes[1:]
            return (array.shape[axis] // int(np.prod(last)), *last)

        return changed(old, new, split)


@dataclass
class Candidates:
    """Attributes of the modules of one class that may be sizes.

    Attributes:
        options: For an attribute, and the place in it if it is a tuple, where its value may come from; None
            leaves it as it is.
        depth: How many modules of the class are within others of it and other classes; outer ones last.
    """

    options: dict[tuple[str, int], list[SizeSource | None]] = field(default_factory=dict)
    depth: int = 0


class FoundSizes:
    """Sizes by rules, and by what the axes of a plan became where there is no rule.

    Args:
        shapes: Path to an array, to its shapes before and after.
        split: For a path and an axis, the several axes that the code makes of it; see `Plan.split`.
        choice: Where the value of an attribute comes from, for those that are not left as they are.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
        split: Mapping[tuple[str, int], Sequence[Sequence[tuple[int, int]]]],
        choice: Choice,
    ):
        self._shapes, self._split, self._choice = shapes, split, choice
        self.candidates: dict[type, Candidates] = {}

    def __call__(self, path: str, old: Any, new: Any) -> Mapping[str, Any]:
        """See `AttributeSizes`."""

        def split(inner: str, axis: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
            return self._sizes(path + inner, axis, sizes)

        if shapes_in(old) == shapes_in(new):
            return {}
        if rule_for(type(old)) is not None:
            return changed(old, new, split)
        sources = dict(self._sources(path))
        found: dict[str, Any] = {}
        mine = self.candidates.setdefault(type(old), Candidates())
        mine.depth = max(mine.depth, path.count("."))
        for name, place, value in _integers(old):
            fitting = [s for s, (before, _) in sources.items() if before == value]
            source = self._choice.get((type(old), name, place))
            if source in sources:
                _put(found, old, name, place, sources[source][1])
            options = mine.options.setdefault((name, place), [None])
            for s in fitting:
                others = [sources[o][1] for o in options if o in sources]
                if sources[s][1] != value and sources[s][1] not in others:
                    options.append(s)
        return found

    def _sizes(self, path: str, axis: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return what became of several axes that one was cut into."""
        if (
            path not in self._shapes
        ):  # a layer within another module, such as one that normalises it
            parent, _, name = path.rpartition(".")
            path = f"{parent}.layer.{name}"
        before, after = self._shapes[path]
        wide = [n for n in sizes if n > 1]
        if len(wide) < 2:
            # One index of an axis is all of it.
            place = sizes.index(wide[0]) if wide else len(sizes) - 1
            return (*sizes[:place], after[axis], *sizes[place + 1 :])
        for known in self._split.get((path, axis), ()):
            if [n for n, _ in known] == wide:
                fresh = iter([n for _, n in known])
                return tuple(next(fresh) if n > 1 else 1 for n in sizes)
        if before[axis] == after[axis]:
            return sizes
        raise ValueError(f"nothing makes {sizes} of axis {axis} of '{path}'")

    def _sources(self, path: str) -> Iterator[tuple[SizeSource, tuple[int, int]]]:
        """Yield axes of the arrays of a module, with their sizes before and after."""
        for name, (before, after) in self._shapes.items():
            if not name.startswith(path):
                continue
            inner = name[len(path) :]
            for axis, (a, b) in enumerate(zip(before, after, strict=True)):
                for known in self._split.get((name, axis), ()):
                    sizes = tuple(n for n, _ in known)
                    for i, pair in enumerate(known):
                        yield (inner, axis, sizes, i), pair
                yield (inner, axis, (), 0), (a, b)


def _integers(module: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the whole numbers among the attributes of a module: name, place in a tuple, value."""
    for name, value in vars(module).items():
        several = isinstance(value, tuple)
        for place, x in enumerate(value if several else (value,)):
            if isinstance(x, int) and not isinstance(x, bool):
                yield name, place if several else -1, x


def _put(found: dict[str, Any], old: Any, name: str, place: int, value: int) -> None:
    if place < 0:
        found[name] = value
    else:
        before = found.get(name, getattr(old, name))
        found[name] = (*before[:place], value, *before[place + 1 :])


def choices(candidates: Mapping[type, Candidates]) -> Iterator[Choice]:
    """Yield ways to choose where attributes come from, those that change inner modules first.

    Args:
        candidates: What a `FoundSizes` saw while a network was built.
    """
    deepest = max((mine.depth for mine in candidates.values()), default=0)
    slots, ordered = [], []
    for cls, mine in sorted(candidates.items(), key=lambda item: item[1].depth):
        for (name, place), options in mine.options.items():
            if len(options) > 1:
                slots.append((cls, name, place))
                # Modules around others repeat sizes that they never read: theirs change last.
                inner = mine.depth == deepest
                ordered.append([*options[1:], None] if inner else options)
    for picked in itertools.product(*ordered):
        chosen = zip(slots, picked, strict=True)
        yield {slot: source for slot, source in chosen if source is not None}

"""Units from what the operations of a network say: a small system of constraints, solved on whole axes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

NO_REASON = np.iinfo(np.int64).max
# Labels of indices, or their classes.
Indices = np.ndarray
Join = tuple[Indices, Indices]


@dataclass(frozen=True)
class AxisProduct:
    """An axis that is several axes in one.

    Attributes:
        flat: Its indices, shaped as a grid of the several axes.
        axes: Their indices.
    """

    flat: Indices
    axes: list[Indices]


@dataclass(frozen=True)
class UnitClasses:
    """What `solve` returns.

    Attributes:
        classes: For each label, the class of those that go together.
        count: How many classes there are.
        reasons: For each class, the first reason why it stays; `NO_REASON` if it may go.
        parts: For a class that goes with several units, these, those of the outermost axis first.
        within: The same as pairs: a class, and a unit that it goes with.
    """

    classes: Indices
    count: int
    reasons: np.ndarray
    parts: dict[int, tuple[int, ...]]
    within: tuple[np.ndarray, np.ndarray]


def solve_units(
    count: int,
    fixes: Sequence[tuple[Indices, int]],
    joins: Sequence[Join],
    products: Sequence[AxisProduct],
) -> UnitClasses:
    """Return which indices go together.

    With r = 1 for an index that is removed, the constraints are r = 0 (it stays), r_a = r_b (two go
    together) and r_flat = r_1 or r_2 or ... (a product). What two products say of the same index must
    agree: axes that cut it into the same slabs are the same axes, and where they do not, all of them stay.

    Args:
        count: How many labels there are.
        fixes: Labels that stay, each time with the number of a reason; small numbers come first.
        joins: Labels that go together.
        products: Axes that are several in one.
    """
    system = _System(count, fixes, joins, products)
    while True:
        system.propagate()
        if system.same_slabs():
            continue
        parts = system.explained()
        if parts is not None:
            pairs = [(c, u) for c, units in parts.items() for u in units]
            within = np.array(pairs, int).reshape(-1, 2)
            return UnitClasses(
                system.classes, len(system.reasons), system.reasons, parts, (within[:, 0], within[:, 1])
            )  # fmt: skip


class _System:
    """The constraints, and what follows from them so far."""

    def __init__(
        self,
        count: int,
        fixes: Sequence[tuple[Indices, int]],
        joins: Sequence[Join],
        products: Sequence[AxisProduct],
    ):
        self._count, self._products = count, products
        self._joins = [np.stack(pair) for pair in joins]
        self._fixed = [np.concatenate([x for x, _ in fixes] or [np.zeros(0, int)])]
        self._why = [np.concatenate([np.full(x.shape, i) for x, i in fixes] or [np.zeros(0, int)])]
        self._hash = np.random.default_rng(0).integers(1, 2**63, count, dtype=np.uint64)
        self._update()

    def _update(self) -> None:
        pairs = np.concatenate([*self._joins, np.zeros((2, 0), int)], axis=1)
        graph = coo_array((np.ones(pairs.shape[1], bool), pairs), shape=(self._count, self._count))
        number, classes = connected_components(graph, directed=False)
        self.classes = classes.astype(np.int64)
        self.reasons = np.full(number, NO_REASON)
        where = self.classes[np.concatenate(self._fixed)]
        np.minimum.at(self.reasons, where, np.concatenate(self._why))

    def _fix(self, labels: Indices, why: np.ndarray) -> None:
        self._fixed.append(labels)
        self._why.append(why)
        np.minimum.at(self.reasons, self.classes[labels], why)

    def _factors(
        self, product: AxisProduct
    ) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Return the classes of a grid, those of each axis, and why each index of an axis stays."""
        axes = [self.classes[x] for x in product.axes]
        return self.classes[product.flat], axes, [self.reasons[x] for x in axes]

    def propagate(self) -> None:
        """Note what stays, and what goes together, until nothing follows any more."""
        while True:
            fixed = joined = False
            for product in self._products:
                fixed |= self._fix_product(product)
            if fixed:
                continue
            for product in self._products:
                joined |= self._join_product(product)
            if not joined:
                return
            self._update()

    def _fix_product(self, product: AxisProduct) -> bool:
        """Note what has to stay with what stays already; say whether anything did."""
        flat, _, whys = self._factors(product)
        why_flat, rank = self.reasons[flat], flat.ndim
        changed = False
        for i, (labels, why) in enumerate(zip(product.axes, whys, strict=True)):
            # A slab with an index in it that stays.
            slab = why_flat.min(axis=tuple(k for k in range(rank) if k != i))
            new = (slab != NO_REASON) & (why == NO_REASON)
            if new.any():
                self._fix(labels[new], slab[new])
                changed = True
        # None of its axes may lose it.
        _, _, whys = self._factors(product)
        most = _outer(whys, np.maximum)
        new = (most != NO_REASON) & (self.reasons[flat] == NO_REASON)
        if new.any():
            self._fix(product.flat[new], _outer(whys, np.minimum)[new])
            changed = True
        return changed

    def _join_product(self, product: AxisProduct) -> bool:
        """Join each index with the only unit that it can go with; say whether any was not."""
        flat, axes, whys = self._factors(product)
        free = [why == NO_REASON for why in whys]
        one = _outer([f.astype(int) for f in free], np.add) == 1
        if not one.any():
            return False
        changed = False
        for i, (labels, mine) in enumerate(zip(product.axes, free, strict=True)):
            spread = _spread(mine, i, flat.ndim) & one
            apart = spread & (_spread(axes[i], i, flat.ndim) != flat)
            if apart.any():
                where = np.broadcast_to(_spread(labels, i, flat.ndim), flat.shape)
                self._joins.append(np.stack([product.flat[apart], where[apart]]))
                changed = True
        return changed

    def same_slabs(self) -> bool:
        """Join indices of axes that go with the same indices of a grid; say whether any were apart."""
        keys, labels = [], []
        for product in self._products:
            flat, _, whys = self._factors(product)
            free = [why == NO_REASON for why in whys]
            if sum(f.any() for f in free) < 2:
                continue
            kept = self.reasons[flat] == NO_REASON
            for i, mine in enumerate(free):
                rows = np.moveaxis(np.where(kept, flat, -1), i, 0).reshape(len(mine), -1)[mine]
                rows = np.sort(rows, axis=1)
                new = np.ones(rows.shape, bool)
                new[:, 1:] = rows[:, 1:] != rows[:, :-1]
                values = np.where(new & (rows >= 0), self._hash[rows], np.uint64(0))
                keys.append(values.sum(axis=1, dtype=np.uint64))
                labels.append(product.axes[i][mine])
        if not keys:
            return False
        key, label = np.concatenate(keys), np.concatenate(labels)
        _, first, back = np.unique(key, return_index=True, return_inverse=True)
        other = label[first][back]
        apart = self.classes[label] != self.classes[other]
        if not apart.any():
            return False
        self._joins.append(np.stack([label[apart], other[apart]]))
        self._update()
        return True

    def explained(self) -> dict[int, tuple[int, ...]] | None:
        """Return the units that each class goes with; None if products disagree, whose indices then stay."""
        found: dict[int, tuple[int, ...]] = {}
        wrong: set[int] = set()
        for product in self._products:
            flat, axes, whys = self._factors(product)
            free = [why == NO_REASON for why in whys]
            several = _outer([f.astype(int) for f in free], np.add) > 1
            if not several.any():
                continue
            columns = [
                np.where(f, x, -1)[np.nonzero(several)[i]]
                for i, (x, f) in enumerate(zip(axes, free, strict=True))
            ]
            for c, *units in zip(
                flat[several].tolist(), *(x.tolist() for x in columns), strict=True
            ):
                mine = tuple(dict.fromkeys(u for u in units if u >= 0))
                before = found.setdefault(c, mine)
                if before is not mine and set(before) != set(mine):
                    wrong.update(before, mine)
                if c in mine and len(mine) > 1:
                    wrong.update(mine)
        found = {c: units for c, units in found.items() if units != (c,)}
        parts = {} if wrong else {c: _atoms(c, found, wrong, ()) for c in found}
        if wrong:
            where = np.flatnonzero(np.isin(self.classes, list(wrong)))
            self._fix(where, np.full(where.shape, TWO_WAYS))
            return None
        return parts


# The number of the reason for indices that two reshapes cut differently; the last of all.
TWO_WAYS = NO_REASON - 1


def _atoms(
    c: int, found: dict[int, tuple[int, ...]], wrong: set[int], above: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the units that a class goes with, through classes that themselves go with several."""
    if c in above:
        wrong.update(above)
        return ()
    if c not in found:
        return (c,)
    inner = [_atoms(u, found, wrong, (*above, c)) for u in found[c]]
    return tuple(dict.fromkeys(u for units in inner for u in units))


def _spread(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _outer(values: Sequence[np.ndarray], combine: np.ufunc) -> np.ndarray:
    """Combine values of several axes to those of their grid."""
    total = values[0]
    for x in values[1:]:
        total = combine.outer(total, x)
    return total

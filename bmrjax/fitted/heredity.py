"""Which candidates may be in a submodel only together with others: interactions and their main effects."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from bmrjax.fitted.layout import shortened

HeredityOption = bool | Literal["weak"] | Mapping[str, Sequence[str]]


class Heredity:
    """Strong heredity: a unit is in a submodel only if all its parents are. Weak: if one of them is.

    Args:
        parents: ``parents[u, v]`` is True where unit v is a parent of unit u.
        weak: Whether one parent is enough.
    """

    def __init__(self, parents: Bool[np.ndarray, "units units"], *, weak: bool = False):
        parents = np.array(parents, bool)
        if not weak:
            for unit in range(len(parents)):  # the parents of parents are parents
                parents |= np.multiply.outer(parents[:, unit], parents[unit])
        self.parents = parents
        self.weak: bool = weak
        self._counts = parents.astype(int)
        self._bound = parents.any(1)
        self.is_empty: bool = not parents.any()

    @classmethod
    def none(cls, units: int) -> "Heredity":
        """Return the rule that allows every submodel."""
        return cls(np.zeros((units, units), bool))

    def allows(self, masks: Bool[np.ndarray, "*lead units"]) -> Bool[np.ndarray, "*lead"]:
        """Return which submodels are allowed."""
        if self.weak:
            alone = self._bound & (masks.astype(int) @ self._counts.T == 0)
        else:
            alone = (~masks).astype(int) @ self._counts.T > 0
        return np.logical_not((masks & alone).any(-1))

    def free(self, mask: Bool[np.ndarray, " units"]) -> Bool[np.ndarray, " units"]:
        """Return which units can be flipped, the result being allowed if the submodel is."""
        if self.is_empty:
            return np.ones(len(mask), bool)
        if self.weak:
            held = self._counts @ mask
            # Units that are in by one parent alone, which has to stay.
            by_one = mask & self._bound & (held == 1)
            return np.where(mask, by_one @ self._counts == 0, ~self._bound | (held > 0))
        return np.where(mask, mask @ self._counts == 0, self._counts @ ~mask == 0)

    def is_free(
        self, unit: int, masks: Bool[np.ndarray, "masks units"]
    ) -> Bool[np.ndarray, " masks"]:
        """Return in which submodels a unit can be flipped.

        Args:
            unit: The unit.
            masks: Submodels that are allowed.
        """
        children, parents = np.flatnonzero(self.parents[:, unit]), self.parents[unit]
        if not self.weak:
            return np.where(masks[:, unit], ~masks[:, children].any(1), masks[:, parents].all(1))
        others = self._counts[children].copy()
        others[:, unit] = 0
        left = masks.astype(int) @ others.T > 0
        may_enter = masks[:, parents].any(1) if parents.any() else True
        return np.where(masks[:, unit], (~masks[:, children] | left).all(1), may_enter)

    def could_enter(
        self, masks: Bool[np.ndarray, "*lead units"]
    ) -> Bool[np.ndarray, "*lead units"]:
        """Return which units are out and may come in, by submodel that is allowed."""
        if self.is_empty:
            return ~masks
        if self.weak:
            return ~masks & (~self._bound | (masks.astype(int) @ self._counts.T > 0))
        return ~masks & ((~masks).astype(int) @ self._counts.T == 0)

    def openings(self, mask: Bool[np.ndarray, " units"]) -> tuple[int, Int[np.ndarray, " units"]]:
        """Return how many units could come in, and by how much the number changes if each unit is flipped.

        Args:
            mask: Units that are in, an allowed submodel.

        Returns:
            The number, and for each unit that is free the change by flipping it.
        """
        could = self.could_enter(mask)
        change = np.where(mask, 1, -1)
        if not self.is_empty:
            # What a unit lets in by coming in, or keeps out by going out.
            held: np.ndarray = np.asarray(self._counts @ mask)
            short = (held == 0) & self._bound if self.weak else self._counts @ ~mask == 1
            by_one = (held == 1) & self._bound if self.weak else np.ones(len(mask), bool)
            let_in = (~mask & short) @ self._counts
            kept_out: np.ndarray = np.asarray((could & by_one) @ self._counts)
            change = change + np.where(mask, -kept_out, let_in)
        return int(could.sum()), change

    def may_enter(
        self, unit: int, masks: Bool[np.ndarray, "masks units"]
    ) -> Bool[np.ndarray, " masks"]:
        """Return in which submodels a unit that is out may come in."""
        parents = self.parents[unit]
        if not parents.any():
            return np.ones(len(masks), bool)
        return np.asarray(masks[:, parents].any(1) if self.weak else masks[:, parents].all(1))

    def parents_first(self) -> list[int]:
        """Return the units in an order in which each comes after its parents."""
        order: list[int] = []
        left = set(range(len(self.parents)))
        while left:
            ready = [
                u for u in sorted(left) if not left.intersection(np.flatnonzero(self.parents[u]))
            ]
            order += ready
            left -= set(ready)
        return order

    def family(self, unit: int) -> list[int]:
        """Return a unit and its parents."""
        return [unit, *(int(v) for v in np.flatnonzero(self.parents[unit]))]

    def ways_in(self, unit: int, mask: Bool[np.ndarray, " units"]) -> list[list[int]]:
        """Return the sets of units that can come in together so that one that is not free can, itself last.

        Args:
            unit: A unit that is out and not free.
            mask: Units that are in.
        """
        if not self.weak:
            return [[u for u in self.family(unit)[::-1] if not mask[u]]]
        free = self.free(mask)
        return [[parent, unit] for parent in self.family(unit)[1:] if free[parent]]


def heredity_of(
    candidates: Sequence[str], option: HeredityOption, forced: Sequence[str] = ()
) -> Heredity:
    """Read the option `heredity` of `reduce_fit`.

    Args:
        candidates: Names of the units.
        option: Name of a candidate to its parents; True to read names such as ``"age:bmi"``; "weak" for the
            same, one parent being enough; False for none.
        forced: Elements that are in every submodel, which may be named as parents.

    Raises:
        TypeError: For an option of another kind.
        ValueError: For names that are not there, candidates that are their own parents, or True without any
            interaction.
    """
    parents = np.zeros((len(candidates), len(candidates)), bool)
    if option is False:
        return Heredity(parents)
    weak = isinstance(option, str) and option == "weak"
    if not (option is True or weak or isinstance(option, Mapping)):
        got = repr(option) if isinstance(option, str) else type(option).__name__
        raise TypeError(
            "reduce_fit: heredity is True, 'weak', or a dict such as {'age:bmi': ['age', 'bmi']}; got "
            f"{got}."
        )
    if isinstance(option, Mapping):
        rules = option
    else:
        rules = _by_name([*candidates, *forced], immediate=weak)
        rules = {name: parts for name, parts in rules.items() if name in candidates}
    if not rules:
        if isinstance(option, Mapping):
            return Heredity(parents)
        raise ValueError(
            f"reduce_fit: heredity={option!r} reads interactions from names such as 'age:bmi', 'age bmi' or "
            f"'age^2', and the candidates are {shortened(candidates)}. Give names=, or a dict from each "
            "interaction to its main effects."
        )
    position = {name: i for i, name in enumerate(candidates)}
    for name, of_name in rules.items():
        if isinstance(of_name, str):
            raise TypeError(
                f"reduce_fit: heredity['{name}'] is a list of names; write ['{of_name}']."
            )
        unknown = sorted({name, *of_name} - set(candidates) - set(forced))
        if unknown:
            raise ValueError(
                f"reduce_fit: heredity names {unknown}; the candidates are {shortened(candidates)}."
            )
        if name not in position:
            continue  # what is forced is in anyway
        if weak and set(of_name) & set(forced):
            continue  # one that is in anyway is enough
        for parent in of_name:
            if parent in position:
                parents[position[name], position[parent]] = True
    found = Heredity(parents, weak=weak)
    circular = [candidates[int(i)] for i in np.flatnonzero(np.diag(found.parents))]
    if circular:
        raise ValueError(f"reduce_fit: heredity makes {circular} parents of themselves.")
    return found


def _by_name(candidates: Sequence[str], *, immediate: bool) -> dict[str, list[str]]:
    """Return the candidates whose names are products, each with the candidates that are parts of it.

    Args:
        candidates: Names.
        immediate: Whether parts of parts are left out.
    """
    factors = {name: _factors(name) for name in candidates}
    found = {}
    for name, own in factors.items():
        parts = [n for n, f in factors.items() if n != name and f < own]
        if immediate:
            parts = [n for n in parts if not any(factors[n] < factors[other] for other in parts)]
        if own.total() > 1 and parts:
            found[name] = parts
    return found


def _factors(name: str) -> Counter[str]:
    """Return the factors of ``"age:bmi"``, ``"age bmi"`` or ``"age^2"``, with their powers."""
    factors: Counter[str] = Counter()
    for part in name.replace(":", " ").split():
        base, _, power = part.rpartition("^")
        if base and power.isdigit():
            factors[base] += int(power)
        else:
            factors[part] += 1
    return factors

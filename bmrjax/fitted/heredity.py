"""Which candidates may be in a submodel only together with others: interactions and their main effects."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from bmrjax.fitted.layout import shortened

HeredityOption = bool | Mapping[str, Sequence[str]]


class Heredity:
    """Strong heredity: a unit is in a submodel only if all its parents are.

    Args:
        parents: ``parents[u, v]`` is True where unit v has to be in for unit u to be.
    """

    def __init__(self, parents: Bool[np.ndarray, "units units"]):
        parents = np.array(parents, bool)
        for unit in range(len(parents)):  # the parents of parents are parents
            parents |= np.multiply.outer(parents[:, unit], parents[unit])
        self.parents = parents
        self._counts = parents.astype(int)
        self.is_empty = not parents.any()

    @classmethod
    def none(cls, units: int) -> "Heredity":
        """Return the rule that allows every submodel."""
        return cls(np.zeros((units, units), bool))

    def allows(self, masks: Bool[np.ndarray, "*lead units"]) -> Bool[np.ndarray, "*lead"]:
        """Return which submodels are allowed."""
        missing = (~masks).astype(int) @ self._counts.T
        return np.logical_not((masks & (missing > 0)).any(-1))

    def free(self, mask: Bool[np.ndarray, " units"]) -> Bool[np.ndarray, " units"]:
        """Return which units can be flipped, the result being allowed if the submodel is."""
        if self.is_empty:
            return np.ones(len(mask), bool)
        return np.where(mask, mask @ self._counts == 0, self._counts @ ~mask == 0)

    def family(self, unit: int) -> list[int]:
        """Return a unit and its parents."""
        return [unit, *(int(v) for v in np.flatnonzero(self.parents[unit]))]


def heredity_of(
    candidates: Sequence[str], option: HeredityOption, forced: Sequence[str] = ()
) -> Heredity:
    """Read the option `heredity` of `reduce_fit`.

    Args:
        candidates: Names of the units.
        option: Name of a candidate to its parents; True to read names such as ``"age:bmi"``; False for none.
        forced: Elements that are in every submodel, which may be named as parents.

    Raises:
        TypeError: For an option of another kind.
        ValueError: For names that are not there, candidates that are their own parents, or True without any
            interaction.
    """
    parents = np.zeros((len(candidates), len(candidates)), bool)
    if option is False:
        return Heredity(parents)
    if option is not True and not isinstance(option, Mapping):
        raise TypeError(
            "reduce_fit: heredity is True, or a dict such as {'age:bmi': ['age', 'bmi']}; got "
            f"{type(option).__name__}."
        )
    rules = _by_name(candidates) if option is True else option
    if option is True and not rules:
        raise ValueError(
            "reduce_fit: heredity=True reads interactions from names such as 'age:bmi', 'age bmi' or "
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
        for parent in of_name:
            if parent in position:
                parents[position[name], position[parent]] = True
    found = Heredity(parents)
    circular = [candidates[int(i)] for i in np.flatnonzero(np.diag(found.parents))]
    if circular:
        raise ValueError(f"reduce_fit: heredity makes {circular} parents of themselves.")
    return found


def _by_name(candidates: Sequence[str]) -> dict[str, list[str]]:
    """Return the candidates whose names are products, each with the candidates that are parts of it."""
    factors = {name: _factors(name) for name in candidates}
    found = {}
    for name, own in factors.items():
        parts = [n for n, f in factors.items() if n != name and f < own]
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

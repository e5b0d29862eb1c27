"""Groups of weights with the names of what they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import jax
import numpy as np

from bmrjax.criteria.groups import Groups


@dataclass(frozen=True)
class UnitKind:
    """Units that are indices of the same axes of the same arrays: the neurons of a layer, its heads.

    Attributes:
        name: Path to the layer that makes them (or reads them).
        groups: Their numbers.
        weights: How many weights one of them has.
        own: Where these weights are, as ``weight[12 of 36, :]``: the indices of one unit, of how many.
        others: What else goes with a unit when `bmrjax.compact` takes it out.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (3,), 2, key=jax.random.key(0))
        >>> (neurons,) = bmr.structure.unit_groups(network, jnp.ones(4)).kinds
        >>> neurons.name, len(neurons.groups), neurons.own
        ('net.layers.0', 3, ('weight[1 of 3, :]', 'bias[1 of 3]'))
        >>> neurons.others
        ('net.layers.1.weight[:, 1 of 3]',)
    """

    name: str
    groups: tuple[int, ...] = field(repr=False)
    weights: int
    own: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line of a table."""
        units = "unit" if len(self.groups) == 1 else "units"
        line = f"{self.name}: {len(self.groups)} {units} of {self.weights:,} weights"
        line += f" ({', '.join(self.own)})"
        return line + (f"; with {', '.join(self.others)}" if self.others else "")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class UnitGroups(Groups):
    """Groups of a network's weights, by name: what `unit_groups` returns.

    Attributes:
        kinds: Its units, those of a layer together. Groups of none of them are single weights.
        stays: Why no unit of an array can go, by the path to the array, unless they are outputs.

    Example:
        The size of each neuron's weights:

        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (3,), 2, key=jax.random.key(0))
        >>> found = bmr.structure.unit_groups(network, jnp.ones(4))
        >>> weights = {f"net.{path}": w for path, w in bmr.structure.named_arrays(network).items()}
        >>> squares = found.sum({name: weights[name] ** 2 for name in found.ids})
        >>> squares[jnp.array(found.kinds[0].groups)].round(0)
        Array([2., 1., 4.], dtype=float32)
    """

    kinds: tuple[UnitKind, ...] = field(default=(), metadata={"static": True})
    stays: tuple[tuple[str, str], ...] = field(default=(), metadata={"static": True})

    def __repr__(self) -> str:
        """Return a table of the units by name."""
        units = sum(len(kind.groups) for kind in self.kinds)
        head = f"{type(self).__name__}: {units:,} units, and {self.count - units:,} weights on their own"
        held = [f"{name}: its units stay: {why}" for name, why in self.stays]
        return "\n  ".join([head, *map(str, self.kinds), *held])


@dataclass(frozen=True)
class UnitPlace:
    """An axis of an array.

    Attributes:
        name: Path to the array.
        axis: The axis.
        rank: How many the array has.
        units: The unit of each of its indices.
        owned: Whether the weights along it are numbered by these units.
    """

    name: str
    axis: int
    rank: int
    units: np.ndarray
    owned: bool

    def described(self, count: int, prefix: str) -> str:
        """Return how many of its indices belong to a unit, in the form of an index."""
        index = [":"] * self.rank
        index[self.axis] = f"{count} of {len(self.units)}"
        return f"{self.name.removeprefix(prefix)}[{', '.join(index)}]"


def kinds_of(
    numbers: Mapping[int, int],
    places: Sequence[UnitPlace],
    ids: Mapping[str, np.ndarray],
    name: str,
) -> tuple[UnitKind, ...]:
    """Return the kinds of units that have a number.

    Args:
        numbers: The number of each unit.
        places: All axes of all arrays.
        ids: The number of each weight, by the path to its array.
        name: What to call a network without layers.
    """
    where: dict[int, list[tuple[UnitPlace, int]]] = {unit: [] for unit in numbers}
    for place in places:
        found, counts = np.unique(place.units, return_counts=True)
        for unit, count in zip(found.tolist(), counts.tolist(), strict=True):
            if unit in where:
                where[unit].append((place, count))
    sizes = np.zeros(len(numbers), int)
    for array in ids.values():
        sizes += np.bincount(array.ravel(), minlength=len(sizes))[: len(sizes)]
    kinds: dict[tuple[tuple[str, int, int, int], ...], list[int]] = {}
    for unit, number in numbers.items():
        key = tuple((p.name, p.axis, count, int(sizes[number])) for p, count in where[unit])
        kinds.setdefault(key, []).append(unit)
    return tuple(
        _kind([numbers[u] for u in units], where[units[0]], sizes, name) for units in kinds.values()
    )


def _kind(
    groups: list[int], where: list[tuple[UnitPlace, int]], sizes: np.ndarray, name: str
) -> UnitKind:
    own = [(p, count) for p, count in where if p.owned]
    # The layer that has them all, or the one around several, or the first that has more than a vector.
    steps = [p.name.split(".")[:-1] for p, _ in own]
    same = takewhile(lambda a: len(set(a)) == 1, zip(*steps, strict=False))
    common = [a[0] for a in same]
    layer = ".".join(common) or name
    if layer == name:
        made = next((p for p, _ in own if p.rank > 1), own[0][0])
        layer = made.name.rpartition(".")[0]
    return UnitKind(
        layer,
        tuple(groups),
        int(sizes[groups[0]]),
        tuple(p.described(count, f"{'.'.join(common) or name}.") for p, count in own),
        tuple(p.described(count, "") for p, count in where if not p.owned),
    )

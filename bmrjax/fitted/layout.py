"""Where the judged elements of a fit lie in one vector, and what they are called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bmrjax.run.element_names import element_names, named_axes

Names = Sequence[str] | Mapping[str, Sequence[str]] | None


@dataclass(frozen=True)
class ElementLayout:
    """The judged elements as one vector, site after site.

    Attributes:
        index: Site to the position of each of its elements in the vector, shaped as the site; -1 for an
            element that had been removed before.
        element: Name of each element within its site; ``"age"``, or a number.
        label: Name of each element that no other has; ``"age"`` if one site is judged, else
            ``"beta[age]"``.
        site: Name of the site of each element.
    """

    index: dict[str, Int[np.ndarray, "..."]]
    element: tuple[str, ...]
    label: tuple[str, ...]
    site: tuple[str, ...]

    @classmethod
    def of_sites(
        cls,
        shapes: Mapping[str, tuple[int, ...]],
        names: Names = None,
        keep: Mapping[str, Any] | None = None,
    ) -> "ElementLayout":
        """Lay out sites.

        Args:
            shapes: Site to shape.
            names: Names of the columns, which stand for the last axis of the sites that are as long; or a
                dict, site to the names of its elements.
            keep: Masks of elements that had been removed before, by site.

        Raises:
            ValueError: If the names do not fit the sites.
        """
        by_site = _names_by_site(shapes, names)
        index, element, label, site = {}, [], [], []
        for name, shape in shapes.items():
            present = np.ones(shape, bool)
            if keep is not None and name in keep:
                present = np.broadcast_to(np.asarray(keep[name], bool), shape)
            where = np.full(shape, -1)
            where[present] = len(element) + np.arange(present.sum())
            index[name] = where
            every = by_site[name]
            kept = [n for n, is_there in zip(every, present.ravel(), strict=True) if is_there]
            element += kept
            site += [name] * len(kept)
            alone = len(shapes) == 1 and bool(shape)
            label += kept if alone else [f"{name}[{n}]" if n else name for n in kept]
        return cls(index, tuple(element), tuple(label), tuple(site))

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.label)

    def by_site(self, flat: Any, missing: Any) -> dict[str, Any]:
        """Return the part of a vector that belongs to each site, shaped as the site.

        Args:
            flat: One value per element.
            missing: Value of the elements that had been removed before.
        """
        flat = np.append(np.asarray(flat), np.asarray(missing, np.asarray(flat).dtype))
        return {name: flat[where] for name, where in self.index.items()}

    def flat(self, by_site: Mapping[str, Any]) -> Float[np.ndarray, "*lead n"]:
        """Return the values of the elements as the last axis of one array in double precision.

        Args:
            by_site: Site to values; its shape may have leading axes, the same for all sites.
        """
        parts = []
        for name, where in self.index.items():
            values = np.asarray(by_site[name], np.float64)
            lead = values.shape[: values.ndim - where.ndim]
            parts.append(values.reshape((*lead, -1))[..., where.ravel() >= 0])
        return np.concatenate(parts, -1)

    def find(self, name: str | int, argument: str) -> list[int]:
        """Return the positions of what a caller named: an element, or all elements of a site.

        Args:
            name: Label, name of an element if only one site has it, name of a site, or the position of an
                element in a site if one site is judged.
            argument: Name of the argument, for the message.

        Raises:
            ValueError: If there is no such element, or more than one.
        """
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if len(self.index) == 1:
                where = next(iter(self.index.values())).ravel()
                if 0 <= name < where.size and where[name] >= 0:
                    return [int(where[name])]
            raise ValueError(
                f"reduce_fit: {argument} has the number {name}. Numbers count the elements of one judged "
                f"site, from 0; the judged elements are {shortened(self.label)}."
            )
        if name in self.label:
            return [self.label.index(name)]
        if name in self.index:
            return [i for i, site in enumerate(self.site) if site == name]
        found = [i for i, element in enumerate(self.element) if element == name]
        if len(found) == 1:
            return found
        what = "no judged element or site" if not found else f"{len(found)} elements"
        raise ValueError(
            f"reduce_fit: {argument} names '{name}', and there is {what} of this name. The judged elements "
            f"are {shortened(self.label)}."
            if not found
            else f"reduce_fit: {argument} names '{name}', which {what} are called. Write which one: "
            f"{[self.label[i] for i in found]}."
        )


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Return names as a list in words, the first few of many."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def _names_by_site(shapes: Mapping[str, tuple[int, ...]], names: Names) -> dict[str, list[str]]:
    if isinstance(names, Mapping):
        unknown = sorted(set(names) - set(shapes))
        if unknown:
            raise ValueError(
                f"reduce_fit: names has the sites {unknown}, which are not judged; the judged ones are "
                f"{list(shapes)}."
            )
        given = {site: [str(name) for name in of_site] for site, of_site in names.items()}
        columns = None
    else:
        given, columns = {}, None if names is None else [str(name) for name in names]
        if columns is not None and all(s[-1:] != (len(columns),) for s in shapes.values()):
            raise ValueError(
                f"reduce_fit: names has {len(columns)} names, and no judged site has that many elements "
                f"along its last axis: {dict(shapes)}."
            )
    axes = named_axes(shapes, columns, None)
    found = {}
    for site, shape in shapes.items():
        size = int(np.prod(shape))
        if site in given and len(given[site]) == size:
            found[site] = given[site]
        elif site in given and shape and len(given[site]) == shape[-1]:
            found[site] = element_names(shape, [None] * (len(shape) - 1) + [given[site]])
        elif site in given:
            raise ValueError(
                f"reduce_fit: names gives {len(given[site])} names to the site '{site}' of shape {shape}."
            )
        else:
            found[site] = element_names(shape, axes[site])
        repeated = sorted({name for name in found[site] if found[site].count(name) > 1})
        if repeated:
            raise ValueError(f"reduce_fit: the names {repeated} of '{site}' occur more than once.")
    return found

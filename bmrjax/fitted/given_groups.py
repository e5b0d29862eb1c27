"""Which elements are in a submodel or out of it together."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from bmrjax.fitted.layout import ElementLayout

GivenGroups = Mapping[str, Sequence[str | int]] | None


def units_of(
    layout: ElementLayout, groups: GivenGroups = None, forced: Sequence[str | int] = ()
) -> dict[str, Int[np.ndarray, " k"]]:
    """Return the candidates of the search: groups, and every other element by itself.

    Args:
        layout: The judged elements.
        groups: Name of a group to its elements, which go together.
        forced: Elements and groups that are in every submodel.

    Returns:
        Name of each candidate to the positions of its elements, in the order of the elements.

    Raises:
        ValueError: For names that are not there, elements in two groups, or no candidate.
    """
    if isinstance(forced, str):
        raise TypeError(f"reduce_fit: forced is a list of names; write forced=['{forced}'].")
    units: dict[str, list[int]] = {}
    owner: dict[int, str] = {}
    for name, members in (groups or {}).items():
        if isinstance(members, str):
            raise TypeError(
                f"reduce_fit: the group '{name}' is a list of names; write ['{members}']."
            )
        found = [i for m in members for i in layout.find(m, f"the group '{name}'")]
        if not found:
            raise ValueError(f"reduce_fit: the group '{name}' is empty.")
        for i in found:
            if i in owner:
                raise ValueError(
                    f"reduce_fit: '{layout.label[i]}' is in the groups '{owner[i]}' and '{name}'; one group "
                    "per element."
                )
            owner[i] = name
        units[name] = sorted(found)
    for i, label in enumerate(layout.label):
        if i not in owner:
            if label in units:
                raise ValueError(
                    f"reduce_fit: '{label}' is the name of a group and of an element outside it."
                )
            units[label] = [i]
    stays: set[int] = set()
    for name in forced:
        if isinstance(name, str) and groups is not None and name in groups:
            stays.update(units[name])
        else:
            stays.update(layout.find(name, "forced"))
    free = {}
    for name, members in units.items():
        if not stays.intersection(members):
            free[name] = np.array(members)
        elif not stays.issuperset(members):
            raise ValueError(
                f"reduce_fit: forced names a part of the group '{name}'; name the whole group."
            )
    if not free:
        raise ValueError("reduce_fit: every element is forced, so there is nothing to choose.")
    return dict(sorted(free.items(), key=lambda item: int(item[1][0])))

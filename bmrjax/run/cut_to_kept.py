"""States of a fit cut to what is kept of its networks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from bmrjax.structure import Resized


@dataclass(frozen=True)
class CutToKept:
    """Cuts what goes with the arrays of networks as these were cut.

    Args:
        arrays: Full path of an array, such as ``"net.layers.0.weight"``, to what became of it.
    """

    arrays: Mapping[str, Resized]

    def value(self, name: str, value: Any, after: tuple[int, ...]) -> Any:
        """Return the value of a site or of one of its parameters without what was removed.

        An array that is named after an array of a network, or after its layer, has the same axes. Where a
        variable of the layer's prior has an axis of its own, such as one element per row, it is that axis of
        the layer's arrays which was and is as long.

        Args:
            name: Of the site, or of the parameter.
            value: Its value.
            after: The shape that the smaller program has for it.

        Raises:
            ValueError: If it is not known which elements are removed.
        """
        before = np.shape(value)
        if before == after:
            return value
        masks = self._masks(name, before, after)
        found = np.asarray(value)[np.ix_(*masks)]
        if found.shape != after:
            raise ValueError(_unknown(name, before, after))
        return found

    def tree(self, old: Any, new: Any, what: str) -> Any:
        """Return a tree with the values of an old one, cut to the shapes of a new one.

        A leaf belongs to the site, or the parameter, that is the last text on the path to it.

        Args:
            old: Of the fit.
            new: Of the smaller fit at its start.
            what: What it is, for messages.
        """
        leaves, structure = jtu.tree_flatten_with_path(old)
        if structure != jtu.tree_structure(new):
            raise ValueError(
                f"compact_fit: {what} of the smaller program is made of other parts than before, so it "
                "cannot go on from here. Do the names of its sites depend on sizes?"
            )
        pairs = zip(leaves, jtu.tree_leaves(new), strict=True)
        cut = [self.value(_name(path), leaf, np.shape(other)) for (path, leaf), other in pairs]
        # Copies: the first epoch donates the buffers of the state, and the old state stays intact.
        return jtu.tree_unflatten(structure, [jnp.array(leaf, copy=True) for leaf in cut])

    def _masks(
        self, name: str, before: tuple[int, ...], after: tuple[int, ...]
    ) -> list[np.ndarray]:
        own = self._of(name)
        if own is not None and own.before == before:
            return list(own.keep)
        of_layer = [a for path, a in self.arrays.items() if _is_in(name, path.rpartition(".")[0])]
        same = [
            a.keep for a in of_layer if (a.before, a.after) == (before, after) and len(before) > 1
        ]
        if same and all(_equal(keep, same[0]) for keep in same):
            return list(same[0])
        axes = [mask for a in of_layer for mask in a.keep]
        found = []
        for size, left in zip(before, after, strict=True):
            fitting = [m for m in axes if len(m) == size and m.sum() == left]
            if size == left:
                fitting = [np.ones(size, bool)]
            if not fitting or not all(np.array_equal(m, fitting[0]) for m in fitting):
                raise ValueError(_unknown(name, before, after))
            found.append(fitting[0])
        return found

    def _of(self, name: str) -> Resized | None:
        """Return the array that a site or a parameter of a guide is named after."""
        own = [path for path in self.arrays if name == path or name.startswith(f"{path}_")]
        return self.arrays[max(own, key=len)] if own else None


def _is_in(name: str, layer: str) -> bool:
    return name.startswith((f"{layer}.", f"{layer}_"))


def _equal(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _name(path: Any) -> str:
    """Return the last text on a path in a tree of JAX."""
    keys = [key.key for key in path if isinstance(key, jtu.DictKey) and isinstance(key.key, str)]
    return keys[-1] if keys else ""


def _unknown(name: str, before: tuple[int, ...], after: tuple[int, ...]) -> str:
    return (
        f"compact_fit: '{name}' has shape {before}, and {after} in the smaller program, and which of its "
        "elements to remove does not follow from the arrays of its layer. Compact the network once it "
        "is fitted, by Result.compact, or use a prior without such a variable."
    )


def cut_groups(
    ids: Mapping[str, Array], arrays: Mapping[str, Resized]
) -> tuple[dict[str, Array], int]:
    """Return the groups of what is left, numbered from 0 without gaps, and how many there are.

    Args:
        ids: Site name to the number of each element's group.
        arrays: See `CutToKept`.
    """
    left = {
        name: np.asarray(found)[np.ix_(*arrays[name].keep)] if name in arrays else np.asarray(found)
        for name, found in ids.items()
    }
    numbers, places = np.unique(
        np.concatenate([x.ravel() for x in left.values()]), return_inverse=True
    )
    ends = np.cumsum([x.size for x in left.values()])[:-1]
    parts = np.split(places.ravel(), ends)
    found = {
        name: jnp.asarray(part.reshape(x.shape).astype(np.int32))
        for (name, x), part in zip(left.items(), parts, strict=True)
    }
    return found, len(numbers)

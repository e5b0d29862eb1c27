"""What `eqx.nn.Shared` ties together, as paths: the functions that it holds are lambdas as a rule."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.tree_util as jtu
from equinox.nn._shared import SharedNode as SharedNode

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class AtPaths:
    """Return parts of a tree.

    Attributes:
        paths: To each of them, by names of attributes, keys of dicts, and positions.
        several: Whether they are returned as a tuple; one by itself else.

    Example:
        >>> AtPaths(((1, "a"),), several=False)(({}, {"a": 3}))
        3
    """

    paths: tuple[Path, ...]
    several: bool

    def __call__(self, tree: Any) -> Any:
        """Return the parts of this tree."""
        found = tuple(_at(tree, path) for path in self.paths)
        return found if self.several else found[0]


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        inside = isinstance(part, int) or isinstance(tree, dict)
        tree = tree[part] if inside else getattr(tree, part)
    return tree


def paths_of(function: Callable, tree: Any) -> AtPaths | None:
    """Return which parts of a tree a function returns, or None if it does anything else.

    Args:
        function: Of the tree.
        tree: A pytree.
    """
    import equinox as eqx

    if isinstance(function, AtPaths):
        return function
    marked = jtu.tree_map(lambda _: _Mark(), tree)
    where: dict[int, Path] = {}
    for path, value in _parts(marked, ()):
        if isinstance(value, _Mark | eqx.Module | list | tuple | dict):
            where.setdefault(id(value), path)
    try:
        found = function(marked)
    except Exception:  # of the function, which may compute with arrays
        return None
    if id(found) in where:
        return AtPaths((where[id(found)],), several=False)
    if type(found) in (tuple, list) and found and all(id(each) in where for each in found):
        return AtPaths(tuple(where[id(each)] for each in found), several=True)
    return None


class _Mark:
    """A leaf that is no other."""


def _parts(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    import equinox as eqx

    yield path, tree
    if isinstance(tree, eqx.Module):
        inner: Any = [(name, value) for name, value in vars(tree).items()]
    elif isinstance(tree, dict):
        inner = [(key, value) for key, value in tree.items() if isinstance(key, str)]
    elif isinstance(tree, list | tuple):
        inner = enumerate(tree)
    else:
        return
    for part, value in inner:
        yield from _parts(value, (*path, part))

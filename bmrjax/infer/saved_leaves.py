"""Parameters that are modules, between a file and the program that knows their structure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import at_start
from bmrjax.infer.tracing import sites_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SavedLeaves:
    """The arrays of a saved parameter that is a module, say, until its program says what it is.

    Attributes:
        arrays: The arrays of the parameter.
        names: Their paths in it, in the same order.
    """

    arrays: list[Any]
    names: tuple[str, ...] = field(metadata={"static": True})


def names_and_leaves(tree: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Return the paths of the arrays of a pytree, and the arrays."""
    if isinstance(tree, SavedLeaves):
        return tree.names, tree.arrays
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return tuple(jax.tree_util.keystr(path) for path, _ in pairs), [leaf for _, leaf in pairs]


def restore_modules(
    model: Callable, guide: Callable, params: dict[str, Any], batch: Data, *, name: str = "load"
) -> None:
    """Give loaded parameters the structure that they have in the program, in place.

    Args:
        model: NumPyro program.
        guide: Its guide.
        params: Fitted parameters.
        batch: Arguments of the program, with or without targets.
        name: Of the function, for messages.

    Raises:
        ValueError: For a parameter that the program does not have, or has with other arrays.
    """
    bare = [key for key, value in params.items() if _is_bare(value)]
    if not bare:
        return

    def started(batch: Data) -> dict[str, Any]:
        args, kwargs = arguments(batch)
        sites = dict(sites_of(at_start(model), args, kwargs))
        if not set(bare) <= set(sites):
            sites |= sites_of(guide, args, kwargs)
        return {key: sites[key]["value"] for key in bare if key in sites}

    like = jax.eval_shape(started, batch)
    for key in bare:
        if key not in like:
            raise ValueError(
                f"{name}: the result has a parameter '{key}', and the program has none of that name. Load it "
                "with the program that was fitted."
            )
        params[key] = with_structure_of(
            like[key], params[key], name=f"{name}: the parameter '{key}'"
        )


def with_structure_of(like: Any, saved: Any, *, name: str) -> Any:
    """Return the arrays of a loaded parameter in the structure of `like`.

    Raises:
        ValueError: If their names or shapes differ.
    """
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(like)]
    found = [tuple(leaf.shape) for leaf in jax.tree.leaves(saved)]
    names = names_and_leaves(like)[0]
    if shapes != found or (isinstance(saved, SavedLeaves) and names != saved.names):
        raise ValueError(
            f"{name} has arrays of the shapes {found[:5]} in the file, and {shapes[:5]} in the program "
            f"({', '.join(names[:5])}). Load it with the program that was fitted."
        )
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(saved))


def _is_bare(tree: Any) -> bool:
    def is_leaves(node: Any) -> bool:
        return isinstance(node, SavedLeaves)

    return any(map(is_leaves, jax.tree.leaves(tree, is_leaf=is_leaves)))

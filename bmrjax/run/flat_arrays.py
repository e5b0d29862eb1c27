"""Pytrees as named arrays and JSON."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from bmrjax.infer.saved_leaves import SavedLeaves, names_and_leaves


def flatten_arrays(prefix: str, tree: Any, into: dict[str, np.ndarray]) -> Any:
    """Put the arrays of a pytree into `into`; return the nesting of their names, for JSON.

    Dicts, lists, tuples and None are kept as they are. Of other nodes, such as modules of Equinox, the
    arrays are kept, as `SavedLeaves`.
    """
    if isinstance(tree, dict) and all(isinstance(k, str) for k in tree):
        return {k: flatten_arrays(f"{prefix}/{k}", v, into) for k, v in tree.items()}
    if type(tree) in (list, tuple):
        items = [flatten_arrays(f"{prefix}/{i}", v, into) for i, v in enumerate(tree)]
        return {"sequence": type(tree).__name__, "items": items}
    if tree is None:
        return {"sequence": "none", "items": []}
    if not jax.tree_util.all_leaves([tree]):
        names, leaves = names_and_leaves(tree)
        arrays = [flatten_arrays(f"{prefix}/{i}", leaf, into) for i, leaf in enumerate(leaves)]
        return {"leaves": prefix, "names": list(names), "arrays": arrays}
    # `np.ascontiguousarray` would make vectors of numbers.
    into[prefix] = np.asarray(tree, order="C")
    return {"array": prefix, "shape": list(into[prefix].shape), "dtype": str(into[prefix].dtype)}


def unflatten_arrays(spec: Any, arrays: dict[str, np.ndarray], where: Path) -> Any:
    """Undo `flatten_arrays`: `spec` is what it returned; `where` names the file in errors."""
    if isinstance(spec.get("sequence"), str):
        items = [unflatten_arrays(item, arrays, where) for item in spec["items"]]
        kinds: dict[str, Any] = {"none": lambda _: None, "list": list, "tuple": tuple}
        return kinds[spec["sequence"]](items)
    if isinstance(spec.get("leaves"), str):
        leaves = [unflatten_arrays(leaf, arrays, where) for leaf in spec["arrays"]]
        return SavedLeaves(leaves, tuple(spec["names"]))
    if not isinstance(spec.get("array"), str):
        return {k: unflatten_arrays(v, arrays, where) for k, v in spec.items()}
    name = spec["array"]
    if name not in arrays:
        raise ValueError(
            f"{where}: the array '{name}' is missing. The folder is damaged; save again."
        )
    array = arrays[name]
    if list(array.shape) != spec["shape"] or str(array.dtype) != spec["dtype"]:
        raise ValueError(
            f"{where}: the array '{name}' is {array.dtype}{array.shape}, expected "
            f"{spec['dtype']}{tuple(spec['shape'])}. The files do not belong together."
        )
    return array

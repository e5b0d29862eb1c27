"""Pytrees as named arrays and JSON."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from bmrjax.errors import DamagedFileError
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
    """Undo `flatten_arrays`.

    Args:
        spec: What it returned.
        arrays: Of the file, by name.
        where: The file, for messages.

    Raises:
        DamagedFileError: If `spec` is none, or an array is missing or of another shape or type.
    """
    if not isinstance(spec, dict):
        raise DamagedFileError(f"{where}: what its document says of the arrays is damaged.")
    if isinstance(spec.get("sequence"), str):
        kinds: dict[str, Any] = {"none": lambda _: None, "list": list, "tuple": tuple}
        if spec["sequence"] not in kinds:
            raise DamagedFileError(f"{where}: there is no sequence '{spec['sequence']:.60}'.")
        items = [unflatten_arrays(item, arrays, where) for item in _listed(spec, "items", where)]
        return kinds[spec["sequence"]](items)
    if isinstance(spec.get("leaves"), str):
        leaves = [unflatten_arrays(leaf, arrays, where) for leaf in _listed(spec, "arrays", where)]
        names = _listed(spec, "names", where)
        if len(names) != len(leaves) or not all(isinstance(name, str) for name in names):
            raise DamagedFileError(f"{where}: the names of the arrays of a module are damaged.")
        return SavedLeaves(leaves, tuple(names))
    if not isinstance(spec.get("array"), str):
        return {k: unflatten_arrays(v, arrays, where) for k, v in spec.items()}
    name = spec["array"]
    if name not in arrays:
        raise DamagedFileError(
            f"{where}: the array '{name:.200}' is missing. The folder is damaged; save again."
        )
    array = arrays[name]
    shape, dtype = spec.get("shape"), spec.get("dtype")
    if list(array.shape) != shape or str(array.dtype) != dtype:
        expected = f"{dtype}{tuple(shape) if isinstance(shape, list) else shape}"
        raise DamagedFileError(
            f"{where}: the array '{name}' is {array.dtype}{array.shape}, expected {expected:.200}. The files "
            "do not belong together."
        )
    return array


def _listed(spec: dict[str, Any], name: str, where: Path) -> list[Any]:
    found = spec.get(name)
    if not isinstance(found, list):
        raise DamagedFileError(f"{where}: what its document says of the arrays is damaged.")
    return found

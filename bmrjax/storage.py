"""Saving and loading results: safetensors for arrays, JSON for the rest."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bmrjax.infer.default_guide import guide_of
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.infer.saved_leaves import SavedLeaves, names_and_leaves
from bmrjax.inspection import Inspection
from bmrjax.point import Point
from bmrjax.result import Result

FORMAT = 1
_FILES = ("result.json", "arrays.safetensors")
_PLAIN = (
    "layers",
    "num_data",
    "history",
    "metrics",
    "timing",
    "num_skipped",
    "loop_mode",
    "num_compilations",
    "vfe",
)
_NAMES = ("columns", "class_names", "row_arguments")


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


def save(result: Result, directory: Path) -> None:
    """Write `result` to `directory`, atomically: a new folder takes the old one's place."""
    arrays: dict[str, np.ndarray] = {}
    document: dict[str, Any] = {"format": FORMAT, **{k: getattr(result, k) for k in _PLAIN}}
    document |= {"hyperparameters": result.hyperparameters, "by_rows": result.by_rows}
    document |= {k: v if v is None else list(v) for k in _NAMES for v in [getattr(result, k)]}
    document["inspection"], document["facts"] = result.inspection.rows(), result.facts
    document["params"] = flatten_arrays("params", result.params, arrays)
    document["keep"] = flatten_arrays("keep", result.keep, arrays)
    document["path"] = [
        {
            "epoch": point.epoch,
            "vfe": point.vfe,
            "kept": point.kept,
            "total": point.total,
            "metrics": point.metrics,
            "mask_cost": point.mask_cost,
            "taken_back": point.taken_back,
            "params": flatten_arrays(f"path/{i}/params", point.params, arrays),
            "keep": flatten_arrays(f"path/{i}/keep", point.keep, arrays),
        }
        for i, point in enumerate(result.path)
    ]
    directory = directory.absolute()
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; give a folder to save to.")
    # The folder is replaced as a whole, so it must hold nothing that is not ours.
    others = {p.name for p in directory.iterdir()} - set(_FILES) if directory.exists() else set()
    if others:
        raise ValueError(
            f"{directory} holds more than a saved result ({sorted(others)[:3]}), which saving "
            "would replace; give another folder."
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
    old = staging.with_name(staging.name + ".old")
    staging.mkdir()
    try:
        save_file(arrays, staging / _FILES[1])
        (staging / _FILES[0]).write_text(json.dumps(document, indent=1, allow_nan=True))
        if directory.exists():
            os.replace(directory, old)
        try:
            os.replace(staging, directory)
        except BaseException:
            if old.exists():
                os.replace(old, directory)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def load(
    directory: str | Path, *, model: Callable | None = None, guide: Callable | None = None
) -> Result:
    """Read a saved result.

    Args:
        directory: Folder that `Result.save` wrote.
        model: The program, for predictions; programs are code and are not saved.
        guide: Its guide. With a model and no guide, the one of `bmrjax.infer` that has these parameters.

    Raises:
        FileNotFoundError: If the folder holds no saved result.
        ValueError: If a file is cut short, damaged, of an unknown format, or arrays are missing or
            of another shape; nothing is half loaded.
    """
    directory = Path(directory)
    document_path, arrays_path = (directory / name for name in _FILES)
    for path in (document_path, arrays_path):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; {directory} holds no saved result.")
    try:
        document = json.loads(document_path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{document_path} is damaged or cut short ({error}).") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise ValueError(
            f"{document_path} has format {found!r}; this version of bmrjax reads format {FORMAT}."
        )
    try:
        arrays = load_file(arrays_path)
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{arrays_path} is damaged or cut short ({error}).") from None
    try:
        params = unflatten_arrays(document["params"], arrays, arrays_path)
        keep = unflatten_arrays(document["keep"], arrays, arrays_path)
        path = [
            Point(
                epoch=point["epoch"],
                vfe=point["vfe"],
                kept=point["kept"],
                total=point["total"],
                metrics=point["metrics"],
                params=unflatten_arrays(point["params"], arrays, arrays_path),
                keep=unflatten_arrays(point["keep"], arrays, arrays_path),
                mask_cost=point.get("mask_cost", 0.0),
                taken_back=point.get("taken_back", False),
            )
            for point in document["path"]
        ]
        plain = {name: document[name] for name in _PLAIN}
        plain["hyperparameters"] = document.get("hyperparameters", {})
        plain["by_rows"] = document.get("by_rows", False)
        for name in _NAMES:
            names = document.get(name)
            plain[name] = None if names is None else tuple(map(str, names))
        plain["inspection"] = Inspection.from_rows(document.get("inspection", []))
        plain["facts"] = document.get("facts", {})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{document_path} lacks what a result needs ({error!r}).") from None
    model, guide = unpruned(model)[0], unpruned(guide)[0]
    if model is not None and guide is None:
        guide = _guide_for(model, params)
    return Result(
        params=jax.tree.map(jnp.asarray, params),
        keep={name: jnp.asarray(mask) for name, mask in keep.items()},
        path=path,
        unpruned_model=model,
        unpruned_guide=guide,
        **plain,
    )


def _guide_for(model: Callable, params: dict[str, Any]) -> Any:
    """Return the automatic guide of bmrjax whose parameters these are.

    Raises:
        ValueError: If they are those of none.
    """
    make = guide_of(params)
    if make is None:
        raise ValueError(
            f"load: the result has the parameters {sorted(params)[:5]}, which are those of no automatic "
            "guide with the prefix 'auto'. Give the guide that was fitted: "
            "bmr.load(directory, model=..., guide=...)."
        )
    return make(model)

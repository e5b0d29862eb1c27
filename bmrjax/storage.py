"""Saving and loading results: safetensors for arrays, JSON for the rest."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bmrjax.result import Point, Result

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


def flatten_arrays(prefix: str, tree: Any, into: dict[str, np.ndarray]) -> Any:
    """Put the arrays of nested dicts into `into`; return the same nesting of their names."""
    if isinstance(tree, dict):
        return {k: flatten_arrays(f"{prefix}/{k}", v, into) for k, v in tree.items()}
    # `np.ascontiguousarray` would make vectors of numbers.
    into[prefix] = np.asarray(tree, order="C")
    return {"array": prefix, "shape": list(into[prefix].shape), "dtype": str(into[prefix].dtype)}


def unflatten_arrays(spec: Any, arrays: dict[str, np.ndarray], where: Path) -> Any:
    """Undo `flatten_arrays`: `spec` is what it returned; `where` names the file in errors."""
    if "array" not in spec or not isinstance(spec["array"], str):
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
    document["hyperparameters"] = result.hyperparameters
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
        guide: Its guide. With a model and no guide, `infer.AutoMultivariate` or `infer.AutoMeanField`, as the
            saved parameters are of one or the other.

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
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{document_path} lacks what a result needs ({error!r}).") from None
    if model is not None and guide is None:
        from bmrjax.infer.default_guide import guide_of

        guide = guide_of(params)(model)
    return Result(
        params=_to_device(params),
        keep={name: jnp.asarray(mask) for name, mask in keep.items()},
        path=path,
        model=model,
        guide=guide,
        **plain,
    )


def _to_device(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _to_device(v) for k, v in tree.items()}
    return jnp.asarray(tree)

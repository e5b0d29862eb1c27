"""Loading saved results; see `bmrjax.run.save_result`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bmrjax.infer.default_guide import guide_of
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.run.flat_arrays import unflatten_arrays
from bmrjax.run.inspection import Inspection
from bmrjax.run.point import Point
from bmrjax.run.result import Result
from bmrjax.run.save_result import FILES, FORMAT, NAMES, PLAIN


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
    document_path, arrays_path = (directory / name for name in FILES)
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
        plain = {name: document[name] for name in PLAIN}
        plain["hyperparameters"] = document.get("hyperparameters", {})
        plain["by_rows"] = document.get("by_rows", False)
        for name in NAMES:
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

"""Loading saved results; see `bmrjax.run.save_result`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.errors import DamagedFileError
from bmrjax.infer.default_guide import guide_of
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.run.document import read_document
from bmrjax.run.flat_arrays import unflatten_arrays
from bmrjax.run.inspection import Inspection
from bmrjax.run.point import Point
from bmrjax.run.result import Result
from bmrjax.run.save_result import FILES, FORMAT, NAMES, PLAIN, file_digest
from bmrjax.run.saved_schema import lacking, saved_schema
from bmrjax.run.stored_file import read_bytes

POINT = (
    "epoch", "vfe", "kept", "total", "metrics", "mask_cost", "taken_back", "judged", "vfe_error",
)  # fmt: skip


@not_after_fork
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
        DamagedFileError: If a file is cut short, damaged, of an unknown format, or not what its digest says;
            if arrays are missing or of another shape, or the files do not belong together. Nothing is half
            loaded. It is a ValueError.
        ValueError: If the guide has to be given.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> keep = {"beta": np.array([True, False])}
        >>> result = bmr.Result({"beta_auto_loc": np.array([2.0, 0.0])}, keep, {}, 100)
        >>> folder = tempfile.mkdtemp()
        >>> _ = result.save(folder + "/run")
        >>> bmr.load(folder + "/run").keep
        {'beta': Array([ True, False], dtype=bool)}
    """
    directory = Path(directory)
    document_path, arrays_path = (directory / name for name in FILES)
    for path in (document_path, arrays_path):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; {directory} holds no saved result.")
    document = read_document(document_path, saved_schema(), format=FORMAT)
    if wrong := lacking(document):
        raise DamagedFileError(f"{document_path} is damaged: {wrong}.")
    arrays, arrays_digest = _arrays(arrays_path)
    params = _by_name(document["params"], arrays, arrays_path)
    keep = _masks(document["keep"], arrays, arrays_path)
    path = []
    for point in document["path"]:
        held = {name: point[name] for name in POINT if name in point}
        held["params"] = _by_name(point["params"], arrays, arrays_path)
        held["keep"] = _masks(point["keep"], arrays, arrays_path)
        if _shapes(held["keep"]) != _shapes(keep) or set(held["params"]) != set(params):
            raise DamagedFileError(f"{document_path} is damaged: the points of its path differ.")
        path.append(Point(**held))
    # Earlier versions wrote none.
    if document.get("arrays_digest", arrays_digest) != arrays_digest:
        raise DamagedFileError(
            f"{arrays_path} is not what was written: its digest differs. It is damaged, or of another result."
        )
    plain = {name: document[name] for name in PLAIN}
    plain["hyperparameters"] = document.get("hyperparameters", {})
    plain["by_rows"] = document.get("by_rows", False)
    plain["temperature"] = document.get("temperature", 1.0)
    for name in NAMES:
        names = document.get(name)
        plain[name] = None if names is None else tuple(names)
    plain["inspection"] = Inspection.from_rows(document.get("inspection", []))
    plain["facts"] = document.get("facts", {})
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


# What safetensors calls the types of arrays; its own reader for NumPy knows none of JAX's.
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    **{f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"f{size}" for size in (2, 4, 8)},
    "C64": np.complex64,
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
}


def _arrays(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """Return the arrays of a file, and its digest."""
    data = read_bytes(path)
    try:
        arrays = {
            name: np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
            for name, tensor in deserialize(data)
        }
        return arrays, file_digest(data)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise DamagedFileError(f"{path} is damaged or cut short ({error!s:.200}).") from None


def _by_name(spec: Any, arrays: dict[str, np.ndarray], path: Path) -> dict[str, Any]:
    found = unflatten_arrays(spec, arrays, path)
    if not isinstance(found, dict):
        raise DamagedFileError(f"{path}: parameters and masks must have names.")
    return found


def _masks(spec: Any, arrays: dict[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    found = _by_name(spec, arrays, path)
    for name, mask in found.items():
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise DamagedFileError(f"{path}: the mask of '{name}' is not an array of booleans.")
    return found


def _shapes(keep: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: mask.shape for name, mask in keep.items()}


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

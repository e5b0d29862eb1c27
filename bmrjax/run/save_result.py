"""Saving results: safetensors for arrays, JSON for the rest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bmrjax.files import make_folder, replacing_folder
from bmrjax.run.digests import DIGEST, digest, document_digest
from bmrjax.run.flat_arrays import flatten_arrays

FORMAT = 1
FILES = ("result.json", "arrays.safetensors")
PLAIN = (
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
NAMES = ("columns", "class_names", "row_arguments", "latent_sites")


def file_digest(data: bytes) -> str:
    """Return the digest of a file's bytes."""
    return digest(np.frombuffer(data, np.uint8))


def save_result(result: Any, directory: Path) -> None:
    """Write `result` to `directory`, atomically: a new folder takes the old one's place."""
    arrays: dict[str, np.ndarray] = {}
    document: dict[str, Any] = {"format": FORMAT, **{k: getattr(result, k) for k in PLAIN}}
    document |= {"hyperparameters": result.hyperparameters, "by_rows": result.by_rows}
    document["temperature"] = result.temperature
    document |= {k: v if v is None else list(v) for k in NAMES for v in [getattr(result, k)]}
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
            "judged": point.judged,
            "vfe_error": point.vfe_error,
            "params": flatten_arrays(f"path/{i}/params", point.params, arrays),
            "keep": flatten_arrays(f"path/{i}/keep", point.keep, arrays),
        }
        for i, point in enumerate(result.path)
    ]
    directory = directory.absolute()
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; give a folder to save to.")
    # The folder is replaced as a whole, so it must hold nothing that is not ours.
    others = {p.name for p in directory.iterdir()} - set(FILES) if directory.exists() else set()
    if others:
        raise ValueError(
            f"{directory} holds more than a saved result ({sorted(others)[:3]}), which saving "
            "would replace; give another folder."
        )
    make_folder(directory.parent)
    with replacing_folder(directory) as staging:
        save_file(arrays, staging / FILES[1])
        document["arrays_digest"] = file_digest((staging / FILES[1]).read_bytes())
        # As a reader has it: tuples are lists there.
        document = json.loads(json.dumps(document))
        document[DIGEST] = document_digest(document)
        (staging / FILES[0]).write_text(json.dumps(document, indent=1, allow_nan=True))

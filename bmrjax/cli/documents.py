"""The JSON files of a run."""

import json
import math
from pathlib import Path
from typing import Any

from bmrjax.files import write_atomically


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document in one piece; numbers that are not finite become null."""
    write_atomically(path, json.dumps(_finite(document), indent=1, allow_nan=False))


def read_json(directory: Path, name: str = "results.json") -> dict[str, Any]:
    """Read a document of a run."""
    path = directory / name
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no finished run: there is no {name}.")
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}).") from None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The JSON files of a run."""

import json
import math
from pathlib import Path
from typing import Any

from bmrjax.files import write_atomically
from bmrjax.run.digests import DIGEST, document_digest


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document with its digest, in one piece; numbers that are not finite become null."""
    document = json.loads(json.dumps(_finite(document)))
    document[DIGEST] = document_digest(document)
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

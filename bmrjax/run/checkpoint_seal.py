"""What a checkpoint holds, as digests: damaged and mixed-up files are noticed before they are used."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bmrjax.run.digests import digest, document_digest
from bmrjax.run.stored_file import require_file

# Of the arrays, of the document, and of each point of the path, in a checkpoint's document.
SEAL = "seal"


class DamagedCheckpoint(ValueError):
    """A checkpoint that cannot be used."""


def seal(
    document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], points: Sequence[str]
) -> Any:
    """Return the digests of a checkpoint.

    Args:
        document: What else it holds, as JSON has it.
        arrays: Its arrays by name.
        points: The digests of the points of its path; see `point_digest`.
    """
    names = sorted(arrays)
    return {
        "arrays": digest(*(arrays[name] for name in names)),
        "document": document_digest(document),
        "points": list(points),
    }


def check_document(document: Any, where: Path) -> None:
    """Refuse a document that is not what was written.

    Args:
        document: With its seal.
        where: The file, for the message.

    Raises:
        DamagedCheckpoint: If it is not.
    """
    found = document.get(SEAL) if isinstance(document, dict) else None
    if not isinstance(found, dict) or not {"arrays", "document", "points"} <= set(found):
        raise DamagedCheckpoint(f"{where}: its document has no digests.")
    if document_digest({k: v for k, v in document.items() if k != SEAL}) != found["document"]:
        raise DamagedCheckpoint(f"{where}: its document is not what was written.")


def point_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of a point of the path.

    Args:
        arrays: By name.
    """
    names = sorted(arrays)
    return digest(np.array(names), *(arrays[name] for name in names))


def read_point(path: Path, expected: str) -> dict[str, np.ndarray]:
    """Return the arrays of a point, if they are those that a checkpoint means.

    Args:
        path: Of the file.
        expected: The point's digest.

    Raises:
        DamagedCheckpoint: If the file is missing, damaged, or of another run.
    """
    try:
        require_file(path)
        arrays = load_file(path)
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path} is missing.") from None
    except (SafetensorError, ValueError, OSError) as error:
        raise DamagedCheckpoint(f"{path} is damaged or cut short ({error}).") from None
    if point_digest(arrays) != expected:
        raise DamagedCheckpoint(f"{path} is not the point that was written for this checkpoint.")
    return arrays

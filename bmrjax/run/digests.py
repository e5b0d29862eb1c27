"""Numbers that tell arrays and documents from others; needs no JAX."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

# In a document: the digest of the rest of it. Documents of earlier versions have none.
DIGEST = "digest"


def digest(*arrays: Any) -> str:
    """Return a number that tells arrays from others, down to their last element.

    Args:
        arrays: Of any type.

    Example:
        >>> import numpy as np
        >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(np.arange(4))
        (True, False)
    """
    found = hashlib.blake2b(digest_size=16)
    for each in arrays:
        array = np.asarray(each)
        found.update(f"{array.dtype}{array.shape}".encode())
        # A part at a time: data on disk need not fit into memory.
        rows = max(1, 2**24 // max(1, array[:1].nbytes)) if array.ndim else 1
        for start in range(0, len(array) if array.ndim else 1, rows):
            part = array[start : start + rows] if array.ndim else array
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of JSON values, whatever the order of their names.

    Args:
        document: What it has under `DIGEST` does not count.

    Example:
        >>> document_digest({"a": 1, "b": [2.5]}) == document_digest({"b": [2.5], "a": 1, "digest": "x"})
        True
    """
    held = {name: value for name, value in document.items() if name != DIGEST}
    text = json.dumps(held, sort_keys=True, allow_nan=True)
    return digest(np.frombuffer(text.encode(), np.uint8))

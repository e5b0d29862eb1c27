"""NumPy's files of arrays, read only if they hold what their headers say."""

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Rows without columns, and numbers of no bytes, could be as many as one likes: so many rows times columns,
# where none counts as one.
_MOST_WITHOUT_BYTES = 2**22


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file, or the one of an ``.npy`` file, under the name ``""``.

    The sizes in the headers are compared with those of the file before anything is allocated.

    Args:
        path: A regular file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: For another kind of file, one that is damaged or cut short, arrays of objects, or more
            than there is memory for; names the file.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.npz"
        >>> np.savez(path, x=np.arange(3))
        >>> read_arrays(path)
        {'x': array([0, 1, 2])}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return {"": _read(file, path.stat().st_size)}
        with zipfile.ZipFile(path) as held:
            found = {}
            for entry in held.infolist():
                with held.open(entry) as file:
                    found[entry.filename.removesuffix(".npy")] = _read(file, entry.file_size)
            return found
    except MemoryError:
        raise ValueError(f"{path} holds more than there is memory for.") from None
    except (
        Exception
    ) as error:  # whatever archives, their compression and Python's tokens make of damage
        text = " ".join(str(error).split())
        raise ValueError(
            f"{path} cannot be read as .npz or .npy, or is cut short ({text:.200})."
        ) from None


def _read(file: IO[bytes], size: int) -> np.ndarray:
    """Read one array from a file of so many bytes."""
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        raise ValueError(f"version {version} of the format is unknown")
    shape, _, dtype = _READERS[version](file)
    header: Any = file.tell()
    if dtype.hasobject:
        raise ValueError("it holds Python objects; give numbers")
    wrong = math.prod(shape) * dtype.itemsize != size - header
    if min(shape, default=0) < 0 or wrong:
        raise ValueError(
            f"the header tells of an array of shape {shape}, which {size} bytes do not hold"
        )
    if size == header and math.prod(max(length, 1) for length in shape) > _MOST_WITHOUT_BYTES:
        raise ValueError(
            f"an array of shape {shape} holds no bytes, and {_MOST_WITHOUT_BYTES:,} rows times columns are "
            "most for such a one"
        )
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)

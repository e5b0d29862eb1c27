"""Files of a run, opened only where they are regular ones."""

from pathlib import Path

from bmrjax.errors import DamagedFileError


def read_bytes(path: Path) -> bytes:
    """Return what a regular file holds.

    Raises:
        FileNotFoundError: If it is not there, or no regular file.
        DamagedFileError: If it cannot be read.
    """
    require_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}.") from None


def require_file(path: Path) -> None:
    """Refuse a path that is no regular file, such as a FIFO, on which reading may wait for ever.

    Raises:
        FileNotFoundError: If it is not.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there, or no regular file.")

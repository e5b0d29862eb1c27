"""Networks to files and back."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.file_report import FileReport
from bmrjax.codec.network import MAX_PARAMETERS, decode, encode, inspect_file
from bmrjax.files import write_atomically


def save_network(network: Any, path: str | Path, **options: Any) -> FileReport:
    """Encode a network into a file, which is written whole or not at all.

    Args:
        network: See `encode`.
        path: Of the file; one that is there is replaced.
        **options: Of `encode`.

    Returns:
        What the file takes.

    Example:
        >>> import jax, pathlib, tempfile
        >>> from bmrjax import codec, zoo
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.bmr"
        >>> found = codec.save_network(zoo.MLP(64, (32,), 10, key=jax.random.key(0)), path)
        >>> found.size == path.stat().st_size, found.ratio > 3
        (True, True)
    """
    data = encode(network, **options)
    write_atomically(Path(path), data)
    return inspect_file(data, max_parameters=2**62)


def load_network(
    path: str | Path, *, max_parameters: int = MAX_PARAMETERS, allow: Iterable[Any] = ()
) -> Any:
    """Decode the network in a file.

    Args:
        path: Of a file that `save_network` wrote.
        max_parameters: See `decode`.
        allow: Packages, modules, classes and functions that the file may name, as ``("my_package",)``; see
            `decode`.

    Raises:
        FileNotFoundError: If there is no such file.
        CodecError: As `decode`.

    Example:
        >>> import jax, pathlib, tempfile
        >>> from bmrjax import codec, zoo
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.bmr"
        >>> _ = codec.save_network(zoo.MLP(8, (4,), 2, key=jax.random.key(0)), path)
        >>> codec.load_network(path).layers[0].weight.shape
        (4, 8)
    """
    data = read_file(path, max_parameters)
    return decode(data, max_parameters=max_parameters, allow=allow)


def read_file(path: str | Path, max_parameters: int = MAX_PARAMETERS) -> bytes:
    """Return the bytes of a file that can be a network, whatever its size on disk.

    Args:
        path: Of the file.
        max_parameters: See `decode`.

    Raises:
        FileNotFoundError: If there is no such file.
        CodecError: If it is larger than any such network.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    # Exact float64 takes 8 bytes a number, and a description at most 2**20.
    most = 8 * max_parameters + 2**21
    with path.open("rb") as file:
        # Of a file that is far too large, nothing is read.
        data = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if data is None or len(data) > most:
        raise CodecError(f"{path} is too large for {max_parameters:,} parameters.")
    return data

"""A folder of safetensors shards that holds a posterior made elsewhere."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

Width = Literal["scale", "variance", "precision"]
WIDTHS: tuple[Width, ...] = ("scale", "variance", "precision")
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Stored:
    """Where one tensor lies.

    Attributes:
        path: Its file.
        name: Its name in the file.
        dtype: Of its elements.
        shape: Its shape.
        offset: Its first byte in the file.
    """

    path: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    def read(self, descriptor: int, begin: int, into: np.ndarray) -> None:
        """Fill `into` with the elements from `begin` on.

        Args:
            descriptor: Of the open file.
            begin: Index of the first element.
            into: Contiguous array of the tensor's dtype.

        Raises:
            ValueError: If the file ends before.
        """
        view, at = memoryview(into.view(np.uint8).data), self.offset + begin * self.dtype.itemsize
        while len(view):
            count = os.preadv(descriptor, [view], at)
            if not count:
                raise ValueError(f"{self.path} ends within '{self.name}': it was cut short.")
            view, at = view[count:], at + count


@dataclass(frozen=True)
class Pair:
    """The posterior of one tensor of weights.

    Attributes:
        name: Of the weights: what stands before ``.loc``.
        loc: The means.
        width: The scales, variances or precisions.
        kind: Which of them.
    """

    name: str
    loc: Stored
    width: Stored
    kind: Width

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.loc.size

    @property
    def num_bytes(self) -> int:
        """Bytes of means and widths."""
        return self.loc.num_bytes + self.width.num_bytes


def read_folder(folder: Path) -> tuple[list[Pair], list[str]]:
    """Find the pairs of a folder; reads the headers only.

    Args:
        folder: Holds ``*.safetensors`` with tensors ``NAME.loc`` and, in the same file or another,
            ``NAME.scale``, ``NAME.variance`` or ``NAME.precision``. An index file beside them is
            not needed: the headers say the same.

    Returns:
        The pairs, in the order of files and of tensors in them, and the names of the tensors that are
        neither part of a pair nor named like one.

    Raises:
        ValueError: For a folder without shards or pairs, a file that is none or is damaged, a tensor
            that two files have, a missing or second partner, shapes that differ, a dtype that is not
            floating-point.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give the one that holds the .safetensors files.")
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{folder} holds no .safetensors file.")
    tensors: dict[str, Stored | Any] = {}
    for path in paths:
        for name, found in _header(path):
            if name in tensors:
                first = tensors[name].path.name
                raise ValueError(
                    f"'{name}' is both in {first} and in {path.name} of {folder}: remove one."
                )
            tensors[name] = found
    pairs = [_pair(name.removesuffix(".loc"), tensors) for name in tensors if name.endswith(".loc")]
    used = {each.name for pair in pairs for each in (pair.loc, pair.width)}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last in WIDTHS and stem and name not in used:
            raise ValueError(
                f"'{name}' in {tensor.path} has no '{stem}.loc' in the folder. Add it, or rename "
                f"'{name}' if it is no posterior's."
            )
    if not pairs:
        raise ValueError(
            f"{folder} holds no posterior: no tensor is named NAME.loc, beside a NAME.scale, "
            "NAME.variance or NAME.precision."
        )
    return pairs, [name for name in tensors if name not in used]


def _pair(name: str, tensors: dict[str, Stored]) -> Pair:
    loc = tensors[f"{name}.loc"]
    kinds: list[Width] = [kind for kind in WIDTHS if f"{name}.{kind}" in tensors]
    if len(kinds) != 1:
        what = "no width" if not kinds else " and ".join(f"'{name}.{kind}'" for kind in kinds)
        raise ValueError(
            f"'{loc.name}' in {loc.path} has {what} in the folder; it takes one of '{name}.scale', "
            f"'{name}.variance' and '{name}.precision'."
        )
    width = tensors[f"{name}.{kinds[0]}"]
    if width.shape != loc.shape:
        raise ValueError(
            f"'{loc.name}' in {loc.path} has shape {loc.shape}, '{width.name}' in {width.path} has "
            f"{width.shape}: they must be the same."
        )
    for each in (loc, width):
        if each.dtype not in DTYPES.values():
            raise ValueError(
                f"'{each.name}' in {each.path} is not a float: write it as one of {', '.join(DTYPES)}."
            )
    return Pair(name, loc, width, kinds[0])


def _header(path: Path) -> Iterable[tuple[str, Stored]]:
    """Return the tensors of a file, in the order of their bytes."""
    if not path.is_file():  # opening a FIFO waits for ever
        raise ValueError(f"{path} is no regular file; remove it, or give another folder.")
    try:
        # The library knows what a valid file is: nothing overlaps, nothing lies past its end.
        with safe_open(path, "np"):
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no safetensors file, or damaged: {error}") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        document = json.loads(file.read(length))
    document.pop("__metadata__", None)
    rows = sorted(document.items(), key=lambda row: row[1]["data_offsets"])
    other = np.dtype("V1")
    return [
        (
            name,
            Stored(
                path,
                name,
                DTYPES.get(row["dtype"], other),
                tuple(row["shape"]),
                8 + length + row["data_offsets"][0],
            ),
        )
        for name, row in rows
    ]

"""Masks in safetensors files, written piece by piece."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, UInt8

from bmrjax.streaming.folder import Pair


class MaskFile:
    """One shard of masks, ``NAME.keep`` of dtype BOOL for each pair, in place before it is filled.

    Args:
        path: Of the file, which is created at its full size.
        pairs: Whose masks it holds.
    """

    def __init__(self, path: Path, pairs: Sequence[Pair]):
        document, at = {}, 0
        for pair in pairs:
            document[f"{pair.name}.keep"] = {
                "dtype": "BOOL",
                "shape": list(pair.loc.shape),
                "data_offsets": [at, at + pair.size],
            }
            at += pair.size
        header = json.dumps(document, separators=(",", ":")).encode()
        # The format aligns the data to eight bytes with spaces.
        header += b" " * (-len(header) % 8)
        self._begin = {
            pair.name: 8 + len(header) + document[f"{pair.name}.keep"]["data_offsets"][0]
            for pair in pairs
        }
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.pwrite(self._descriptor, len(header).to_bytes(8, "little") + header, 0)
            os.ftruncate(self._descriptor, 8 + len(header) + at)
        except BaseException:
            self.close()
            raise

    def write(self, name: str, begin: int, keep: UInt8[np.ndarray, " n"]) -> None:
        """Write the elements from `begin` on, a byte each."""
        view, at = memoryview(np.ascontiguousarray(keep).data), self._begin[name] + begin
        while len(view):
            count = os.pwrite(self._descriptor, view, at)
            view, at = view[count:], at + count

    def patch(self, name: str, index: Int[np.ndarray, " n"], keep: Bool[np.ndarray, " n"]) -> None:
        """Write single elements."""
        if len(index):
            begin = self._begin[name]
            size = int(index.max()) + 1
            np.memmap(self._path, np.uint8, "r+", begin, (size,))[index] = keep

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

"""Where the entries of a sparse array are: four ways to say it.

Each layout writes which entries there are, and where the paper's puts padding zeros among them. An array of
more than two axes is laid out as a matrix of the first by all others.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmrjax.codec.errors import CodecError
from bmrjax.codec.integers import read_integer, read_integers, write_integer, write_integers

# So many truth values at a time.
CHUNK = 2**20


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns that an array is laid out in.

    Example:
        >>> as_matrix((16, 6, 5, 5)), as_matrix((10,)), as_matrix(())
        ((16, 150), (1, 10), (1, 1))
    """
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])


@dataclass(frozen=True)
class CSR:
    """Row pointers and column offsets of fixed width, with padding zeros between entries far apart.

    Args:
        offset_bits: Width of an offset; 5 for LeNet-300-100 and 8 for LeNet-5 in the paper.

    References:
        Han, Mao and Dally (2016); Federici, Ullrich and Welling (2017), Appendix B.2.
    """

    offset_bits: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.offset_bits <= 16:
            raise ValueError(f"CSR: offset_bits must be 1 to 16, got {self.offset_bits}.")

    def write(self, writer: Any, codes: np.ndarray) -> np.ndarray:
        """Write where the entries are; return the codes to write, padding zeros among them."""
        rows = codes.shape[0]
        writer.bits(np.array([self.offset_bits]), 5)
        reach = 1 << self.offset_bits
        row, column = np.nonzero(codes)
        before = np.where(np.r_[True, row[1:] != row[:-1]], -1, np.r_[-1, column[:-1]])[: len(row)]
        gap = column - before
        pads = (gap - 1) // reach
        ends = np.cumsum(pads + 1) - 1
        size = int(ends[-1]) + 1 if len(ends) else 0
        offsets = np.full(size, reach, np.int64)
        offsets[ends] = gap - pads * reach
        values = np.zeros(size, codes.dtype)
        values[ends] = codes[row, column]
        each = np.bincount(row, weights=pads + 1, minlength=rows).astype(np.int64)
        write_integer(writer, size)
        writer.bits(np.cumsum(each), size.bit_length())
        writer.bits(offsets - 1, self.offset_bits)
        return values

    @staticmethod
    def read(reader: Any, rows: int, columns: int) -> np.ndarray:
        """Return the positions of the entries in the flattened matrix, padding zeros among them."""
        bits = int(reader.bits(1, 5)[0])
        size = read_integer(reader, rows * columns)
        pointers = reader.bits(rows, size.bit_length())
        if rows and (pointers[-1] != size or (np.diff(pointers) < 0).any()):
            raise CodecError("the coded numbers are damaged: row pointers do not grow to the end.")
        offsets = reader.bits(size, bits) + 1
        row = np.repeat(np.arange(rows), np.diff(pointers, prepend=0))
        total = np.cumsum(offsets)
        start = np.r_[0, total][pointers - np.diff(pointers, prepend=0)] if rows else total
        column = total - start[row] - 1
        if size and column.max() >= columns:
            raise CodecError("the coded numbers are damaged: an entry is beyond its row.")
        return row * columns + column


@dataclass(frozen=True)
class Gaps:
    """The lengths of the runs of zeros between entries, row by row, entropy-coded."""

    def write(self, writer: Any, codes: np.ndarray) -> np.ndarray:
        """Write where the entries are; return the codes to write."""
        where = np.flatnonzero(codes)
        write_integer(writer, len(where))
        write_integers(writer, np.diff(where, prepend=-1) - 1, codes.size)
        return codes.ravel()[where]

    @staticmethod
    def read(reader: Any, rows: int, columns: int) -> np.ndarray:
        """Return the positions of the entries in the flattened matrix."""
        size = read_integer(reader, rows * columns)
        where = np.cumsum(read_integers(reader, size, rows * columns) + 1) - 1
        if size and where[-1] >= rows * columns:
            raise CodecError("the coded numbers are damaged: an entry is beyond the array.")
        return where


def presence(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two vectors of odds, whose outer product is the odds that a place has an entry.

    Rows and columns are independent: an entry is likely where both have many.

    Args:
        rows: How many entries each row has, of those that have any.
        columns: How many each column has, likewise.
    """
    total, inside = float(rows.sum()), float(len(rows) * len(columns))
    # Half an entry more or less, so that no odds are zero or infinite.
    factor = (max(inside - total, 0.0) + 0.5) / (total + 0.5)
    row = (rows + 0.5) / (np.maximum(len(columns) - rows, 0) + 0.5)
    column = (columns + 0.5) / (np.maximum(len(rows) - columns, 0) + 0.5)
    return row * factor, column


@dataclass(frozen=True)
class Bitmap:
    """How many entries each row and column has, then whether each place has one, where both have any.

    A row and a column that have many entries are likely to have one where they meet: the odds are the product
    of theirs. Needs an arithmetic coder.
    """

    def write(self, writer: Any, codes: np.ndarray) -> np.ndarray:
        """Write where the entries are; return the codes to write."""
        there = codes != 0
        counts = there.sum(1), there.sum(0)
        for count, size in zip(counts, codes.shape[::-1], strict=True):
            write_integers(writer, count, size)
        alive = tuple(np.flatnonzero(count) for count in counts)
        for some, chances in _chances(*counts, alive):
            writer.flags(there[np.ix_(some, alive[1])].ravel(), chances)
        return codes[there]

    @staticmethod
    def read(reader: Any, rows: int, columns: int) -> np.ndarray:
        """Return the positions of the entries in the flattened matrix."""
        counts = read_integers(reader, rows, columns), read_integers(reader, columns, rows)
        alive = tuple(np.flatnonzero(count) for count in counts)
        found = []
        for some, chances in _chances(*counts, alive):
            where = np.flatnonzero(reader.flags(chances))
            row, column = np.divmod(where, max(len(alive[1]), 1))
            found.append(some[row] * columns + alive[1][column])
        return np.concatenate([np.zeros(0, np.int64), *found])


def _chances(
    rows: np.ndarray, columns: np.ndarray, alive: tuple[np.ndarray, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield some rows at a time, and the probability of an entry at each of their places."""
    row, column = presence(rows[alive[0]], columns[alive[1]])
    step = max(1, CHUNK // max(len(column), 1))
    for start in range(0, len(row), step):
        odds = row[start : start + step, None] * column
        chances = np.clip((odds / (1 + odds)).ravel(), 2.0**-20, 1 - 2.0**-20)
        yield alive[0][start : start + step], chances


@dataclass(frozen=True)
class Dense:
    """Every entry, zeros as well."""

    def write(self, writer: Any, codes: np.ndarray) -> np.ndarray:
        """Return the codes to write: all."""
        del writer
        return codes.ravel()

    @staticmethod
    def read(reader: Any, rows: int, columns: int) -> np.ndarray:
        """Return the positions of the entries: all."""
        del reader
        return np.arange(rows * columns)


Layout = CSR | Gaps | Bitmap | Dense
LAYOUTS: tuple[type[Layout], ...] = (Gaps, Bitmap, Dense, CSR)

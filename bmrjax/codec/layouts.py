"""Where the entries of a sparse array are: four ways to say it.

Each layout writes which entries there are, and where the paper's puts padding zeros among them. An array of
more than two axes is laid out as a matrix of the first by all others.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmrjax.codec.budget import ACROSS, ENTRY, FLAG, INTEGER, LINE
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.integers import read_integer, read_integers, write_integer, write_integers


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

    Example:
        >>> import numpy as np
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(64, (32,), 10, key=jax.random.key(0))
        >>> sparse = jnp.where(jnp.abs(network.layers[0].weight) > 0.11, network.layers[0].weight, 0.0)
        >>> network = eqx.tree_at(lambda n: n.layers[0].weight, network, sparse)
        >>> for layout in (codec.CSR(offset_bits=4), codec.Gaps(), codec.Bitmap(), codec.Dense()):
        ...     print(type(layout).__name__, codec.inspect_file(codec.encode(network, layout=layout)).size)
        CSR 1952
        Gaps 1464
        Bitmap 1487
        Dense 1460

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
        reader.budget.charge(INTEGER, rows)
        reader.budget.charge(ENTRY, size)
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
    """The lengths of the runs of zeros between entries, row by row, entropy-coded.

    Example:
        >>> import jax
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> codec.inspect_file(codec.encode(network, layout=codec.Gaps())).rows[0].layout
        'Gaps'
    """

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
        reader.budget.charge(ENTRY, size)
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
    """How many entries each row and column has, then whether each place has one, line by line.

    Lines are rows or columns, whichever are fewer. Where a line crosses another, an entry is likely if the
    line has many and the other has many left: the odds are the product. What follows from the counts is
    not sent.
    Needs an arithmetic coder.

    Example:
        >>> import jax
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> codec.inspect_file(codec.encode(network, layout=codec.Bitmap())).rows[0].layout
        'Bitmap'
    """

    def write(self, writer: Any, codes: np.ndarray) -> np.ndarray:
        """Write where the entries are; return the codes to write."""
        there = codes != 0
        lines = there if codes.shape[0] <= codes.shape[1] else there.T
        counts = lines.sum(1), lines.sum(0)
        for count, size in zip(counts, lines.shape[::-1], strict=True):
            write_integers(writer, count, size)
        margins = _Margins(*counts)
        for i in margins.live:
            which, chances = margins.open(i)
            if len(chances):
                writer.flags(lines[i, which], chances)
            margins.close(lines[i])
        return codes[there]

    @staticmethod
    def read(reader: Any, rows: int, columns: int) -> np.ndarray:
        """Return the positions of the entries in the flattened matrix."""
        few, many = min(rows, columns), max(rows, columns)
        margins = _Margins(read_integers(reader, few, many), read_integers(reader, many, few))
        found = [np.zeros(0, np.int64)]
        for i in margins.live:
            reader.budget.charge(LINE)
            reader.budget.charge(ACROSS, many)
            which, chances = margins.open(i)
            line = margins.certain(i)
            reader.budget.charge(FLAG, len(chances))
            if len(chances):
                line[which] = reader.flags(chances)
            margins.close(line)
            across = np.flatnonzero(line)
            reader.budget.charge(ENTRY, len(across))
            found.append(i * columns + across if rows <= columns else across * columns + i)
        margins.check()
        where = np.concatenate(found)
        return where if rows <= columns else np.sort(where)


class _Margins:
    """What is known of a line before it is sent, from the counts and the lines before."""

    def __init__(self, counts: np.ndarray, across: np.ndarray):
        self._counts, self._left = counts, across.copy()
        self.live: list[int] = np.flatnonzero(counts).tolist()
        self._lines = len(self.live)

    def _fixed(self, line: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return which places must have an entry, which may, and how many of the latter have one."""
        must = self._left >= self._lines
        may = np.flatnonzero((self._left > 0) & ~must)
        return must, may, int(self._counts[line]) - int(must.sum())

    def open(self, line: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places that have to be sent for a line, and the probabilities of entries there."""
        _, may, some = self._fixed(line)
        if not 0 < some < len(may):
            return may, np.zeros(0)
        left = self._left[may]
        total, inside = int(left.sum()), self._lines * len(may)
        factor = some / (len(may) - some) * (inside - total) / total
        odds = left / (self._lines - left) * factor
        return may, np.clip(odds / (1 + odds), 2.0**-20, 1 - 2.0**-20)

    def certain(self, line: int) -> np.ndarray:
        """Return the entries of a line that follow from the counts."""
        must, may, some = self._fixed(line)
        if not 0 <= some <= len(may):
            raise CodecError("the coded numbers are damaged: rows and columns do not fit.")
        if some == len(may):
            must[may] = True
        return must

    def close(self, line: np.ndarray) -> None:
        """Go on after a line."""
        self._left = self._left - line
        self._lines -= 1

    def check(self) -> None:
        """Refuse counts that the lines did not have."""
        if self._left.any():
            raise CodecError("the coded numbers are damaged: rows and columns do not fit.")


@dataclass(frozen=True)
class Dense:
    """Every entry, zeros as well.

    Example:
        >>> import jax
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> row = codec.inspect_file(codec.encode(network, layout=codec.Dense())).rows[0]
        >>> row.place_bits < row.value_bits  # no places are sent
        True
    """

    def write(self, writer: Any, codes: np.ndarray) -> np.ndarray:
        """Return the codes to write: all."""
        del writer
        return codes.ravel()

    @staticmethod
    def read(reader: Any, rows: int, columns: int) -> np.ndarray:
        """Return the positions of the entries: all."""
        reader.budget.charge(ENTRY, rows * columns)
        return np.arange(rows * columns)


Layout = CSR | Gaps | Bitmap | Dense
LAYOUTS: tuple[type[Layout], ...] = (Gaps, Bitmap, Dense, CSR)

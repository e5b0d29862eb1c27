"""One array of a network as a part of the code."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmrjax.codec.budget import LETTER
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.describe_network import Hole
from bmrjax.codec.integers import read_integer, read_integers, write_integer, write_integers
from bmrjax.codec.layouts import CSR, LAYOUTS, Bitmap, Dense, Gaps, Layout, as_matrix
from bmrjax.codec.quantise import (
    LARGEST_CODE,
    STEP_BITS,
    Codebook,
    Grid,
    Quantised,
    to_bfloat16,
)
from bmrjax.codec.relative_entropy import Drawn, read_drawn

# How an array is coded.
KINDS = ("exact", "float16", "constant", "rising", "grid", "codebook", "drawn")
KIND_BITS = 3
LAYOUT_BITS = 2
# Relative error up to which float16 will do.
HALF = 2.0**-10


@dataclass(frozen=True)
class ArrayRow:
    """What one array takes.

    Attributes:
        name: Path to it in the network.
        shape: Its shape.
        entries: How many of its numbers are not zero.
        kind: How its numbers are sent: ``"grid"``, ``"codebook"`` or ``"drawn"`` for those that are
            quantised, ``"float16"``, ``"exact"``, ``"constant"`` for others, ``"rising"`` for indices.
        layout: How their places are sent, where not all are there.
        place_bits: For where the entries are.
        value_bits: For what they are.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import codec, zoo
        >>> row = codec.inspect_file(codec.encode(zoo.MLP(8, (4,), 2, key=jax.random.key(0)))).rows[0]
        >>> row.name, row.shape, row.entries, row.kind
        ('layers.0.weight', (4, 8), 32, 'grid')
    """

    name: str
    shape: tuple[int, ...]
    entries: int
    kind: str
    layout: str
    place_bits: float
    value_bits: float


class RecordWriter:
    """Write arrays, one after the other.

    Args:
        writer: An `ArithmeticWriter` or a `HuffmanWriter`.
        layout: For all arrays, or None for the smallest for each.
        dense: Type of floating-point arrays that are not quantised: ``"float16"`` where its relative error is
            below a thousandth, or ``"float32"``.
    """

    def __init__(self, writer: Any, layout: Layout | None, dense: str):
        self._writer, self._layout, self._dense = writer, layout, dense
        self._books: list[Codebook] = []

    def plain(self, array: np.ndarray) -> None:
        """Write an array that is not quantised."""
        kind = self._plain_kind(array)
        self._writer.bits(np.array([KINDS.index(kind)]), KIND_BITS)
        if kind == "rising":
            write_integer(self._writer, int(array[-1]))
            write_integers(self._writer, np.diff(array, prepend=-1) - 1, int(array[-1]))
            return
        if kind == "float16":
            array = array.astype(np.float16)
        raw = array.ravel()[:1] if kind == "constant" else array
        self._writer.bits(np.frombuffer(np.ascontiguousarray(raw).tobytes(), np.uint8), 8)

    def _plain_kind(self, array: np.ndarray) -> str:
        flat = array.ravel()
        if array.size > 1 and flat[:1].tobytes() * array.size == array.tobytes():
            return "constant"
        if array.ndim == 1 and array.size and array.dtype.kind in "iu":
            inside = 0 <= int(flat[0]) and int(flat[-1]) < 2**31
            if inside and (np.diff(flat.astype(np.int64)) > 0).all():
                return "rising"
        if array.dtype == np.float32 and self._dense == "float16":
            with np.errstate(over="ignore"):
                gap = np.abs(array.astype(np.float16).astype(np.float32) - array)
            if (gap <= HALF * np.abs(array)).all():
                return "float16"
        return "exact"

    def quantised(self, found: Quantised) -> None:
        """Write an array in codes."""
        book = isinstance(found.levels, Codebook)
        self._writer.bits(np.array([KINDS.index("codebook" if book else "grid")]), KIND_BITS)
        if isinstance(found.levels, Codebook):
            self._book(found.levels)
        else:
            self._writer.bits(np.array([found.levels.index]), STEP_BITS)
        codes = found.codes.reshape(as_matrix(found.codes.shape))
        span = min(0, int(codes.min(initial=0))), max(0, int(codes.max(initial=0)))
        if not book:
            for end in span:
                write_integer(self._writer, abs(end), LARGEST_CODE.bit_length())
        size = (
            len(found.levels.levels) + 1
            if isinstance(found.levels, Codebook)
            else span[1] - span[0] + 1
        )
        tried = []
        for layout in self._candidates(codes):
            writer = self._writer.branch()
            writer.bits(np.array([LAYOUTS.index(type(layout))]), LAYOUT_BITS)
            values = layout.write(writer, codes)
            writer.symbols(values - span[0], size)
            tried.append(writer)
        self._writer.extend(min(tried, key=lambda w: w.spent))

    def drawn(self, there: np.ndarray, found: Drawn) -> None:
        """Write an array of random candidates.

        Args:
            there: Which numbers are not zero.
            found: The candidates.
        """
        self._writer.bits(np.array([KINDS.index("drawn")]), KIND_BITS)
        tried = []
        for layout in self._candidates(there.reshape(as_matrix(there.shape)), sparse=True):
            writer = self._writer.branch()
            writer.bits(np.array([LAYOUTS.index(type(layout))]), LAYOUT_BITS)
            layout.write(writer, there.reshape(as_matrix(there.shape)).astype(np.int64))
            tried.append(writer)
        self._writer.extend(min(tried, key=lambda w: w.spent))
        found.write(self._writer)

    def _candidates(self, codes: np.ndarray, *, sparse: bool = False) -> list[Layout]:
        if self._layout is not None and not (sparse and isinstance(self._layout, CSR | Dense)):
            return [self._layout]
        bitmap = [Bitmap()] if self._writer.has_flags else []
        # Where hardly anything is, it need not be tried to tell all.
        all_told = codes.size < 2**14 or np.count_nonzero(codes) > 0.1 * codes.size
        return [Gaps(), *bitmap, *([Dense()] if all_told and not sparse else [])]

    def _book(self, book: Codebook) -> None:
        number = next((i for i, b in enumerate(self._books) if b is book), len(self._books))
        write_integer(self._writer, number)
        if number < len(self._books):
            return
        self._books.append(book)
        levels = book.levels.astype(np.float32)
        short = bool(np.array_equal(to_bfloat16(levels), levels))
        write_integer(self._writer, len(levels))
        self._writer.bits(np.array([short]), 1)
        bits = levels.view(np.uint32).astype(np.int64)
        self._writer.bits(bits >> 16 if short else bits, 16 if short else 32)


class RecordReader:
    """Read what a `RecordWriter` wrote.

    Args:
        reader: An `ArithmeticReader` or a `HuffmanReader`.
        room: Bytes of the code: an array that is sent byte by byte has no more.
    """

    def __init__(self, reader: Any, room: int):
        self._reader, self._room = reader, room
        self._books: list[Codebook] = []
        self._part = -1

    def read(self, hole: Hole) -> tuple[np.ndarray, ArrayRow]:
        """Read one array.

        Args:
            hole: Its shape and type.

        Raises:
            CodecError: If the code is damaged.
        """
        self._part += 1
        before = self._reader.spent
        kind = int(self._reader.bits(1, KIND_BITS)[0])
        if kind >= len(KINDS):
            raise CodecError("the coded numbers are damaged: there is no such kind of array.")
        name = KINDS[kind]
        layout, places = "", 0.0
        if name in ("grid", "codebook", "drawn"):
            array, layout, places = self._sparse(name, hole)
        else:
            array = self._plain(name, hole)
        row = ArrayRow(
            hole.name, hole.shape, int(np.count_nonzero(array)), name, layout,
            places, self._reader.spent - before - places,
        )  # fmt: skip
        return array.reshape(hole.shape), row

    def _plain(self, kind: str, hole: Hole) -> np.ndarray:
        if kind == "rising":
            if not hole.size or "int" not in hole.dtype or len(hole.shape) != 1:
                raise CodecError("the coded numbers are damaged: indices are no indices.")
            last = read_integer(self._reader, 2**31 - 1)
            found = np.cumsum(read_integers(self._reader, hole.size, last) + 1) - 1
            if found[-1] != last or last > np.iinfo(hole.dtype).max:
                raise CodecError("the coded numbers are damaged: indices do not add up.")
            return found.astype(hole.dtype)
        if kind == "float16" and "float" not in hole.dtype:
            raise CodecError("the coded numbers are damaged: float16 for what has no fractions.")
        dtype = np.dtype(np.float16 if kind == "float16" else numpy_type(hole.dtype))
        size = min(hole.size, 1) if kind == "constant" else hole.size
        if size * dtype.itemsize > self._room + 2 * dtype.itemsize:
            raise CodecError("the file declares a larger array than it has bytes for.")
        raw = self._reader.bits(size * dtype.itemsize, 8).astype(np.uint8)
        if hole.dtype == "bool" and raw.max(initial=0) > 1:
            raise CodecError("the coded numbers are damaged: a truth value is neither 0 nor 1.")
        found = np.frombuffer(raw.tobytes(), dtype)
        if kind == "constant":
            found = np.broadcast_to(found, hole.size)
        with np.errstate(over="ignore", invalid="ignore"):
            return found.astype(numpy_type(hole.dtype))

    def _sparse(self, kind: str, hole: Hole) -> tuple[np.ndarray, str, float]:
        """Return the array, the name of its layout, and the bits that its places took."""
        if "float" not in hole.dtype:
            raise CodecError("the coded numbers are damaged: weights for what has no fractions.")
        low, size, levels = 0, 0, None
        if kind == "grid":
            levels = Grid(int(self._reader.bits(1, STEP_BITS)[0]))
            bits = LARGEST_CODE.bit_length()
            low, high = (read_integer(self._reader, LARGEST_CODE, bits) for _ in range(2))
            low, size = -low, low + high + 1
        elif kind == "codebook":
            levels = self._book()
            size = len(levels.levels) + 1
        self._reader.budget.charge(LETTER, size)
        head = self._reader.spent
        layout = LAYOUTS[int(self._reader.bits(1, LAYOUT_BITS)[0])]
        if layout is Bitmap and not self._reader.has_flags:
            raise CodecError("the file has a bitmap, which its coder cannot code.")
        rows, columns = as_matrix(hole.shape)
        where = layout.read(self._reader, rows, columns)
        placed = self._reader.spent
        found = np.zeros(math.prod(hole.shape), np.float32)
        # Made-up steps and levels may be beyond the type of the array.
        with np.errstate(over="ignore", invalid="ignore"):
            if levels is None:
                found[where] = read_drawn(self._reader, len(where)).values(part=self._part)
            else:
                found[where] = levels.values(self._reader.symbols(len(where), size) + low)
            found = found.astype(numpy_type(hole.dtype), copy=False)
        # What is before the places belongs to the values.
        return found, layout.__name__, placed - head

    def _book(self) -> Codebook:
        number = read_integer(self._reader, len(self._books))
        if number == len(self._books):
            count = read_integer(self._reader, LARGEST_CODE)
            short = bool(self._reader.bits(1, 1)[0])
            if 2 * count > self._room:
                raise CodecError("the file declares a larger codebook than it has bytes for.")
            bits = self._reader.bits(count, 16 if short else 32)
            levels = (bits << 16 if short else bits).astype(np.uint32).view(np.float32)
            self._books.append(Codebook(levels))
        return self._books[number]


def numpy_type(name: str) -> np.dtype:
    """Return an array type by its name, bfloat16 among them."""
    import jax.numpy as jnp

    return np.dtype(jnp.dtype(name))

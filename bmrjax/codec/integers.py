"""Whole numbers of any size: small ones are symbols, of large ones the first bits are."""

from typing import Any

import numpy as np

from bmrjax.codec.budget import INTEGER
from bmrjax.codec.codec_error import CodecError

# Numbers below have a symbol each; of larger ones the highest bit and LEADING more make the symbol.
SMALL_INTEGERS = 16
LEADING = 2
_FIRST = SMALL_INTEGERS.bit_length() - 1


def _alphabet(largest: int) -> int:
    return int(_split(np.array([largest]))[0][0]) + 1


def _split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each number's symbol, how many bits it leaves, and those bits."""
    values = values.astype(np.int64)
    # Exact below 2**53, which no count here reaches.
    exponent = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64) - 1
    width = np.where(values < SMALL_INTEGERS, 0, exponent - LEADING)
    top = values >> width
    large = SMALL_INTEGERS + ((exponent - _FIRST) << LEADING) + top - (1 << LEADING)
    return np.where(values < SMALL_INTEGERS, values, large), width, values - (top << width)


def _widths(symbols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many bits each symbol leaves, and the number that it stands for without them."""
    above = np.maximum(symbols - SMALL_INTEGERS, 0)
    width = (above >> LEADING) + _FIRST - LEADING
    top = (above & ((1 << LEADING) - 1)) + (1 << LEADING)
    small = symbols < SMALL_INTEGERS
    return np.where(small, 0, width), np.where(small, symbols, top << width)


def write_integers(writer: Any, values: np.ndarray, largest: int) -> None:
    """Write numbers of 0 … largest.

    Args:
        writer: Where to.
        values: The numbers.
        largest: A bound that the reader knows too.
    """
    values = np.asarray(values)
    if not values.size:
        return
    top = int(values.max())
    write_integer(writer, top, int(largest).bit_length())
    symbols, width, rest = _split(values)
    writer.symbols(symbols, _alphabet(top))
    for bits in np.unique(width[width > 0]):
        writer.bits(rest[width == bits], int(bits))


def read_integers(reader: Any, count: int, largest: int) -> np.ndarray:
    """Read what `write_integers` wrote.

    Args:
        reader: Where from.
        count: How many.
        largest: As it was written.

    Raises:
        CodecError: If one is larger.
    """
    if not count:
        return np.zeros(0, np.int64)
    reader.budget.charge(INTEGER, count)
    top = read_integer(reader, largest, int(largest).bit_length())
    symbols = reader.symbols(count, _alphabet(top)).astype(np.int64)
    width, values = _widths(symbols)
    for bits in np.unique(width[width > 0]):
        which = width == bits
        values[which] += reader.bits(int(which.sum()), int(bits))
    if values.max() > largest:
        raise CodecError("the coded numbers are damaged: one is larger than it can be.")
    return values


def write_integer(writer: Any, value: int, bits: int = 32) -> None:
    """Write one number, as its length and its bits.

    Args:
        writer: Where to.
        value: The number, below 2**bits.
        bits: A bound that the reader knows too.
    """
    length = int(value).bit_length()
    writer.bits(np.array([length]), bits.bit_length())
    if length > 1:
        writer.bits(np.array([value - (1 << (length - 1))]), length - 1)


def read_integer(reader: Any, largest: int, bits: int = 32) -> int:
    """Read what `write_integer` wrote.

    Args:
        reader: Where from.
        largest: What it may be.
        bits: As it was written.

    Raises:
        CodecError: If it is larger.
    """
    length = int(reader.bits(1, bits.bit_length())[0])
    value = 0
    if length:
        value = 1 << (length - 1)
        if length > bits:
            raise CodecError("the coded numbers are damaged: one is larger than it can be.")
        value += int(reader.bits(1, length - 1)[0]) if length > 1 else 0
    if value > largest:
        raise CodecError("the coded numbers are damaged: one is larger than it can be.")
    return value

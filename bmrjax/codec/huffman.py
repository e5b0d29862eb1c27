"""Entropy coding by canonical Huffman codes, as in Federici, Ullrich and Welling (2017).

Each list of symbols brings the lengths of its code words, five bits a symbol of the alphabet; the words
follow from the lengths.
"""

import heapq
import itertools

import numpy as np

from bmrjax.codec.budget import DIGIT, SYMBOL, Budget
from bmrjax.codec.codec_error import CodecError

LENGTH_BITS = 5
LONGEST = 2**LENGTH_BITS - 1


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """Return the length of each symbol's code word.

    Args:
        counts: How often each symbol occurs; those that never do get no word, length 0.

    Example:
        >>> import numpy as np
        >>> code_lengths(np.array([5, 1, 0, 1, 2]))
        array([1, 3, 0, 3, 2])

    References:
        Huffman (1952).
    """
    lengths = np.zeros(len(counts), np.int64)
    used = np.flatnonzero(counts)
    if len(used) == 1:
        lengths[used] = 1
        return lengths
    weights = counts[used].astype(np.int64)
    while True:
        found = _lengths(weights)
        if max(found, default=0) <= LONGEST:
            lengths[used] = found
            return lengths
        # Flatter counts have shorter words.
        weights = weights // 2 + 1


def _lengths(weights: np.ndarray) -> list[int]:
    order = itertools.count()
    heap = [(int(w), next(order), [i]) for i, w in enumerate(weights)]
    heapq.heapify(heap)
    lengths = [0] * len(weights)
    while len(heap) > 1:
        first, _, some = heapq.heappop(heap)
        second, _, others = heapq.heappop(heap)
        for i in some + others:
            lengths[i] += 1
        heapq.heappush(heap, (first + second, next(order), some + others))
    return lengths


def code_words(lengths: np.ndarray) -> np.ndarray:
    """Return the canonical code words: numbered by length, then by symbol.

    Args:
        lengths: Of each symbol's word; 0 for none.

    Raises:
        CodecError: If no code has these lengths.

    Example:
        >>> import numpy as np
        >>> [f"{w:0{n}b}" for w, n in zip(code_words(np.array([1, 3, 3, 2])), (1, 3, 3, 2))]
        ['0', '110', '111', '10']
    """
    words = np.zeros(len(lengths), np.int64)
    word = before = 0
    for symbol in np.lexsort((np.arange(len(lengths)), lengths)):
        length = int(lengths[symbol])
        if not length:
            continue
        word <<= length - before
        if word >> length:
            raise CodecError("the coded numbers are damaged: no code has words of these lengths.")
        words[symbol], before = word, length
        word += 1
    return words


class HuffmanWriter:
    """Collect symbols; the counterpart of `ArithmeticWriter` for parity with the paper."""

    has_flags = False

    def __init__(self) -> None:
        self.spent = 0.0
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []

    def branch(self) -> "HuffmanWriter":
        """Return an empty writer of the same kind, to try something out."""
        return HuffmanWriter()

    def extend(self, other: "HuffmanWriter") -> None:
        """Append what another writer collected."""
        self._parts += other._parts
        self.spent += other.spent

    def bits(self, values: np.ndarray, width: int) -> None:
        """Write whole numbers of `width` bits each, as they are."""
        values = np.asarray(values, np.int64).ravel()
        self._put(values, np.full(values.size, width))

    def symbols(self, values: np.ndarray, size: int) -> None:
        """Write symbols of 0 … size - 1, after the lengths of their code words."""
        if size < 2 or not values.size:
            return
        lengths = code_lengths(np.bincount(values, minlength=size))
        self.bits(lengths, LENGTH_BITS)
        self._put(code_words(lengths)[values], lengths[values])

    def _put(self, words: np.ndarray, lengths: np.ndarray) -> None:
        self._parts.append((words, lengths))
        self.spent += float(lengths.sum())

    def finish(self) -> bytes:
        """Return the code."""
        if not self._parts:
            return b""
        words, lengths = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        ends = np.cumsum(lengths)
        found = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
        for bit in range(int(lengths.max(initial=0))):
            which = lengths > bit
            found[ends[which] - 1 - bit] = (words[which] >> bit) & 1
        return np.packbits(found).tobytes()


class HuffmanReader:
    """Read what a `HuffmanWriter` wrote.

    Args:
        code: Its bytes. All that is read takes some of their bits, which bounds it.
        budget: Pays for what the layouts make of it; by default everything may be.
    """

    has_flags = False

    def __init__(self, code: bytes, *, budget: Budget | None = None):
        self.spent = 0.0
        self.budget: Budget = Budget() if budget is None else budget
        self._bits = np.unpackbits(np.frombuffer(code, np.uint8))
        self._each = self._bits.tobytes()
        self._at = 0

    def _require(self, count: int) -> None:
        if count > len(self._bits) - self._at:
            raise CodecError("the coded numbers end too early.")

    def bits(self, count: int, width: int) -> np.ndarray:
        """Read `count` whole numbers of `width` bits."""
        self.budget.charge(DIGIT, count)
        self._require(count * width)
        found = self._bits[self._at : self._at + count * width].reshape(count, width)
        self._at += count * width
        self.spent += count * width
        return found.astype(np.int64) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))

    def symbols(self, count: int, size: int) -> np.ndarray:
        """Read `count` symbols of 0 … size - 1."""
        self.budget.charge(SYMBOL, count)
        if size < 2 or not count:
            return np.zeros(count, np.int64)
        # A word has a bit at least.
        self._require(count)
        lengths = self.bits(size, LENGTH_BITS)
        words = code_words(lengths)
        table = {
            (int(n), int(w)): s for s, (n, w) in enumerate(zip(lengths, words, strict=True)) if n
        }
        found = np.zeros(count, np.int64)
        bits, begin = self._each, self._at
        longest, at = int(lengths.max()), begin
        for i in range(count):
            word = 0
            for length in range(1, min(longest, len(bits) - at) + 1):
                word = 2 * word + bits[at + length - 1]
                if (length, word) in table:
                    found[i] = table[length, word]
                    at += length
                    break
            else:
                raise CodecError("the coded numbers are damaged: a code word is not in the table.")
        self._at = at
        self.spent += at - begin
        return found

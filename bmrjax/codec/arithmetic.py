"""Entropy coding by a range coder or by asymmetric numeral systems, with models that learn as they go.

Nothing is sent of a distribution: encoder and decoder count what has passed, and renew their model each
time another sixteenth has come in. All probabilities are sums and quotients of whole numbers in double
precision, which every machine rounds alike.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from constriction import stream  # pyright: ignore[reportAttributeAccessIssue]

from bmrjax.codec.budget import DIGIT, LETTER, MODEL, SYMBOL, Budget
from bmrjax.codec.codec_error import CodecError

# What each symbol counts before any has passed.
PRIOR_COUNT = 0.5
GROWTH = 16
WIDTH = 16
_WORD = np.dtype(">u4")


def _cuts(count: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of symbols that share a model."""
    start = 0
    while start < count:
        stop = min(count, start + 1 + start // GROWTH)
        yield start, stop
        start = stop


def _digits(width: int) -> list[int]:
    """Return the widths of the pieces that plain bits are coded in, the highest first."""
    return [width % WIDTH] * bool(width % WIDTH) + [WIDTH] * (width // WIDTH)


def _learned(counts: np.ndarray) -> np.ndarray:
    return counts / counts.sum()


class ArithmeticWriter:
    """Collect symbols and what they cost; `finish` codes them.

    Args:
        stack: Whether to use asymmetric numeral systems, which come out last in, first out.

    Attributes:
        spent: Bits so far, by the models' probabilities.
        has_flags: Whether it codes flags, each with a probability of its own; a `Bitmap` needs that.
    """

    has_flags = True

    def __init__(self, *, stack: bool = False):
        self.spent = 0.0
        self._stack = stack
        self._parts: list[tuple[np.ndarray, Any]] = []

    def branch(self) -> "ArithmeticWriter":
        """Return an empty writer of the same kind, to try something out."""
        return ArithmeticWriter(stack=self._stack)

    def extend(self, other: "ArithmeticWriter") -> None:
        """Append what another writer collected."""
        self._parts += other._parts
        self.spent += other.spent

    def bits(self, values: np.ndarray, width: int) -> None:
        """Write whole numbers of `width` bits each, as they are."""
        values = np.asarray(values, np.int64)
        self.spent += width * values.size
        left = width
        for piece in _digits(width):
            left -= piece
            digit = (values >> left) & ((1 << piece) - 1)
            self._parts.append((digit.astype(np.int32), 1 << piece))

    def symbols(self, values: np.ndarray, size: int) -> None:
        """Write symbols of 0 … size - 1, of a distribution that is learned."""
        values = np.ascontiguousarray(values, np.int32)
        if size < 2:
            return
        counts = np.full(size, PRIOR_COUNT)
        for start, stop in _cuts(values.size):
            part, chances = values[start:stop], _learned(counts)
            self._parts.append((part, chances))
            self.spent -= float(np.log2(chances[part]).sum())
            counts += np.bincount(part, minlength=size)

    def flags(self, values: np.ndarray, chances: np.ndarray) -> None:
        """Write truth values, each with its probability of being true."""
        values = np.ascontiguousarray(values, np.int32)
        if values.size:
            self._parts.append((values, ("flags", chances)))
            self.spent -= float(np.log2(np.where(values, chances, 1 - chances)).sum())

    def finish(self) -> bytes:
        """Return the code."""
        coder: Any
        if self._stack:
            coder = stream.stack.AnsCoder()
            for values, model in reversed(self._parts):
                coder.encode_reverse(values, *_model(model))
        else:
            coder = stream.queue.RangeEncoder()
            for values, model in self._parts:
                coder.encode(values, *_model(model))
        # Words with the highest byte first, so that what the last one does not need is zeros at its end.
        return coder.get_compressed().astype(_WORD).tobytes().rstrip(b"\0")


def _model(model: Any) -> tuple[Any, ...]:
    if isinstance(model, int):
        return (stream.model.Uniform(model),)
    if isinstance(model, tuple):
        return stream.model.Bernoulli(perfect=False), model[1]
    return (stream.model.Categorical(model, perfect=False),)


class ArithmeticReader:
    """Read what an `ArithmeticWriter` wrote; beyond the end there are zeros.

    Args:
        code: Its bytes.
        stack: As it was written.
        budget: Pays for what is read; by default everything may be.
    """

    has_flags = True

    def __init__(self, code: bytes, *, stack: bool = False, budget: Budget | None = None):
        self.spent = 0.0
        self.budget: Budget = Budget() if budget is None else budget
        code = code.rstrip(b"\0")
        words = np.frombuffer(code + b"\0" * (-len(code) % 4), _WORD).astype(np.uint32)
        kind = stream.stack.AnsCoder if stack else stream.queue.RangeDecoder
        try:
            self._coder: Any = kind(words)
        except (ValueError, AssertionError) as error:
            raise CodecError(f"the coded numbers are damaged: {error}") from None

    def _decode(self, *model: Any) -> np.ndarray:
        try:
            return self._coder.decode(*model)
        except (ValueError, AssertionError) as error:
            raise CodecError(f"the coded numbers are damaged: {error}") from None

    def bits(self, count: int, width: int) -> np.ndarray:
        """Read `count` whole numbers of `width` bits."""
        self.budget.charge(DIGIT, count, repeats=max(1, len(_digits(width))))
        found = np.zeros(count, np.int64)
        self.spent += width * count
        for piece in _digits(width):
            found = (found << piece) | self._decode(stream.model.Uniform(1 << piece), count)
        return found

    def symbols(self, count: int, size: int) -> np.ndarray:
        """Read `count` symbols of 0 … size - 1."""
        self.budget.charge(SYMBOL, count)
        if size < 2:
            return np.zeros(count, np.int32)
        models = sum(1 for _ in _cuts(count))
        self.budget.charge(MODEL, models)
        self.budget.charge(LETTER, size, repeats=models)
        found = np.zeros(count, np.int32)
        counts = np.full(size, PRIOR_COUNT)
        for start, stop in _cuts(count):
            chances = _learned(counts)
            model = stream.model.Categorical(chances, perfect=False)
            part = self._decode(model, stop - start)
            found[start:stop] = part
            self.spent -= float(np.log2(chances[part]).sum())
            counts += np.bincount(part, minlength=size)
        return found

    def flags(self, chances: np.ndarray) -> np.ndarray:
        """Read truth values."""
        if not chances.size:
            return np.zeros(0, bool)
        found = self._decode(stream.model.Bernoulli(perfect=False), chances) > 0
        self.spent -= float(np.log2(np.where(found, chances, 1 - chances)).sum())
        return found

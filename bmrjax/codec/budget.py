"""What reading a file may cost, bounded by its size before anything is allocated.

An entropy coder can put out numbers that take no bits at all, so the size of a file does not bound what
comes out of it. Each operation of the decoder has a price, in processor time and in memory, and is charged
before it runs. A file can afford a fixed amount and so much for each of its bytes. `encode` reads what it
wrote, adds up the same prices, and appends zeros to the few files that are shorter than they have to be:
networks of thousands of parameters per byte.
"""

import math
from dataclasses import dataclass

from bmrjax.codec.codec_error import CodecError

# What each file may cost, and what it may cost more for each byte. Below the documented limits of 50 ms,
# 64 MB and 4096 bytes per byte, for what is not charged: reading, the checksum, the interpreter.
FREE_NANOSECONDS, NANOSECONDS_PER_BYTE = 40_000_000, 50_000
FREE_MEMORY, MEMORY_PER_BYTE = 48_000_000, 3584


@dataclass(frozen=True)
class Price:
    """What one operation costs.

    The times were measured on one core of a slow machine (2.1 GHz).

    Attributes:
        nanoseconds: Processor time.
        memory: Bytes that are allocated, even if they are freed soon.
    """

    nanoseconds: float
    memory: float


# A character of the description, a value in it, what a list costs beside that, a module.
CHARACTER = Price(40, 70)
NODE = Price(1500, 300)
LIST = Price(3000, 300)
MODULE = Price(14_000, 2000)
# An array, and running statistics that are held apart.
ARRAY = Price(100_000, 6000)
STATE = Price(80_000, 6000)
# A module, and an object of Flax in each of its places, if there are running statistics: Equinox then walks
# through the network eight times.
STATEFUL_MODULE, STATEFUL_OBJECT = Price(8000, 1000), Price(60_000, 3000)
# A number of an array, zero or not.
NUMBER = Price(4, 17)
# An entry of a sparse array: its place and its value; one that is drawn costs more.
ENTRY = Price(60, 90)
DRAWN = Price(150, 120)
# A whole number, of those that `integers` codes.
INTEGER = Price(60, 120)
# A digit of 16 bits or fewer.
DIGIT = Price(20, 24)
# A symbol; a model of symbols; one symbol in the alphabet of a model.
SYMBOL = Price(35, 12)
MODEL = Price(8000, 0)
LETTER = Price(4, 60)
# A line of a bitmap, a place across it, and a place whose entry is coded.
LINE = Price(40_000, 0)
ACROSS = Price(15, 0)
FLAG = Price(50, 0)


class Budget:
    """Add up what reading a file costs, and refuse what its size cannot pay for.

    Args:
        size: Bytes of the file; None to add up only.
    """

    def __init__(self, size: int | None = None):
        self._size = size
        self._nanoseconds = self._memory = 0.0
        self._most_nanoseconds = self._most_memory = math.inf
        if size is not None:
            self._most_nanoseconds = FREE_NANOSECONDS + NANOSECONDS_PER_BYTE * size
            self._most_memory = FREE_MEMORY + MEMORY_PER_BYTE * size

    def charge(self, price: Price, count: int = 1, *, repeats: int = 1) -> None:
        """Pay for an operation that is about to run.

        Args:
            price: Of the operation.
            count: How often it runs.
            repeats: How often that is done again in the same memory.

        Raises:
            CodecError: If the file is too short for it.

        Example:
            >>> budget = Budget(100)
            >>> budget.charge(NUMBER, 1000)
            >>> budget.charge(NUMBER, 2**40)
            Traceback (most recent call last):
            bmrjax.codec.codec_error.CodecError: the file declares more than its 100 bytes can pay for...
        """
        self._nanoseconds += price.nanoseconds * count * repeats
        self._memory += price.memory * count
        if self._nanoseconds > self._most_nanoseconds or self._memory > self._most_memory:
            raise CodecError(
                f"the file declares more than its {self._size:,} bytes can pay for: reading a file takes at "
                f"most {FREE_NANOSECONDS // 10**6} ms and {NANOSECONDS_PER_BYTE // 1000} µs per byte, and "
                f"{FREE_MEMORY // 10**6} MB and {MEMORY_PER_BYTE} bytes per byte."
            )

    def least_size(self) -> int:
        """Return the bytes that a file must have for what was charged.

        Example:
            >>> budget = Budget()
            >>> budget.charge(Price(nanoseconds=41e6, memory=0))
            >>> budget.least_size()
            20
        """
        time = (self._nanoseconds - FREE_NANOSECONDS) / NANOSECONDS_PER_BYTE
        memory = (self._memory - FREE_MEMORY) / MEMORY_PER_BYTE
        return max(0, math.ceil(time), math.ceil(memory))

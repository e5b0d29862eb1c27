"""Minimal random codes: a sample of the posterior, sent as the numbers of random candidates."""

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from bmrjax.codec.budget import DRAWN
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.integers import read_integer, read_integers, write_integer, write_integers
from bmrjax.codec.quantise import STEP_BITS, check_positive, step_below, step_of

# Candidates have one of so many standard normal values, the quantiles in the middle of equal parts.
QUANTILE_BITS = 12
MOST_BITS = 20
MOST_WEIGHTS = 2**12
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@functools.cache
def _quantiles() -> np.ndarray:
    size = 2**QUANTILE_BITS
    exact = [NormalDist().inv_cdf((i + 0.5) / size) for i in range(size)]
    # Rounded, so that machines whose logarithms differ in the last bit agree.
    return np.rint(np.array(exact) * 2**16) / 2**16


def _mixed(z: np.ndarray) -> np.ndarray:
    """Return 64 bits that look random, for each of several counters (SplitMix64)."""
    with np.errstate(over="ignore"):
        z = (z + _GOLDEN).astype(np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def candidates(seed: int, number: np.ndarray, place: np.ndarray | int) -> np.ndarray:
    """Return standard normal numbers that are a function of three counters, on every machine the same.

    Args:
        seed: Of the array.
        number: Of the candidate.
        place: Of the weight in the array.

    Example:
        >>> import numpy as np
        >>> values = candidates(0, np.arange(4096), 3)
        >>> bool(abs(values.mean()) < 0.05), bool(abs(values.std() - 1) < 0.05)
        (True, True)
    """
    mixed = _mixed(np.asarray(place, np.uint64) ^ _mixed(np.asarray(seed, np.uint64)))
    mixed = _mixed(np.asarray(number, np.uint64) ^ mixed)
    return _quantiles()[(mixed >> np.uint64(64 - QUANTILE_BITS)).astype(np.int64)]


@dataclass(frozen=True)
class RelativeEntropy:
    """Code a sample of the posterior by the numbers of random candidates, about KL(q, p) bits in all.

    Encoder and decoder draw the same candidates for a block of weights from the coding distribution, a normal
    with the width of the array's own weights. The encoder picks one with probability proportional to the
    posterior over the coding density, and sends its number. A block takes weights until their divergence is
    the budget. Zeros stay zeros and are sent by the layout. What is decoded is one draw from the
    posterior, not its mean.

    Give it to `encode` as the quantiser. Arrays without a posterior are quantised by `Uniform`.

    Args:
        bits: Of a block's number: 2**bits candidates.
        spare_bits: How many of them are beyond the divergence of the block; more follow the posterior more
            closely.
        seed: Of the candidates, and of the encoder's choice.

    Raises:
        ValueError: For bits that are too few or too many.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> scales = {f"layers.{i}.weight": 0.1 for i in (0, 1)}
        >>> data = codec.encode(network, posterior_scale=scales, quantiser=codec.RelativeEntropy())
        >>> gap = codec.decode(data).layers[0].weight - network.layers[0].weight
        >>> bool(0.05 < gap.std() < 0.2)
        True

    References:
        Havasi, Peharz and Hernández-Lobato (2019), Algorithm 1.
    """

    bits: int = 14
    spare_bits: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"RelativeEntropy: bits must be 1 to {MOST_BITS}, got {self.bits}.")
        if not 0 <= self.spare_bits < self.bits:
            raise ValueError(
                f"RelativeEntropy: spare_bits must be 0 to less than bits, got {self.spare_bits}."
            )
        if not 0 <= self.seed < 2**16:
            raise ValueError(f"RelativeEntropy: seed must be 0 to 65535, got {self.seed}.")

    def code(self, weights: np.ndarray, scales: np.ndarray, *, part: int) -> "Drawn":
        """Choose candidates.

        Args:
            weights: Posterior means of the weights that are there.
            scales: Their posterior standard deviations.
            part: Number of the array in the network.
        """
        weights = weights.astype(np.float64)
        width = float(np.sqrt(np.mean(weights**2 + np.square(scales)))) if weights.size else 1.0
        check_positive("RelativeEntropy: a posterior scale", float(scales.min(initial=1.0)))
        index = step_below(width)
        mean, scale = weights / step_of(index), scales / step_of(index)
        divergence = (mean**2 + scale**2 - 1) / 2 - np.log(scale)
        ends = _blocks(divergence / math.log(2), self.bits - self.spare_bits)
        rng = np.random.default_rng(self.seed)
        numbers = np.zeros(len(ends), np.int64)
        starts = np.r_[0, ends[:-1]] if len(ends) else ends
        every = np.arange(2**self.bits)
        for i, (start, stop) in enumerate(zip(starts, ends, strict=True)):
            score = rng.gumbel(size=2**self.bits)
            for j in range(start, stop):
                value = candidates(self.seed + (part << 16), every, j)
                score -= np.square((value - mean[j]) / scale[j]) / 2 - value**2 / 2
            numbers[i] = score.argmax()
        return Drawn(index, self.bits, self.seed, np.diff(ends, prepend=0), numbers)


def _blocks(bits: np.ndarray, budget: float) -> np.ndarray:
    """Return where blocks end that have at most the budget, or one weight."""
    ends, spent = [], 0.0
    for i, each in enumerate(bits.tolist()):
        full = spent + each > budget or i - (ends[-1] if ends else 0) >= MOST_WEIGHTS
        if full and i > (ends[-1] if ends else 0):
            ends.append(i)
            spent = 0.0
        spent += each
    if len(bits):
        ends.append(len(bits))
    return np.array(ends, np.int64)


@dataclass(frozen=True)
class Drawn:
    """Weights that are random candidates.

    Attributes:
        index: Number of the coding distribution's standard deviation; see `quantise.step_of`.
        bits: Of a candidate's number.
        seed: Of the candidates.
        sizes: How many weights each block has.
        numbers: The candidate of each block.
    """

    index: int
    bits: int
    seed: int
    sizes: np.ndarray
    numbers: np.ndarray

    def values(self, *, part: int) -> np.ndarray:
        """Return the weights, in float32.

        Args:
            part: Number of the array in the network.
        """
        number = np.repeat(self.numbers, self.sizes)
        seed = self.seed + (part << 16)
        return (candidates(seed, number, np.arange(number.size)) * step_of(self.index)).astype(
            np.float32
        )

    def write(self, writer: Any) -> None:
        """Write what the decoder needs beside the positions."""
        for value, width in ((self.index, STEP_BITS), (self.bits, 5), (self.seed, 16)):
            writer.bits(np.array([value]), width)
        write_integer(writer, len(self.sizes))
        write_integers(writer, self.sizes - 1, MOST_WEIGHTS)
        writer.bits(self.numbers, self.bits)


def read_drawn(reader: Any, count: int) -> Drawn:
    """Read what `Drawn.write` wrote.

    Args:
        reader: Where from.
        count: How many weights there are.

    Raises:
        CodecError: If the blocks do not have so many.
    """
    index, bits, seed = (int(reader.bits(1, width)[0]) for width in (STEP_BITS, 5, 16))
    reader.budget.charge(DRAWN, count)
    blocks = read_integer(reader, count)
    sizes = read_integers(reader, blocks, MOST_WEIGHTS) + 1
    if sizes.sum() != count or not 1 <= bits <= MOST_BITS:
        raise CodecError("the coded numbers are damaged: blocks do not add up.")
    return Drawn(index, bits, seed, sizes, reader.bits(blocks, bits))

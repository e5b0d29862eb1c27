"""From real numbers to few: grids, k-means, and a mixture that was learned.

A quantiser turns the arrays of a network into codes, whole numbers of which 0 is a weight that is not there,
and levels, what each code stands for.
"""

import abc
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bmrjax.codec.codec_error import CodecError

# A grid's step is one of eight to the octave, from 2**-96 on: ten bits say which.
STEP_BITS = 10
_OCTAVE = 8
_LOWEST = -96
_MANTISSAS = (1.0, 1.09375, 1.1875, 1.296875, 1.4140625, 1.546875, 1.6875, 1.8359375)
# A code is at most this far from zero.
LARGEST_CODE = 2**15 - 1


def step_of(index: int) -> float:
    """Return the step of a grid by its number.

    Example:
        >>> step_of(768), step_of(776)
        (1.0, 2.0)
    """
    return math.ldexp(_MANTISSAS[index % _OCTAVE], index // _OCTAVE + _LOWEST)


def step_below(value: float) -> int:
    """Return the number of the largest step that is not above a value.

    Example:
        >>> step_of(step_below(1.5))
        1.4140625
    """
    steps = np.array([step_of(i) for i in range(2**STEP_BITS)])
    return int(np.clip(np.searchsorted(steps, value, side="right") - 1, 0, len(steps) - 1))


@dataclass(frozen=True)
class Grid:
    """Multiples of a step: the levels of a uniform quantiser.

    Args:
        index: Which step; see `step_of`.
    """

    index: int

    def values(self, codes: np.ndarray) -> np.ndarray:
        """Return what the codes stand for."""
        return (codes * step_of(self.index)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Codebook:
    """A list of levels; code k is level k - 1, and 0 is zero.

    Args:
        levels: What the codes from 1 on stand for.
    """

    levels: np.ndarray

    def values(self, codes: np.ndarray) -> np.ndarray:
        """Return what the codes stand for."""
        return np.r_[np.float32(0), self.levels.astype(np.float32)][codes]


@dataclass(frozen=True)
class Quantised:
    """An array in codes.

    Attributes:
        codes: Whole numbers, shaped as the array; 0 for what is not there.
        levels: What they stand for.
    """

    codes: np.ndarray
    levels: Grid | Codebook

    @property
    def values(self) -> np.ndarray:
        """The array, in float32."""
        return self.levels.values(self.codes)


class Quantiser(abc.ABC):
    """Turns the arrays of a network into codes and levels.

    Example:
        A quantiser of one's own: signs times the mean size of an array.

        >>> import numpy as np
        >>> from bmrjax import codec
        >>> class Signs(codec.Quantiser):
        ...     def __call__(self, arrays, scales):
        ...         found = {}
        ...         for name, array in arrays.items():
        ...             size = abs(array[array != 0]).mean()
        ...             found.update(codec.KMeans(2)({name: np.sign(array) * size}, scales))
        ...         return found
        >>> Signs()({"w": np.array([1.0, -0.5, 0.0], np.float32)}, {})["w"].values
        array([ 0.75, -0.75,  0.  ], dtype=float32)
    """

    @abc.abstractmethod
    def __call__(
        self, arrays: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> dict[str, Quantised]:
        """Quantise arrays; zeros stay zeros.

        Args:
            arrays: Name to array, in float32.
            scales: Name to the posterior standard deviations of the array, where there is a posterior.

        Returns:
            Name to codes and levels.
        """


def check_positive(name: str, value: float) -> None:
    """Refuse a setting that is not a positive number."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, got {value}.")


@dataclass(frozen=True)
class Uniform(Quantiser):
    """Multiples of a step that follows from the error that is allowed.

    Args:
        tolerance: Largest error of a weight, relative to the root mean square of its array's weights that are
            not zero.

    Example:
        >>> import numpy as np
        >>> from bmrjax import codec
        >>> codec.Uniform(0.1)({"w": np.array([1.0, -0.4, 0.0], np.float32)}, {})["w"].codes
        array([ 7, -3,  0])
    """

    tolerance: float = 0.02

    def __post_init__(self) -> None:
        check_positive("Uniform: tolerance", self.tolerance)

    def __call__(
        self, arrays: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> dict[str, Quantised]:
        """See `Quantiser`."""
        del scales
        found = {}
        for name, array in arrays.items():
            size = root_mean_square(array[array != 0])
            found[name] = on_grid(array, step_below(2 * self.tolerance * size))
        return found


def root_mean_square(values: np.ndarray) -> float:
    """Return the root mean square, 1 for no values at all."""
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else 1.0


def on_grid(array: np.ndarray, index: int) -> Quantised:
    """Round to the nearest point of a grid, one with larger steps if it had too many."""
    largest = float(np.abs(array).max(initial=0.0))
    index = max(index, step_below(largest / LARGEST_CODE) + 1)
    if index >= 2**STEP_BITS:
        raise CodecError(f"encode: a weight of {largest:.3g} is too large for a grid.")
    if 0 < largest < step_of(0) / 2:
        warnings.warn(
            f"encode: an array has no weight beyond {largest:.3g}, which is below the finest grid "
            f"({step_of(0):.2g}), and becomes zero. If that matters, as before a normalisation, multiply it.",
            stacklevel=3,
        )
    codes = np.rint(array.astype(np.float64) / step_of(index)).astype(np.int64)
    return Quantised(codes, Grid(index))


@dataclass(frozen=True)
class KMeans(Quantiser):
    """The means of clusters of the weights that are not zero, in bfloat16.

    Args:
        clusters: How many; the paper has 64 for weights that were trained without a mixture.
        per_array: Whether each array has its own.
        iterations: Rounds at most.

    Example:
        >>> import numpy as np
        >>> from bmrjax import codec
        >>> codec.KMeans(2)({"w": np.array([1.0, -0.5, 0.0, 1.0], np.float32)}, {})["w"].values
        array([ 1. , -0.5,  0. ,  1. ], dtype=float32)

    References:
        Lloyd (1982); Han, Mao and Dally (2016); Federici, Ullrich and Welling (2017), Appendix B.1.
    """

    clusters: int = 64
    per_array: bool = False
    iterations: int = 100

    def __post_init__(self) -> None:
        if not 1 <= self.clusters <= LARGEST_CODE:
            raise ValueError(f"KMeans: clusters must be 1 to {LARGEST_CODE}, got {self.clusters}.")

    def __call__(
        self, arrays: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> dict[str, Quantised]:
        """See `Quantiser`."""
        del scales
        if self.per_array:
            books = {name: self._book(array[array != 0]) for name, array in arrays.items()}
        else:
            present = [array[array != 0].ravel() for array in arrays.values()]
            shared = self._book(np.concatenate([np.zeros(0, np.float32), *present]))
            books = dict.fromkeys(arrays, shared)
        return {
            name: Quantised(nearest(array, books[name].levels), books[name])
            for name, array in arrays.items()
        }

    def _book(self, values: np.ndarray) -> Codebook:
        ordered = np.sort(values.astype(np.float64))
        if not ordered.size:
            return Codebook(np.zeros(0, np.float32))
        unique = np.unique(ordered)
        count = min(self.clusters, unique.size)
        centres = unique[((np.arange(count) + 0.5) * unique.size / count).astype(int)]
        sums = np.r_[0.0, np.cumsum(ordered)]
        for _ in range(self.iterations):
            # Along a line, a cluster is a stretch between midpoints.
            ends = np.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
            ends = np.r_[0, ends, ordered.size]
            sizes = np.diff(ends)
            means = np.where(sizes > 0, np.diff(sums[ends]) / np.maximum(sizes, 1), centres)
            if np.array_equal(means, centres):
                break
            centres = means
        return Codebook(np.unique(to_bfloat16(centres.astype(np.float32))))


def nearest(array: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the codes of the nearest levels; zeros are 0."""
    order = np.argsort(levels)
    ordered = levels[order]
    if not len(levels):
        return np.zeros(array.shape, np.int64)
    which = np.searchsorted((ordered[1:] + ordered[:-1]) / 2, array)
    return np.where(array != 0, order[which] + 1, 0)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 numbers to those that have a zero in all lower 16 bits."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


@dataclass(frozen=True, eq=False)
class Mixture(Quantiser):
    """The means of the components of a mixture that was learned, as by soft weight sharing.

    Args:
        means: Of the components, in any order; a weight of a component whose mean is zero goes.
        assignments: Name of an array to the number of each weight's component, shaped as the array. Without
            them, each weight that is not zero has the component with the nearest mean.

    Example:
        >>> import numpy as np
        >>> from bmrjax import codec
        >>> mixture = codec.Mixture(np.array([0.0, 0.5]), {"w": np.array([1, 0])})
        >>> mixture({"w": np.array([0.4, 0.1], np.float32)}, {})["w"].values
        array([0.5, 0. ], dtype=float32)

    References:
        Ullrich, Meeds and Welling (2017); Federici, Ullrich and Welling (2017), section 3.
    """

    means: np.ndarray
    assignments: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        means = np.asarray(self.means)
        if means.ndim != 1 or not means.size or not np.isfinite(means).all():
            raise ValueError(
                f"Mixture: means must be a vector of finite numbers, got shape {means.shape}."
            )

    def __call__(
        self, arrays: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> dict[str, Quantised]:
        """See `Quantiser`."""
        del scales
        means = np.asarray(self.means, np.float32)
        book = Codebook(means[means != 0])
        # The code of each component, 0 for those of mean zero.
        code = np.where(means != 0, np.cumsum(means != 0), 0)
        found = {}
        for name, array in arrays.items():
            given = self.assignments.get(name)
            which = nearest(array, means) - 1 if given is None else np.asarray(given)
            if which.shape != array.shape or (which >= len(means)).any():
                raise ValueError(
                    f"Mixture: the assignments of '{name}' have shape {which.shape} and components up "
                    f"to {which.max(initial=0)}; expected {array.shape} and fewer than {len(means)}."
                )
            codes = np.where((which >= 0) & (array != 0), code[which], 0)
            found[name] = Quantised(codes, book)
        return found

"""An array that is uncertain: what the interpreter carries where a program has numbers."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.infer.propagate.quadrature import MAX_VARIABLES, MeanAndScale, expected

# How many sources a value may be a function of.
MAX_SOURCES = MAX_VARIABLES

Move = Callable[[Array], Array]


class NotNormalError(TypeError):
    """What is true or false, or an integer, cannot count as a normal variable."""


class Uncertain:
    """An array of elements with a mean and a variance each.

    Either a *source*, which counts as independent normals, or an elementwise function of up to three sources:
    ``x * sigmoid(x)`` is one function of x, never a product of two variables, and a gate
    ``n + z * (h - n)`` is one function of z, h and n.

    Args:
        mean: Mean an element.
        variance: Variance an element.
        distinct: Whether no two elements are the same variable, so that a sum over them may add their
            variances. So are weights; a bias that was copied for every data point is not.
        moved_from: The array that this one holds elements of, with the function that picked them; samples
            come from there.
    """

    sources: "tuple[Uncertain, ...]"
    is_normal: bool = True
    of_squares: bool = False  # whether it is the logarithm of a sum of squares
    drawn: Any = None
    linear_in: frozenset[int]
    multilinear_in: frozenset[int]

    def __init__(
        self,
        mean: Any,
        variance: Any,
        *,
        distinct: bool = False,
        moved_from: "tuple[Uncertain, Move] | None" = None,
    ):
        self.mean: Any = mean
        self.variance: Any = variance
        self.distinct: bool = distinct
        self.moved_from = moved_from
        self.sources = (self,)
        self.linear_in = self.multilinear_in = frozenset([id(self)])
        self._moves: dict[Hashable, Uncertain] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.sources[0].mean.shape

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.mean.dtype

    def at(self, values: dict[int, Any]) -> Any:
        """Return this array where the sources have `values`, by identity; what is found joins them."""
        return values[id(self)]

    @property
    def as_source(self) -> "Uncertain":
        """A source with the moments of this array, which forgets what it is a function of."""
        return self

    def moved(self, move: Move, name: Hashable, *, copies: bool) -> "Uncertain":
        """Return an array of this one's elements.

        Args:
            move: From an array of this shape to one of the new shape.
            name: Tells it from other functions. The same elements picked twice are one variable.
            copies: Whether an element may occur more than once; each then has samples of its own.
        """
        if name not in self._moves:
            found = Uncertain(
                move(self.mean),
                move(self.variance),
                distinct=self.distinct and not copies,
                moved_from=None if copies else (self, move),
            )
            found.of_squares = self.of_squares
            self._moves[name] = found
        return self._moves[name]


class FunctionOf(Uncertain):
    """An elementwise function of sources: an operation on functions of them, and on plain arrays.

    Args:
        operation: An elementwise operation.
        inputs: Its arguments, uncertain ones of one shape.
        dtype: Of its result.
        moments: Mean and variance where they are known; else by quadrature, when asked for.
        is_normal: Whether the values are normal, as those of an affine function are.
        is_square: Whether it is the square, or a higher even power, of something.
        linear_in: Sources (by identity) in which the function is jointly affine, whatever the others are.
        multilinear_in: Sources in which it is affine while the others stay: those of `linear_in`, and more.
    """

    def __init__(
        self,
        operation: Callable[..., Any],
        inputs: Sequence[Any],
        dtype: Any,
        moments: MeanAndScale | None = None,
        *,
        is_normal: bool = False,
        is_square: bool = False,
        linear_in: frozenset[int] = frozenset(),
        multilinear_in: frozenset[int] = frozenset(),
    ):
        self.operation: Callable[..., Any] = operation
        self.inputs: tuple[Any, ...] = tuple(inputs)
        self._dtype = dtype
        self.sources = sources_of(inputs)
        self.linear_in, self.multilinear_in = linear_in, multilinear_in
        self.is_normal = is_normal
        self.is_square: bool = is_square
        self.distinct: bool = False
        self.moved_from, self._moves = None, {}
        if moments is not None:
            self.__dict__["_moments"] = moments

    @cached_property
    def _moments(self) -> MeanAndScale:
        straight, crossed = (
            [i for i, s in enumerate(self.sources) if id(s) in known]
            for known in (self.linear_in, self.multilinear_in)
        )
        means, scales = zip(*((s.mean, root_of(s.variance)) for s in self.sources), strict=True)
        found = expected(self._function, means, scales, straight, crossed)
        if not self._is_number:
            return found
        return found[0].astype(self._dtype), found[1].astype(self._dtype)

    @property
    def has_moments(self) -> bool:
        """Whether mean and variance are known, so that nothing is evaluated at nodes for them."""
        return "_moments" in self.__dict__

    def _function(self, *values: Any) -> Any:
        return self.at({id(s): v for s, v in zip(self.sources, values, strict=True)})

    @property
    def _is_number(self) -> bool:
        return jnp.issubdtype(self._dtype, jnp.floating)

    @property
    def mean(self) -> Float[Array, "..."]:  # type: ignore[override]
        """Mean an element."""
        return self._moments[0]

    @property
    def variance(self) -> Float[Array, "..."]:  # type: ignore[override]
        """Variance an element."""
        return self._moments[1]

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self._dtype

    def at(self, values: dict[int, Any]) -> Any:
        """See `Uncertain`."""
        if id(self) not in values:
            inputs = [v.at(values) if isinstance(v, Uncertain) else v for v in self.inputs]
            values[id(self)] = self.operation(*inputs)
        return values[id(self)]

    @cached_property
    def as_source(self) -> Uncertain:
        """See `Uncertain`."""
        if not self._is_number:
            raise NotNormalError
        return Uncertain(self.mean, self.variance, moved_from=(self, lambda x: x))

    def moved(self, move: Move, name: Hashable, *, copies: bool) -> Uncertain:
        """See `Uncertain`; what is not normal stays the function of the moved sources that it was."""
        if name in self._moves:
            return self._moves[name]
        if self.is_normal:
            return super().moved(move, name, copies=copies)
        news = {id(s): id(s.moved(move, name, copies=copies)) for s in self.sources}

        def one(value: Any) -> Any:
            if isinstance(value, Uncertain):
                return value.moved(move, name, copies=copies)
            return move(value) if jnp.shape(value) == self.shape else value

        self._moves[name] = FunctionOf(
            self.operation,
            [one(v) for v in self.inputs],
            self._dtype,
            (move(self.mean), move(self.variance)),
            is_square=self.is_square,
            linear_in=frozenset(news[i] for i in self.linear_in),
            multilinear_in=frozenset(news[i] for i in self.multilinear_in),
        )
        return self._moves[name]


def sources_of(values: Sequence[Any]) -> tuple[Uncertain, ...]:
    """Return the sources of all that is uncertain among these, each once."""
    found = {id(s): s for v in values if isinstance(v, Uncertain) for s in v.sources}
    return tuple(found.values())


class GammaVariable:
    """An array of independent gamma variables: the precision of a likelihood.

    It may be reshaped and broadcast; anything else samples it, once for all its uses.

    Args:
        concentration: Shape of the gamma distribution an element.
        rate: Its rate.
        moved_from: The variable that this one holds the elements of, with the function that moved them.
    """

    drawn: Any = None

    def __init__(
        self,
        concentration: Float[Array, "..."],
        rate: Float[Array, "..."],
        moved_from: "tuple[GammaVariable, Callable[[Array], Array]] | None" = None,
    ):
        self.concentration: Array = concentration
        self.rate: Array = rate
        self.moved_from = moved_from

    @property
    def is_drawn(self) -> bool:
        """Whether something has sampled it, or what it was moved from."""
        if self.moved_from is None:
            return self.drawn is not None
        return self.moved_from[0].is_drawn

    def draw(self, key: Array) -> Array:
        """Return its sample, the same one at every call; the key counts the first time."""
        if self.moved_from is not None:
            source, move = self.moved_from
            return move(source.draw(key))
        if self.drawn is None:
            drawn = jax.random.gamma(key, self.concentration, dtype=self.dtype)
            self.drawn = drawn / self.rate
        return self.drawn

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.concentration.shape

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.concentration.dtype

    @property
    def mean(self) -> Float[Array, "..."]:
        """Mean an element."""
        return self.concentration / self.rate


def root_of(variance: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the square root, with a gradient of zero at zero."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)

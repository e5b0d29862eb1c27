"""An array that is uncertain: what the interpreter carries where a program has numbers."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.infer.propagate.quadrature import MAX_VARIABLES, Moments, integrate

# How many sources a value may be a function of.
MAX_SOURCES = MAX_VARIABLES


class Uncertain:
    """An array of elements with a mean and a variance each.

    Either a *source*, which counts as independent normals, or an elementwise function of up to three sources:
    ``x * sigmoid(x)`` is one function of x, never a product of two variables, and a gate
    ``n + z * (h - n)`` is one function of z, h and n.

    Args:
        mean: Mean an element.
        variance: Variance an element.
        distinct: Whether no two elements are the same variable, so that a sum over them may add their
            variances. So are weights; a bias that was copied for every datum is not.
    """

    sources: "tuple[Uncertain, ...]"
    function: Callable[..., Any] | None = None
    is_normal: bool = True
    drawn: Any = None
    linear_in: frozenset[int]
    multilinear_in: frozenset[int]

    def __init__(self, mean: Any, variance: Any, *, distinct: bool = False):
        self.mean, self.variance = mean, variance
        self.distinct = distinct
        self.sources = (self,)
        self.linear_in = self.multilinear_in = frozenset([id(self)])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.sources[0].mean.shape

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.sources[0].mean.dtype

    def at(self, values: dict[int, Any]) -> Any:
        """Return this array where the sources have `values`, by identity."""
        if self.function is None:
            return values[id(self)]
        return self.function(*(values[id(s)] for s in self.sources))

    @cached_property
    def as_source(self) -> "Uncertain":
        """A source with the moments of this array, which forgets what it is a function of."""
        return self if self.function is None else Uncertain(self.mean, self.variance)


class FunctionOf(Uncertain):
    """An elementwise function of sources.

    Args:
        sources: The sources, all of one shape.
        function: From their values to values of the same shape.
        moments: Mean and variance where they are known; else by quadrature, when asked for.
        is_normal: Whether the values are normal, as those of an affine function are.
        linear_in: Sources (by identity) in which the function is jointly affine, whatever the others are.
        multilinear_in: Sources in which it is affine while the others stay: those of `linear_in`, and more.
    """

    def __init__(
        self,
        sources: Sequence[Uncertain],
        function: Callable[..., Any],
        moments: Moments | None = None,
        *,
        is_normal: bool = False,
        linear_in: frozenset[int] = frozenset(),
        multilinear_in: frozenset[int] = frozenset(),
    ):
        self.sources, self.function = tuple(sources), function
        self.linear_in, self.multilinear_in = linear_in, multilinear_in
        self.is_normal, self.distinct = is_normal, False
        if moments is not None:
            self.__dict__["_moments"] = moments

    @cached_property
    def _moments(self) -> Moments:
        assert self.function is not None
        straight, crossed = (
            [i for i, s in enumerate(self.sources) if id(s) in known]
            for known in (self.linear_in, self.multilinear_in)
        )
        means, scales = zip(*((s.mean, root_of(s.variance)) for s in self.sources), strict=True)
        return integrate(self.function, means, scales, straight, crossed)

    @property
    def mean(self) -> Float[Array, "..."]:  # type: ignore[override]
        """Mean an element."""
        return self._moments[0]

    @property
    def variance(self) -> Float[Array, "..."]:  # type: ignore[override]
        """Variance an element."""
        return self._moments[1]


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
        self.concentration, self.rate = concentration, rate
        self.moved_from = moved_from

    @property
    def is_drawn(self) -> bool:
        """Whether something has sampled it, or what it was moved from."""
        if self.moved_from is None:
            return self.drawn is not None
        return self.moved_from[0].is_drawn

    def draw(self, key: Array) -> Array:
        """Return its sample, the same one however often it is asked for; the key counts the first time."""
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

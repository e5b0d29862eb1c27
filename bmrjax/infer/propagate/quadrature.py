"""Mean and variance of an elementwise function of normals, and their slopes, in one pass over nodes."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

MeanAndScale = tuple[Float[Array, "..."], Float[Array, "..."]]

# Nodes a variable, and the last one's distance, by how many variables there are.
_NODES = {1: (21, 5.5), 2: (9, 4.4), 3: (5, 2.9)}
MAX_VARIABLES = max(_NODES)
_TWO = np.array([-1.0, 1.0]), np.array([0.5, 0.5])
# So many nodes are written out instead of looped over.
_FEW = 4


def expected(
    function: Callable[..., Any],
    means: Sequence[Float[Array, "..."]],
    scales: Sequence[Float[Array, "..."]],
    straight: Sequence[int] = (),
    crossed: Sequence[int] = (),
) -> MeanAndScale:
    """Return mean and variance of a function of independent normal variables, an element at a time.

    By the trapezoidal rule, which on a normal density converges as fast as Gauss-Hermite's for
    polynomials, and much faster for functions that saturate. What the function is affine in needs no
    nodes: given the others, its mean is the function of the means, and its variance the sum over
    squared slopes. What it is affine in while the others stay, as in each factor of a product, has a
    second moment that is quadratic there, and two nodes give that exactly.

    The sums that the derivatives need are taken in the same pass, so that a gradient evaluates the
    function no more often than the value does, and holds no node's values.

    Args:
        function: From arrays of one shape to one of that shape, elementwise.
        means: Mean of each variable.
        scales: Its standard deviation.
        straight: Variables, by position, in which the function is jointly affine.
        crossed: Variables in which it is affine while the others stay.
    """
    shape, dtype = means[0].shape, means[0].dtype
    # What the function knows besides may have a gradient, or be of an outer loop: it becomes an argument.
    closed = jax.make_jaxpr(function)(*means)
    known = [jnp.asarray(k) for k in closed.consts]
    one_for_one = all(
        k.shape == shape and (k.dtype == dtype or not jnp.issubdtype(k.dtype, jnp.floating))
        for k in known
    )
    curved = [i for i in range(len(means)) if i not in straight]
    count = len(means)

    def evaluate(values: Sequence[Array], others: Sequence[Array]) -> Array:
        held = jec.ClosedJaxpr(closed.jaxpr, others)
        return jec.jaxpr_as_fun(held)(*values)[0].astype(dtype)

    def given(point: Any, *inputs: Array) -> MeanAndScale:
        """Mean and variance over the straight variables, where the curved ones lie at a node."""
        # In a row, so that a transposed array is put in order once, and not read across at every node.
        inputs = tuple(x.reshape(shape) if one_for_one else x for x in inputs)
        values, widths, others = (
            list(inputs[:count]),
            inputs[count : 2 * count],
            inputs[2 * count :],
        )
        for k, i in enumerate(curved):
            values[i] = values[i] + widths[i] * point[k]
        centre = evaluate(values, others)
        spread = jnp.zeros_like(centre)
        for i in straight:
            moved = [v + widths[i] if i == j else v for j, v in enumerate(values)]
            spread = spread + jnp.square(evaluate(moved, others) - centre)
        return (centre.ravel(), spread.ravel()) if one_for_one else (centre, spread)

    inputs = (*means, *scales, *known)
    if one_for_one:
        inputs = tuple(x.ravel() for x in inputs)
    if not curved:
        mean, variance = given((), *inputs)
    elif one_for_one:
        mean, variance = _integral(given, _grid(tuple(i in crossed for i in curved)), inputs)
    else:
        mean, variance = _moments(given, _grid(tuple(i in crossed for i in curved)), inputs)
    return mean.reshape(shape), variance.reshape(shape)


class _Nodes:
    """Nodes of a rule, with their weights."""

    def __init__(self, points: np.ndarray, mass: np.ndarray):
        self.points, self.mass = points, mass
        self.middle = [0.0] * points.shape[1]

    def sum(self, terms: Callable[[Any, Any], Any], dtype: Any) -> Any:
        """Return the sum over nodes of `terms`, from a point and its weight to a pytree of arrays."""
        if len(self.mass) <= _FEW:
            pairs = zip(self.points.astype(dtype), self.mass.astype(dtype), strict=True)
            return jax.tree.map(lambda *parts: sum(parts), *(terms(*pair) for pair in pairs))
        each = jnp.asarray(self.points, dtype), jnp.asarray(self.mass, dtype)
        shapes = jax.eval_shape(lambda: terms(each[0][0], each[1][0]))
        start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def add(sums: Any, node: Any) -> Any:
            return jax.tree.map(jnp.add, sums, terms(*node)), None

        # A node at a time: several in one body would be computed again for each of the sums.
        return lax.scan(add, start, each)[0]


@functools.cache
def _grid(crossed: tuple[bool, ...]) -> _Nodes:
    """Return the product of a rule a variable, each with mean zero and variance one."""
    bent = len(crossed) - sum(crossed)
    rules = [_TWO if two else _trapezoid(*_NODES[bent]) for two in crossed]
    points = np.array(list(itertools.product(*(nodes for nodes, _ in rules))))
    mass = np.array(list(itertools.product(*(weights for _, weights in rules)))).prod(1)
    return _Nodes(points, mass)


def _trapezoid(count: int, last: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the trapezoidal rule on the normal density."""
    nodes = np.linspace(-last, last, count)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    return nodes / np.sqrt((weights * nodes**2).sum()), weights


def _moments(
    given: Callable[..., MeanAndScale], nodes: _Nodes, inputs: tuple[Array, ...]
) -> MeanAndScale:
    """Return mean and variance."""
    # About the value at the means, so that the squares do not cancel where the function hardly varies.
    about = given(nodes.middle, *inputs)[0]

    def terms(point: Any, mass: Any) -> Any:
        value, spread = given(point, *inputs)
        off = value - about
        return mass * off, mass * (jnp.square(off) + spread)

    first, second = nodes.sum(terms, about.dtype)
    return about + first, jnp.maximum(second - jnp.square(first), 0.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _integral(
    given: Callable[..., MeanAndScale], nodes: _Nodes, inputs: tuple[Array, ...]
) -> MeanAndScale:
    return _moments(given, nodes, inputs)


@_integral.defjvp
def _change(given: Callable[..., MeanAndScale], nodes: _Nodes, primals: Any, tangents: Any) -> Any:
    """Return the moments and their change; each element's depends on that element of the inputs alone."""
    (inputs,), (changes,) = primals, tangents
    about = given(nodes.middle, *inputs)[0]
    # A mask has no slope.
    numbers = [i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]
    changes = [changes[i] for i in numbers]

    def at(point: Any, *values: Array) -> MeanAndScale:
        known = dict(zip(numbers, values, strict=True))
        return given(point, *(known.get(i, x) for i, x in enumerate(inputs)))

    def terms(point: Any, mass: Any) -> Any:
        values = [inputs[i] for i in numbers]
        (value, spread), pull = jax.vjp(functools.partial(at, point), *values)
        off, weight = value - about, jnp.full_like(about, mass)
        of_mean = pull((weight, jnp.zeros_like(weight)))
        of_square = pull((2 * weight * off, weight))
        return mass * off, mass * (jnp.square(off) + spread), of_mean, of_square

    first, second, of_mean, of_square = nodes.sum(terms, about.dtype)
    mean_change = sum(s * c for s, c in zip(of_mean, changes, strict=True))
    # E[(f - a)²] - E[f - a]² does not depend on a.
    variance_change = sum(
        (q - 2 * first * s) * c for q, s, c in zip(of_square, of_mean, changes, strict=True)
    )
    variance = jnp.maximum(second - jnp.square(first), 0.0)
    return (about + first, variance), (mean_change, variance_change)

"""Linear operations: exact, where the elements of an array are independent."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.backend.jaxprs import bind, bind_one
from bmrjax.infer.propagate.interpreter import Context, rule
from bmrjax.infer.propagate.uncertain import (
    MAX_SOURCES,
    FunctionOf,
    MeanAndScale,
    NotNormalError,
    Uncertain,
    sources_of,
)


def parts(value: Any) -> tuple[Any, Any]:
    """Return mean and variance; a plain array varies by nothing."""
    if isinstance(value, Uncertain):
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise NotNormalError
        return value.mean, value.variance
    return value, jnp.zeros_like(value)


def _disjoint(a: Uncertain, b: Uncertain) -> bool:
    return not {id(s) for s in a.sources} & {id(s) for s in b.sources}


def elementwise_rule(
    ctx: Context,
    eqn: Any,
    inputs: list[Any],
    moments: MeanAndScale | None = None,
    *,
    affine: bool = False,
    bilinear: bool = False,
) -> Any:
    """Apply an operation to elementwise functions of a few sources.

    Args:
        ctx: The context.
        eqn: The operation.
        inputs: Its arguments.
        moments: Mean and variance of the result, where they are known.
        affine: Whether normal arguments give a normal result.
        bilinear: Whether the result is affine in each of two arguments.

    Returns:
        A function of the sources; `NotImplemented` in mode ``"local"``, and for an argument that is
        stretched to the result.
    """
    shape = eqn.outvars[0].aval.shape
    uncertain = [i for i, v in enumerate(inputs) if isinstance(v, Uncertain)]
    if ctx.mode == "local" or any(inputs[i].shape != shape for i in uncertain):
        return NotImplemented
    inputs = list(inputs)
    if len(uncertain) == 1 and not affine:
        value = inputs[uncertain[0]]
        if len(value.sources) > (1 if value.is_normal else 2):
            # A function of a sum of normals is one of one normal; so, nearly, is one of a sum of
            # many products. On a grid, three sources would cost a hundred evaluations.
            inputs[uncertain[0]] = value.as_source
    while len(sources_of(inputs)) > MAX_SOURCES:
        widest = max(uncertain, key=lambda i: len(inputs[i].sources))
        if inputs[widest].as_source is inputs[widest]:
            return NotImplemented
        inputs[widest] = inputs[widest].as_source

    is_normal = affine and all(inputs[i].is_normal for i in uncertain)
    carried = [inputs[i] for i in uncertain]
    linear_in: frozenset[int] = frozenset()
    multilinear_in = linear_in
    if affine:
        linear_in = _in_all(carried, [v.linear_in for v in carried])
        multilinear_in = _in_all(carried, [v.multilinear_in for v in carried])
    elif bilinear:
        # A product is jointly affine in the sources of one factor.
        linear_in = max(_in_one(carried, [v.linear_in for v in carried]), key=len)
        multilinear_in = frozenset().union(*_in_one(carried, [v.multilinear_in for v in carried]))
    return FunctionOf(
        lambda *values: bind_one(eqn, values),
        inputs,
        eqn.outvars[0].aval.dtype,
        moments,
        is_normal=is_normal,
        is_square=_is_square(eqn, inputs),
        linear_in=linear_in,
        multilinear_in=multilinear_in,
    )


def _is_square(eqn: Any, inputs: list[Any]) -> bool:
    name = eqn.primitive.name
    if name == "integer_pow":
        return eqn.params["y"] % 2 == 0 and eqn.params["y"] > 0
    return name == "square" or (name == "mul" and inputs[0] is inputs[1])


def _in_all(values: list[Uncertain], straight: list[frozenset[int]]) -> frozenset[int]:
    """Return the sources in which a sum of these is affine, where each is so in its `straight`."""
    pairs = list(zip(values, straight, strict=True))
    sources = {id(s) for v in values for s in v.sources}
    return frozenset(sources - {id(s) for v, own in pairs for s in v.sources if id(s) not in own})


def _in_one(values: list[Uncertain], straight: list[frozenset[int]]) -> list[frozenset[int]]:
    """Return, a factor, the sources in which it is affine and that no other factor has."""
    found = []
    for i, own in enumerate(straight):  # by position: in x * x both are one array
        others = {id(s) for j, other in enumerate(values) if j != i for s in other.sources}
        found.append(frozenset(own - others))
    return found


@rule("add", "add_any", "sub")
def _add(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    a, b = inputs
    (mean_a, variance_a), (mean_b, variance_b) = parts(a), parts(b)
    known = None
    both = isinstance(a, Uncertain) and isinstance(b, Uncertain)
    if not both or _disjoint(a, b):
        mean, variance = bind_one(eqn, [mean_a, mean_b]), variance_a + variance_b
        known = mean, jnp.broadcast_to(variance, mean.shape)
    found = elementwise_rule(ctx, eqn, inputs, known, affine=True)
    if found is not NotImplemented or known is None:
        return found
    # Operands that are stretched to the result are copied variables.
    distinct = all(v.distinct for v in inputs if isinstance(v, Uncertain))
    return Uncertain(*known, distinct=distinct and variance.shape == mean.shape)


@rule("mul")
def _mul(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    a, b = inputs
    if not (isinstance(a, Uncertain) and isinstance(b, Uncertain)):
        value, factor = (a, b) if isinstance(a, Uncertain) else (b, a)
        return _scaled(ctx, eqn, inputs, value, jnp.square(factor))
    if ctx.mode == "local":
        return NotImplemented
    if not _disjoint(a, b):
        return elementwise_rule(ctx, eqn, inputs, bilinear=True)
    (mean_a, variance_a), (mean_b, variance_b) = parts(a), parts(b)
    variance = variance_a * jnp.square(mean_b) + (jnp.square(mean_a) + variance_a) * variance_b
    mean = bind_one(eqn, [mean_a, mean_b])
    known = mean, jnp.broadcast_to(variance, mean.shape)
    found = elementwise_rule(ctx, eqn, inputs, known, bilinear=True)
    return Uncertain(*known) if found is NotImplemented else found


@rule("div")
def _div(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    a, b = inputs
    if isinstance(b, Uncertain):
        return elementwise_rule(ctx, eqn, inputs)
    return _scaled(ctx, eqn, inputs, a, 1 / jnp.square(b))


def _scaled(ctx: Context, eqn: Any, inputs: list[Any], value: Uncertain, square: Array) -> Any:
    mean = bind_one(eqn, [v.mean if isinstance(v, Uncertain) else v for v in inputs])
    variance = value.variance * square
    known = mean, jnp.broadcast_to(variance, mean.shape)
    found = elementwise_rule(ctx, eqn, inputs, known, affine=True)
    if found is not NotImplemented:
        return found
    return Uncertain(*known, distinct=value.distinct and variance.shape == mean.shape)


@rule("neg")
def _neg(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    return _scaled(ctx, eqn, inputs, inputs[0], jnp.ones((), inputs[0].mean.dtype))


def _moved(eqn: Any, inputs: list[Any]) -> list[Any]:
    """Run an operation that only moves elements about, on means and on variances."""
    means, variances = zip(*(parts(v) for v in inputs), strict=True)
    distinct = all(v.distinct for v in inputs if isinstance(v, Uncertain))
    results = zip(bind(eqn, means), bind(eqn, variances), strict=True)
    return [Uncertain(mean, variance, distinct=distinct) for mean, variance in results]


@rule(
    "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev", "broadcast_in_dim",
    "concatenate", "split", "stack", "unstack",
)  # fmt: skip
def _move(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    value, *others = inputs
    copies = eqn.primitive.name == "broadcast_in_dim" and eqn.outvars[0].aval.size > math.prod(
        value.shape
    )
    if _copies_results(ctx, value, copies=copies):
        return NotImplemented
    if ctx.mode == "local" or others:
        found = _moved(eqn, inputs)
        found[0].distinct &= not copies
        return found
    name = eqn.primitive.name, str(eqn.params)
    return [
        value.moved(lambda x, i=i: bind(eqn, [x])[i], (*name, i), copies=copies)
        for i in range(len(eqn.outvars))
    ]


def _copies_results(ctx: Context, value: Any, *, copies: bool) -> bool:
    """Say whether one result would be drawn several times under local sampling.

    A weight is drawn anew for each data point that it meets, and so in each copy of it. A sum over weights,
    once it is a number of one data point, is drawn once, before it is copied.
    """
    return ctx.mode == "local" and copies and isinstance(value, Uncertain) and not value.distinct


@rule("tile")
def _tile(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    if ctx.mode == "local":
        return NotImplemented  # copies within one data point have the same sample
    (value,) = inputs
    return [value.moved(lambda x: bind_one(eqn, [x]), ("tile", str(eqn.params)), copies=True)]


@rule("copy", "copy_p", "stop_gradient", "convert_element_type", "reduce_precision")
def _cast(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    (value,) = inputs
    if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in (value, eqn.outvars[0].aval)):
        return elementwise_rule(ctx, eqn, inputs)
    known = bind_one(eqn, [value.mean]), bind_one(eqn, [value.variance])
    found = elementwise_rule(ctx, eqn, inputs, known, affine=True)
    return _moved(eqn, inputs) if found is NotImplemented else found


@rule("pad")
def _pad(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    value, padding = inputs
    if isinstance(padding, Uncertain):
        return NotImplemented
    del ctx
    mean = bind_one(eqn, [value.mean, padding])
    variance = bind_one(eqn, [value.variance, jnp.zeros_like(padding)])
    return Uncertain(mean, variance, distinct=value.distinct)


@rule("dynamic_slice", "gather")
def _pick(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    value, *where = inputs
    if any(isinstance(index, Uncertain) for index in where):
        return NotImplemented
    copies = eqn.primitive.name == "gather"  # an index may occur twice
    if _copies_results(ctx, value, copies=copies):
        return NotImplemented

    def pick(x: Array) -> Array:
        return bind_one(eqn, [x, *where])

    if ctx.mode == "moments":
        return value.moved(pick, object(), copies=copies)
    return Uncertain(pick(value.mean), pick(value.variance), distinct=value.distinct and not copies)


@rule("select_n")
def _select(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    which, *cases = inputs
    if isinstance(which, Uncertain):
        return elementwise_rule(ctx, eqn, inputs)
    found = elementwise_rule(ctx, eqn, inputs)
    if found is not NotImplemented:
        return found
    means, variances = zip(*(parts(case) for case in cases), strict=True)
    distinct = all(case.distinct for case in cases if isinstance(case, Uncertain))
    return Uncertain(
        bind_one(eqn, [which, *means]), bind_one(eqn, [which, *variances]), distinct=distinct
    )


def _sums(ctx: Context, value: Any) -> bool:
    """Say whether the variances of an array's elements may be added up."""
    # Moments are carried as if elements were independent; a sample need not be.
    return ctx.mode == "moments" or not isinstance(value, Uncertain) or value.distinct


@rule("reduce_sum", "reduce_window_sum", "cumsum")
def _sum(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    (value,) = inputs
    if not _sums(ctx, value):
        return NotImplemented
    name = eqn.primitive.name
    mean, variance = bind_one(eqn, [value.mean]), bind_one(eqn, [value.variance])
    if name == "reduce_sum" and isinstance(value, FunctionOf) and value.is_square:
        return _positive(mean, variance)
    return Uncertain(mean, variance, distinct=value.distinct and name == "reduce_sum")


def _positive(mean: Array, variance: Array) -> Uncertain:
    """Return a sum of squares: the exponential of a normal, since a root or a logarithm of it may follow."""
    floor = jnp.finfo(mean.dtype).tiny ** 0.5
    safe = jnp.maximum(mean, floor)
    spread = jnp.log1p(variance / jnp.square(safe))
    logarithm = Uncertain(jnp.log(safe) - spread / 2, spread)
    logarithm.of_squares = True
    return FunctionOf(jnp.exp, [logarithm], mean.dtype, (mean, variance))


@rule("dot_general", "conv_general_dilated")
def _product(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    a, b = inputs
    if not (_sums(ctx, a) and _sums(ctx, b)):
        return NotImplemented
    (mean_a, variance_a), (mean_b, variance_b) = parts(a), parts(b)

    def times(x: Any, y: Any) -> Array:
        return bind_one(eqn, [x, y])

    mean = times(mean_a, mean_b)
    if isinstance(a, Uncertain) and isinstance(b, Uncertain):
        if ctx.mode == "local":
            return NotImplemented
        # E[(ab)²] - E[ab]², the two independent.
        variance = times(variance_a, jnp.square(mean_b) + variance_b)
        return Uncertain(mean, variance + times(jnp.square(mean_a), variance_b))
    if isinstance(a, Uncertain):
        return Uncertain(mean, times(variance_a, jnp.square(mean_b)))
    return Uncertain(mean, times(jnp.square(mean_a), variance_b))

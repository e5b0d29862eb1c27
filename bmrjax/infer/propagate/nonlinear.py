"""Nonlinear operations on moments: closed forms where there are any, else quadrature."""

import itertools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.stats import norm
from jaxtyping import Array

from bmrjax.infer.propagate.interpreter import Context, rule
from bmrjax.infer.propagate.linear import elementwise_rule
from bmrjax.infer.propagate.uncertain import Uncertain, root_of


@rule(
    "tanh", "logistic", "exp", "exp2", "log1p", "expm1", "erf", "erfc", "sin", "cos", "tan", "cbrt",
    "abs", "sign", "square", "integer_pow", "min", "clamp", "atan", "asinh",
    "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "not", "is_finite", "floor", "ceil", "round",
)  # fmt: skip
def _function(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    return elementwise_rule(ctx, eqn, inputs)


@rule("sqrt", "rsqrt", "log", "pow")
def _of_positive(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    # What is left of a sum of squares after a subtraction is positive for its values, not for all nodes.
    for value in inputs:
        if isinstance(value, Uncertain) and len(value.sources) > 1:
            if any(source.of_squares for source in value.sources):
                return NotImplemented
    return elementwise_rule(ctx, eqn, inputs)


def rectified(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance of max(x, 0) for normal x.

    References:
        Frey and Hinton (1999), Neural Computation 11, on rectified normals.
    """
    dtype = jnp.result_type(mean, variance)
    mean, variance = (x.astype(jnp.promote_types(dtype, jnp.float32)) for x in (mean, variance))
    scale = root_of(variance)
    uncertain = scale > 0
    safe = jnp.where(uncertain, scale, 1.0)
    # Without variance the ratio may overflow, and its gradient with it.
    ratio = jnp.where(uncertain, mean, 0.0) / safe
    above, density = norm.cdf(ratio), norm.pdf(ratio)
    first = mean * above + safe * density
    # About the mean, so that large means do not cancel.
    off = mean - first
    spread = (jnp.square(off) + jnp.square(safe)) * above + jnp.square(first) * norm.cdf(-ratio)
    spread = jnp.maximum(spread + (off - first) * safe * density, 0.0)
    plain = jnp.maximum(mean, 0.0)
    first, spread = jnp.where(uncertain, first, plain), jnp.where(uncertain, spread, 0.0)
    return first.astype(dtype), spread.astype(dtype)


@rule("max")
def _max(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    a, b = inputs
    if ctx.mode == "local":
        return NotImplemented
    uncertain = [v for v in inputs if isinstance(v, Uncertain)]
    known = None
    if all(v.is_normal and v.shape == eqn.outvars[0].aval.shape for v in uncertain):
        if len(uncertain) == 1:
            # max(x, c) = c + max(x - c, 0)
            level = b if isinstance(a, Uncertain) else a
            mean, variance = rectified(uncertain[0].mean - level, uncertain[0].variance)
            known = mean + level, variance
        elif not {id(s) for s in a.sources} & {id(s) for s in b.sources}:
            known = larger(a.mean, a.variance, b.mean, b.variance)
    return elementwise_rule(ctx, eqn, inputs, known)


def larger(
    mean_a: Array, variance_a: Array, mean_b: Array, variance_b: Array
) -> tuple[Array, Array]:
    """Return mean and variance of the larger of two independent normals.

    References:
        Clark (1961), The greatest of a finite set of random variables.
    """
    dtype = jnp.result_type(mean_a, variance_a)
    wide = jnp.promote_types(dtype, jnp.float32)
    mean_a, variance_a, mean_b, variance_b = (
        x.astype(wide) for x in (mean_a, variance_a, mean_b, variance_b)
    )
    gap = root_of(variance_a + variance_b)
    uncertain = gap > 0
    safe = jnp.where(uncertain, gap, 1.0)
    ratio = jnp.where(uncertain, mean_a - mean_b, 0.0) / safe
    first, density = norm.cdf(ratio), norm.pdf(ratio)
    mean = mean_a * first + mean_b * (1 - first) + safe * density
    # About the mean, so that large means do not cancel.
    a, b = mean_a - mean, mean_b - mean
    variance = (jnp.square(a) + variance_a) * first + (jnp.square(b) + variance_b) * (1 - first)
    variance = jnp.maximum(variance + (a + b) * safe * density, 0.0)
    return (
        jnp.where(uncertain, mean, jnp.maximum(mean_a, mean_b)).astype(dtype),
        jnp.where(uncertain, variance, 0.0).astype(dtype),
    )


@rule("reduce_window_max")
def _max_pool(ctx: Context, eqn: Any, inputs: list[Any]) -> Any:
    if ctx.mode == "local":
        return NotImplemented
    (value,) = inputs
    params = eqn.params
    plain = all(d == 1 for d in (*params["base_dilation"], *params["window_dilation"]))
    if not plain or any(low or high for low, high in params["padding"]):
        return NotImplemented
    # The windows' elements one by one: the larger of two, as often as a window has elements.
    window, strides = params["window_dimensions"], params["window_strides"]
    counts = eqn.outvars[0].aval.shape
    mean, variance = None, None
    for offset in itertools.product(*(range(size) for size in window)):
        last = [o + (n - 1) * s + 1 for o, n, s in zip(offset, counts, strides, strict=True)]
        part = [lax.slice(x, offset, last, strides) for x in (value.mean, value.variance)]
        if mean is None or variance is None:
            mean, variance = part
        else:
            mean, variance = larger(mean, variance, *part)
    assert mean is not None
    assert variance is not None
    return Uncertain(mean, variance)

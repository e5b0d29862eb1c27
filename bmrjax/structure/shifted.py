"""Convolutions and pooling of shifted images: what a CPU is fast at if channels are few."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

# More terms than this take longer to compile than they save.
MAX_TERMS = 200


# Operations that may have such a form.
SHIFTED = ("conv_general_dilated", "reduce_window_max", "reduce_window_sum")


def shifted(eqn: Any) -> Any:
    """Return an operation of a jaxpr as a function of its inputs that adds shifted images up, or None.

    Args:
        eqn: Any equation of a jaxpr; convolutions over few channels and pooling over few pixels have
            such a form.
    """
    if eqn.primitive.name not in SHIFTED:
        return None
    return _convolution(eqn) if eqn.primitive.name == SHIFTED[0] else _pooling(eqn)


def _convolution(eqn: Any) -> Any:
    params, (image, kernel) = eqn.params, (v.aval for v in eqn.invars)
    spec = params["dimension_numbers"]
    channels, taps = kernel.shape[spec.rhs_spec[1]], [kernel.shape[i] for i in spec.rhs_spec[2:]]
    terms = channels
    for n in taps:
        terms *= n
    plain = (
        params["feature_group_count"] == params["batch_group_count"] == 1
        and all(n == 1 for n in params["lhs_dilation"])
        and all(min(pair) >= 0 for pair in params["padding"])
        and image.dtype == kernel.dtype == eqn.outvars[0].aval.dtype
        and image.size > 0 < kernel.size
    )
    if not plain or terms > MAX_TERMS:
        return None

    def run(x: Array, w: Array) -> Array:
        x, w = x.transpose(spec.lhs_spec), w.transpose(spec.rhs_spec)
        x = jnp.pad(x, ((0, 0), (0, 0), *params["padding"]))
        window = list(zip(taps, params["window_strides"], params["rhs_dilation"], strict=True))
        total = None
        for channel in range(channels):
            for offset, part in _shifts(x[:, channel], 1, window):
                weight = w[(slice(None), channel, *offset)]
                term = part[:, None] * weight[(None, slice(None), *[None] * len(taps))]
                total = term if total is None else total + term
        assert total is not None
        return total.transpose([spec.out_spec.index(i) for i in range(total.ndim)])

    return run


def _pooling(eqn: Any) -> Any:
    params, aval = eqn.params, eqn.invars[0].aval
    size = 1
    for n in params["window_dimensions"]:
        size *= n
    plain = all(n == 1 for n in params["base_dilation"]) and jnp.issubdtype(
        aval.dtype, jnp.floating
    )
    if not plain or size > MAX_TERMS or aval.size == 0:
        return None
    highest = eqn.primitive.name == "reduce_window_max"
    window = list(
        zip(
            params["window_dimensions"],
            params["window_strides"],
            params["window_dilation"],
            strict=True,
        )
    )

    def run(x: Array) -> Array:
        x = lax.pad(
            x,
            jnp.array(-jnp.inf if highest else 0.0, x.dtype),
            [(*p, 0) for p in params["padding"]],
        )
        parts = [part for _, part in _shifts(x, 0, window)]
        total = parts[0]
        for part in parts[1:]:
            total = jnp.maximum(total, part) if highest else total + part
        return total

    return run


def _shifts(x: Array, first: int, window: Sequence[tuple[int, int, int]]) -> Any:
    """Yield each offset within a window, and the part of an array that is under it.

    Args:
        x: An array.
        first: Its first axis that the window goes along.
        window: Size, stride and dilation an axis.
    """
    axes = []
    for size, (taps, stride, dilation) in zip(x.shape[first:], window, strict=True):
        steps = (size - dilation * (taps - 1) - 1) // stride
        axes.append(
            [slice(i * dilation, i * dilation + steps * stride + 1, stride) for i in range(taps)]
        )
    for offset in itertools.product(*(range(len(slices)) for slices in axes)):
        here = [slices[i] for slices, i in zip(axes, offset, strict=True)]
        yield offset, x[(slice(None),) * first + tuple(here)]

"""Convolutions that XLA is slow at on a CPU, in another form."""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.backend.jaxprs import bind

# Eigen's convolution packs what each position reads, one number at a time where there are fewer than four
# channels: some 5 ns a number. A shifted product takes .1 ns a number and kernel. Of 256 images of 32×32,
# 6 kernels of 5×5 over one channel took 30 ms of a core, and 5 ms so; 32 of 3×3 over one channel 19 and 5 ms,
# 16 of 3×3 over three channels 32 and 13 ms.
_FEW_CHANNELS = 3
_MOST_KERNELS = 32
# Each number that a kernel reads is a few lines of the program, which has to be compiled.
_MOST_TERMS = 32


def bind_quickly(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run an operation of a jaxpr; some convolutions in a faster form.

    One whose kernels are as large as the image is a matrix product, and on a CPU one of few channels is a sum
    of shifted images. Results agree with those of the operation up to the rounding of sums.

    Args:
        eqn: The operation.
        inputs: Arrays.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax.backend.quick_convolutions import bind_quickly
        >>> x, w = jnp.arange(9.0).reshape(1, 1, 3, 3), jnp.ones((1, 1, 2, 2))
        >>> convolve = lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID")
        >>> eqn = jax.make_jaxpr(convolve)(x, w).jaxpr.eqns[0]
        >>> bind_quickly(eqn, (x, w))[0].ravel().tolist()
        [8.0, 12.0, 20.0, 24.0]
    """
    if reads_all_at_once(eqn):
        return [_product(eqn, *inputs)]
    if _is_small(eqn) and jax.default_backend() == "cpu":
        return [_shifted_products(eqn, *inputs)]
    return bind(eqn, inputs)


def reads_all_at_once(eqn: Any) -> bool:
    """Say whether an operation is a convolution of one position, which reads the whole image in its order."""
    if eqn.primitive.name != "conv_general_dilated":
        return False
    params, (x, kernel) = eqn.params, [var.aval for var in eqn.invars]
    numbers = params["dimension_numbers"]
    space = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True)
    return (
        params["feature_group_count"] == params["batch_group_count"] == 1
        and {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and all(pair == (0, 0) for pair in params["padding"])
        and all(x.shape[a] == kernel.shape[b] for a, b in space)
    )


def _product(eqn: Any, x: Float[Array, "..."], kernels: Float[Array, "..."]) -> Float[Array, "..."]:
    # Backwards, the convolution reads mostly padding: 120 kernels of 5×5 over 16 channels, 256 images, took
    # 30 ms more.
    numbers = eqn.params["dimension_numbers"]
    some = {name: eqn.params[name] for name in ("precision", "preferred_element_type")}
    contracted = numbers.lhs_spec[1:], numbers.rhs_spec[1:]
    found = jax.lax.dot_general(x, kernels, (contracted, ((), ())), **some)
    return _placed(found.reshape(*found.shape, *[1] * (x.ndim - 2)), numbers)


def _is_small(eqn: Any) -> bool:
    """Say whether an operation is a convolution of few channels, in steps of one."""
    if eqn.primitive.name != "conv_general_dilated":
        return False
    params, (x, kernel) = eqn.params, [var.aval for var in eqn.invars]
    outputs, channels, *space = [kernel.shape[d] for d in params["dimension_numbers"].rhs_spec]
    return (
        x.dtype == kernel.dtype == eqn.outvars[0].aval.dtype == jnp.float32
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and {*params["lhs_dilation"], *params["window_strides"]} == {1}
        and all(low >= 0 and high >= 0 for low, high in params["padding"])
        and channels <= _FEW_CHANNELS
        and outputs <= _MOST_KERNELS
        and 1 < prod(space)
        and channels * prod(space) <= _MOST_TERMS
    )


def _shifted_products(
    eqn: Any, x: Float[Array, "..."], kernels: Float[Array, "..."]
) -> Float[Array, "..."]:
    params = eqn.params
    numbers = params["dimension_numbers"]
    x, kernels = x.transpose(numbers.lhs_spec), kernels.transpose(numbers.rhs_spec)
    padding = [(low, high, 0) for low, high in params["padding"]]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *padding])
    counts = [eqn.outvars[0].aval.shape[d] for d in numbers.out_spec[2:]]

    def image(kernel: Array) -> Array:
        terms = []
        for channel, *place in product(*map(range, kernel.shape)):
            starts = [i * step for i, step in zip(place, params["rhs_dilation"], strict=True)]
            some = [slice(i, i + n) for i, n in zip(starts, counts, strict=True)]
            terms.append(kernel[(channel, *place)] * x[(slice(None), channel, *some)])
        return reduce(jnp.add, terms)

    # A loop over the kernels. As one expression, it would be merged with what reads the images, and computed
    # again there for each of their neighbours.
    return _placed(jnp.moveaxis(jax.lax.map(image, kernels), 0, 1), numbers)


def _placed(images: Float[Array, "n channels *space"], numbers: Any) -> Float[Array, "..."]:
    """Return images with the axes that the dimension numbers of a convolution say."""
    return images.transpose([numbers.out_spec.index(d) for d in range(images.ndim)])

"""Convolutions that XLA is slow at on a CPU, in another form."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
from jaxtyping import Array

from bmrjax.backend.convolution_forms import FORMS, Convolution
from bmrjax.backend.jaxprs import bind
from bmrjax.backend.rewrite import Form, rewritten

# Each is a few lines of the program, which has to be compiled.
_MOST_TERMS = 80
_MOST_PLACES = 25
# In networks, other forms of kernels of 3×3 gain nothing: what reads and writes them is slower.
_FEWEST_PLACES = 16
# Numbers in a temporary array: 64 MiB, and what stays in the cache.
_MOST_COLUMNS = 2**24
_MOST_NEAR = 2**22


def bind_quickly(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run an operation of a program that is yet to be differentiated; some convolutions in a faster form.

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
    if not is_convolution(eqn):
        return bind(eqn, inputs)
    what = Convolution.of(eqn)
    if what.reads_all_at_once:
        return [in_form("product", eqn, *inputs)]
    if _is_of_few_channels(what) and jax.default_backend() == "cpu":
        return [in_form("shifted images", eqn, *inputs)]
    return bind(eqn, inputs)


def with_quick_convolutions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose convolutions are computed in the form that is fastest on a CPU; see `form_of`.

    Args:
        function: A pure, traceable function. Its derivatives must be taken before.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax.backend.quick_convolutions import with_quick_convolutions
        >>> x, w = jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 2, 2))
        >>> convolve = lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID")
        >>> print(with_quick_convolutions(convolve)(x, w)[0, 0, 0])
        [4. 4. 4.]
    """

    def rule(eqn: Any, _: str) -> Form | None:
        if not is_convolution(eqn):
            return None
        name = form_of(Convolution.of(eqn))
        return None if name is None else lambda inputs: [in_form(name, eqn, *inputs)]

    return rewritten(function, rule)


def is_convolution(eqn: Any) -> bool:
    """Say whether an operation of a jaxpr is a convolution."""
    return eqn.primitive.name == "conv_general_dilated"


def reads_all_at_once(eqn: Any) -> bool:
    """Say whether an operation is a convolution of one position, which reads the whole image in its order."""
    return is_convolution(eqn) and Convolution.of(eqn).reads_all_at_once


def in_form(name: str, eqn: Any, x: Array, w: Array) -> Array:
    """Run a convolution in a form of `FORMS`, on arrays with the axes that the operation has."""
    numbers = eqn.params["dimension_numbers"]
    images, kernels = x.transpose(numbers.lhs_spec), w.transpose(numbers.rhs_spec)
    found = FORMS[name](Convolution.of(eqn), images, kernels)
    return found.transpose([numbers.out_spec.index(d) for d in range(found.ndim)])


def form_of(what: Convolution) -> str | None:
    """Return the name of the form that takes least time on a CPU; None where that is the operation itself.

    The rule looks at shapes only, so the same program computes the same numbers on every machine and after
    each restart, which a choice by measuring would not: `benchmarks/costs/convolutions.py` measures. Eigen,
    which XLA convolves with, packs what each position reads, one number at a time unless the channels are a
    multiple of its vectors; and where a convolution goes back, it multiplies the padding too.

    Args:
        what: The convolution.

    Returns:
        A key of `bmrjax.backend.convolution_forms.FORMS`, or None.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax.backend.convolution_forms import Convolution
        >>> x, w = jnp.ones((128, 1, 28, 28)), jnp.ones((6, 1, 5, 5))
        >>> convolve = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME")
        >>> form_of(Convolution.of(jax.make_jaxpr(convolve)(x, w).jaxpr.eqns[0]))
        'shifted images'
    """
    if what.is_empty:
        return None
    if what.reads_all_at_once:
        return "product"
    if not what.is_plain:
        return None
    if {*what.image} == {1} and {*what.strides} == {1} and what.columns <= _MOST_COLUMNS:
        return "summed columns"
    if prod(what.taps) >= prod(what.positions):
        return "banded product" if _is_of_one_channel(what) else None
    if prod(what.taps) < _FEWEST_PLACES:
        return None
    if _is_of_few_channels(what):
        return "shifted images"
    return "summed columns" if _has_few_columns(what) else None


def _is_of_few_channels(what: Convolution) -> bool:
    taps = prod(what.taps)
    return (
        what.is_plain
        and not what.is_empty
        and {*what.image_dilation, *what.strides} == {1}
        and all(low >= 0 and high >= 0 for low, high in what.padding)
        and what.channels <= 3
        and what.kernels <= 32
        and 1 < taps
        and what.channels * taps <= _MOST_TERMS
    )


def _is_of_one_channel(what: Convolution) -> bool:
    """Say whether the gradient by the kernels of a convolution is faster by rows."""
    few = what.num_images == 1 and what.kernels <= 24
    return few and what.goes_by_rows and _FEWEST_PLACES <= prod(what.positions) <= _MOST_PLACES


def _has_few_columns(what: Convolution) -> bool:
    """Say whether multiplying each pixel once, with all that reads it, pays."""
    few = what.kernels <= 3 or (what.kernels <= 8 and what.columns <= _MOST_NEAR)
    return (
        {*what.strides} == {1}
        and what.columns <= _MOST_COLUMNS
        and few
        and 2 * what.kernels <= what.channels
    )

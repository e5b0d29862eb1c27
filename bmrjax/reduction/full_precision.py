"""Products of matrices in the whole precision of their arguments, on every device."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def full_precision(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Return the function with all its matrix products in full precision.

    By default, XLA multiplies float32 matrices on GPUs in TensorFloat-32 and on TPUs in bfloat16. Errors of
    1e-3 are nothing to a network, and far too much for an evidence difference, in which large numbers cancel.
    """

    @functools.wraps(function)
    def precise(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise

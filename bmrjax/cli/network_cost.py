"""What running a network of a file would take, known before it is compiled."""

import math
from collections.abc import Callable
from typing import Any

import jax

from bmrjax.codec import CodecError

# A file may have so many modules, and one more for each of so many bytes: each takes milliseconds to compile.
FREE_MODULES, BYTES_PER_MODULE = 256, 8
# Operations of a network, numbers of its largest array for one row, and of those of a batch.
MOST_OPERATIONS = 20_000
MOST_NUMBERS = 2**27
BATCH_NUMBERS = 2**26
MOST_ROWS = 1000
# XLA compiles for minutes where arrays have thousands of axes.
MOST_AXES_RUN = 32


def check_modules(modules: int, size: int) -> None:
    """Refuse a file with more modules than its size has weights for.

    Args:
        modules: Of the network.
        size: Bytes of the file.

    Raises:
        CodecError: If there are more.

    Example:
        >>> check_modules(300, 1000)
        >>> check_modules(9000, 1341)
        Traceback (most recent call last):
        bmrjax.codec.codec_error.CodecError: the network has 9,000 modules; a file of 1,341 bytes may...
    """
    most = FREE_MODULES + size // BYTES_PER_MODULE
    if modules > most:
        raise CodecError(
            f"the network has {modules:,} modules; a file of {size:,} bytes may have {most:,} to predict."
        )


def affordable_rows(run: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any) -> int:
    """Return how many rows may be predicted at once; the network is traced, and nothing is computed.

    Args:
        run: The network, a function of a batch.
        shape: Of one row.
        dtype: Of the inputs.

    Raises:
        CodecError: If one row is too much.
    """
    jaxpr = jax.make_jaxpr(run)(jax.ShapeDtypeStruct((1, *shape), dtype))
    operations, largest, axes = _counted(jaxpr.jaxpr)
    if axes > MOST_AXES_RUN:
        raise CodecError(
            f"the network has arrays with {axes:,} axes; at most {MOST_AXES_RUN} are run."
        )
    if operations > MOST_OPERATIONS or largest > MOST_NUMBERS:
        raise CodecError(
            f"the network has {operations:,} operations and arrays of {largest:,} numbers for one row; at "
            f"most {MOST_OPERATIONS:,} and {MOST_NUMBERS:,} are run."
        )
    return max(1, min(MOST_ROWS, BATCH_NUMBERS // max(1, largest)))


def _counted(jaxpr: Any) -> tuple[int, int, int]:
    """Return the operations of a jaxpr, and the numbers and axes of the largest arrays that they make."""
    operations, largest, axes = 0, 0, 0
    for equation in jaxpr.eqns:
        operations += 1
        for variable in equation.outvars:
            shape = getattr(variable.aval, "shape", ())
            largest, axes = max(largest, math.prod(shape)), max(axes, len(shape))
        for value in equation.params.values():
            for each in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    some, most, longest = _counted(inner)
                    operations += some * _copies(equation.params)
                    largest, axes = max(largest, most), max(axes, longest)
    return operations, largest, axes


def _copies(params: Any) -> int:
    """Return how often the body of a loop is in the compiled program."""
    unroll, length = params.get("unroll", 1), params.get("length", 1)
    return max(1, min(int(unroll), int(length or 1)))

"""What running a network of a file would take, known before it is compiled."""

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator
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
# Numbers that one row makes, each as often as its operation is dearer than an addition: about ten seconds.
MOST_WORK = 2**33
# Of processor time to trace a network: loops of Python, such as a padding by copies, are not seen before.
TRACING_SECONDS = 20.0
# Nanoseconds per number on one core, where it is more than one.
_DEARER = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), 32),
    **dict.fromkeys(("gather", "scatter", "scatter-add", "scatter_add", "random_bits"), 8),
}
# A loop without a known end is taken to go round so often.
_UNKNOWN_ROUNDS = 64
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
    with _ended_after(TRACING_SECONDS):
        jaxpr = jax.make_jaxpr(run)(jax.ShapeDtypeStruct((1, *shape), dtype))
    operations, largest, axes, work = _counted(jaxpr.jaxpr)
    if axes > MOST_AXES_RUN:
        raise CodecError(
            f"the network has arrays with {axes:,} axes; at most {MOST_AXES_RUN} are run."
        )
    if operations > MOST_OPERATIONS or largest > MOST_NUMBERS:
        raise CodecError(
            f"the network has {operations:,} operations and arrays of {largest:,} numbers for one row; at "
            f"most {MOST_OPERATIONS:,} and {MOST_NUMBERS:,} are run."
        )
    if work > MOST_WORK:
        raise CodecError(
            f"the network computes as much as {work:,.0f} additions for one row; at most {MOST_WORK:,} are "
            "run."
        )
    return max(1, min(MOST_ROWS, BATCH_NUMBERS // max(1, largest)))


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise CodecError in code that takes more processor time; in the main thread, where there are timers."""
    timer = getattr(signal, "setitimer", None)
    if timer is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    over = False

    def end(*_: object) -> None:
        if over:
            return
        raise CodecError(f"the network takes more than {seconds:g} s to trace.")

    before = signal.signal(signal.SIGPROF, end)
    # Again and again, should something on the way take the exception for its own.
    timer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        over = True
        timer(signal.ITIMER_PROF, 0.0)
        if before is not None:
            signal.signal(signal.SIGPROF, before)


def _counted(jaxpr: Any) -> tuple[int, int, int, float]:
    """Return the operations of a jaxpr, numbers and axes of the largest arrays, and the work of a call."""
    operations, largest, axes, work = 0, 0, 0, 0.0
    for equation in jaxpr.eqns:
        operations += 1
        for variable in equation.outvars:
            shape = getattr(variable.aval, "shape", ())
            largest, axes = max(largest, math.prod(shape)), max(axes, len(shape))
        inside = 0.0
        for value in equation.params.values():
            for each in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    some, most, longest, its_work = _counted(inner)
                    operations += some * _copies(equation.params)
                    largest, axes = max(largest, most), max(axes, longest)
                    inside += its_work * _rounds(equation)
        work += max(inside, _own_work(equation))
    return operations, largest, axes, work


def _own_work(equation: Any) -> float:
    """Return about how many additions an operation costs, from the shapes of its arrays."""
    name, params = equation.primitive.name, equation.params
    shapes: list[Any] = [
        getattr(v.aval, "shape", ()) for v in (*equation.invars, *equation.outvars)
    ]
    numbers = max((math.prod(shape) for shape in shapes), default=0)
    made = sum(math.prod(getattr(v.aval, "shape", ())) for v in equation.outvars)
    if name in ("sort", "top_k", "approx_top_k"):
        return 8.0 * numbers * math.log2(numbers + 2)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        # Products go through vector units.
        return numbers + made * math.prod(shapes[0][i] for i in contracted) / 16
    if name == "conv_general_dilated":
        outputs = shapes[1][params["dimension_numbers"].rhs_spec[0]]
        return numbers + made * math.prod(shapes[1]) / max(1, outputs) / 8
    if "window_dimensions" in params:
        return float(numbers + made * math.prod(params["window_dimensions"]))
    return float(numbers * _DEARER.get(name, 1))


def _rounds(equation: Any) -> int:
    """Return how often the body of a loop is run."""
    if equation.primitive.name == "while":
        return _UNKNOWN_ROUNDS
    return max(1, int(equation.params.get("length", 1) or 1))


def _copies(params: Any) -> int:
    """Return how often the body of a loop is in the compiled program."""
    unroll, length = params.get("unroll", 1), params.get("length", 1)
    return max(1, min(int(unroll), int(length or 1)))

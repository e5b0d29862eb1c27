"""A line on a terminal or in a notebook that says what a call does, how long it takes, and how it ended."""

import abc
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from tqdm.auto import tqdm

# Seconds between two updates of the line.
INTERVAL = 0.5
# Of a terminal that does not say how many it has.
_COLUMNS, _LINES = 80, 24


def is_watched() -> bool:
    """Return whether somebody may be looking: at a terminal, or at a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    package = sys.modules.get("IPython")
    shell = None if package is None else package.get_ipython()
    return "IPKernelApp" in getattr(shell, "config", {})


class ProgressLine(abc.ABC):
    """What a call says of itself while it lasts, in one line, and its last line.

    A subclass notes what the call does, and says in `_now` and `_end` how that reads.

    Args:
        bar: What draws; None where nobody is looking.
    """

    def __init__(self, bar: Any = None):
        self._bar = bar

    @abc.abstractmethod
    def _now(self) -> tuple[float, str, list[str]]:
        """Return how much is done, in the bar's unit, what is being done, and what else to show."""

    @abc.abstractmethod
    def _end(self) -> str:
        """Return the last line."""

    def draw(self) -> None:
        """Write the line anew."""
        if self._bar is None:
            return
        self._bar.n, text, rest = self._now()
        self._bar.set_description_str(text, refresh=False)
        self._bar.set_postfix_str(", ".join(part for part in rest if part), refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        """Leave the last line."""
        bar = self._bar
        if bar is None:
            return
        bar.set_postfix_str("", refresh=False)
        bar.bar_format = "{desc}"
        # The whole line, however narrow the terminal is.
        bar.dynamic_ncols, bar.ncols = False, None
        bar.set_description_str(self._end(), refresh=False)
        bar.close()


Line = TypeVar("Line", bound=ProgressLine)


@contextlib.contextmanager
def drawn(make: Callable[[Any], Line], total: float, *, text: str, wanted: bool) -> Iterator[Line]:
    """Show a line while the context lasts, from the start.

    It is written by a thread of its own, so that it moves while the call compiles or computes. Nothing is
    shown where standard error is neither a terminal nor a notebook's, and by other processes than the first.

    Args:
        make: Makes the line, of the bar that draws it or of None.
        total: What the bar goes up to.
        text: What is shown first.
        wanted: Whether to show anything.
    """
    if not (wanted and is_watched() and jax.process_index() == 0):
        yield make(None)
        return
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
    bar = tqdm(total=total, desc=text, bar_format=form, **_size())
    line, over = make(bar), threading.Event()

    def look() -> None:
        while not over.wait(INTERVAL):
            line.draw()

    thread = threading.Thread(target=look, name="bmrjax-progress", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        over.set()
        thread.join()
        line.close()


def _size() -> dict[str, Any]:
    """Return how large the line may be: as the terminal, at any time, unless that does not know."""
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
        if sys.stderr.isatty() and not (columns and lines):
            return {"ncols": columns - 1 if columns else _COLUMNS, "nrows": lines or _LINES}
    return {"dynamic_ncols": True}


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Example:
        >>> duration(8.2), duration(95), duration(5400)
        ('8 s', '1 min 35 s', '1 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

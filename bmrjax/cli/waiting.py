"""What the terminal shows before a command has anything to say."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def saying(*, wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """Give a function that shows in one line what the command is doing, and remove the line afterwards.

    Nothing is written where standard error is not a terminal.

    Args:
        wanted: Whether to show it.
    """
    width = 0

    def say(what: str) -> None:
        nonlocal width
        text = f"bmrjax: {what} ..." if what else ""
        sys.stderr.write(f"\r{' ' * width}\r{text}" if width else text)
        sys.stderr.flush()
        width = len(text)

    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield say
    finally:
        say("")


@contextlib.contextmanager
def waiting(what: str, *, wanted: bool = True) -> Iterator[None]:
    """Show in one line what the command is doing, and remove the line afterwards; see `saying`.

    Args:
        what: It does, such as "loading".
        wanted: Whether to show it.
    """
    with saying(wanted=wanted) as say:
        say(what)
        yield

"""What the terminal shows before a command has anything to say."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def waiting(what: str, *, wanted: bool = True) -> Iterator[None]:
    """Show in one line what the command is doing, and remove the line afterwards.

    Nothing is written where standard error is not a terminal.

    Args:
        what: It does, such as "loading".
        wanted: Whether to show it.
    """
    if not wanted or not sys.stderr.isatty():
        yield
        return
    text = f"bmrjax: {what} ..."
    sys.stderr.write(text)
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write(f"\r{' ' * len(text)}\r")
        sys.stderr.flush()

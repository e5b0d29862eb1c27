"""Errors of the first level's functions, in the words of a group study."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_of(caller: str) -> Iterator[None]:
    """Raise errors that begin with ``"reduce_fit: "`` again, with the name of another caller.

    Args:
        caller: What the message begins with instead.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        if not text.startswith("reduce_fit: "):
            raise
        raise type(error)(f"{caller}: {text.removeprefix('reduce_fit: ')}") from error

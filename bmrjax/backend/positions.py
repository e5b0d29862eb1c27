"""A message for calls with more arguments by position than a function takes."""

import inspect
from collections.abc import Callable
from typing import Any


def check_positions(function: Callable, args: tuple[Any, ...]) -> None:
    """Raise TypeError for more arguments by position than a function takes, with what to write.

    Python's own message counts ``self``, and does not say that the arrays of a data set are one argument.

    Args:
        function: What is called.
        args: Its arguments by position, with ``self`` for a method.

    Raises:
        TypeError: If there are too many.

    Example:
        >>> from bmrjax.backend.positions import check_positions
        >>> def fit(model, data, *, key): ...
        >>> check_positions(fit, ("a program", "x", "y"))
        Traceback (most recent call last):
        TypeError: fit takes model and data by position, and got 3 arguments. Arrays that belong together ...
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS or len(args) <= code.co_argcount:
        return
    names = list(code.co_varnames[: code.co_argcount])
    own = 1 if names[:1] == ["self"] else 0
    by_position = " and ".join(names[own:]) if len(names) > own else "nothing"
    raise TypeError(
        f"{function.__name__} takes {by_position} by position, and got {len(args) - own} arguments. Arrays "
        "that belong together are one argument, such as (x, y); the others go by name."
    )

"""Whether a program can be called with the data that are given."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from numpyro.handlers import seed
from numpyro.primitives import Messenger

from bmrjax.infer.arguments import Batch
from bmrjax.infer.within_handlers import within_handlers


def check_call(program: Callable, data: Any, name: str) -> None:
    """Raise TypeError if a program does not take the arguments that it would get.

    Python's own message says nothing of how data become arguments: a tuple by position, a dict by name.

    Args:
        program: NumPyro program. One whose signature is not known is not checked.
        data: A tuple or list of positional arguments, a mapping of keyword arguments, or a `Batch`; anything
            else is not checked.
        name: What the data are called, for messages.

    Raises:
        TypeError: If the signature of the program does not fit, with what to write.

    Example:
        >>> from bmrjax.infer.check_call import check_call
        >>> def program(data): ...
        >>> check_call(program, {"x": [1.0], "y": [2.0]}, "data")
        Traceback (most recent call last):
        TypeError: data: the program takes data, and gets x, y by name from a dict (missing a required ...
    """
    # Those of NumPyro pass the arguments on; another one may take its own.
    own = (Messenger.__call__, seed.__call__)
    called = next(
        each
        for each in within_handlers(program)
        if not (isinstance(each, Messenger) and type(each).__call__ in own)
    )
    try:
        # A decorated program is called through its decorator, which may take other arguments.
        signature = inspect.signature(called, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    if isinstance(data, Batch):
        args, kwargs = data.arguments()
        data = kwargs or args
    if isinstance(data, Mapping):
        args, kwargs = (), dict(data)
    elif isinstance(data, tuple | list):
        args, kwargs = tuple(data), {}
    else:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        return
    names = list(signature.parameters)
    if kwargs:
        gets = f"{', '.join(map(str, kwargs))} by name from a dict"
    else:
        gets = f"{len(args)} by position from a {type(data).__name__}"
    if kwargs and not set(kwargs) <= set(names):
        advice = (
            "Rename the entries; a program that takes one dict whole gets it in a tuple: ({...},)."
        )
    elif reason.startswith("missing"):
        advice = (
            "Give what is missing; targets that a prediction goes without have a default, y=None."
        )
    else:
        advice = "A program that takes one tuple whole gets it in another: ((x, y),)."
    takes = ", ".join(names) or "nothing"
    raise TypeError(f"{name}: the program takes {takes}, and gets {gets} ({reason}). {advice}")

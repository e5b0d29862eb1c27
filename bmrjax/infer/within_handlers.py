"""What NumPyro's handlers are around."""

from collections.abc import Iterator
from typing import Any

from numpyro.handlers import seed
from numpyro.primitives import Messenger

# Handlers that call what they are around with the arguments that they get. Another one may take its own.
_PASS_ON = (Messenger.__call__, seed.__call__)


def within_handlers(program: Any) -> Iterator[Any]:
    """Yield a program or guide, and what each handler around it is around, from the outside in.

    Example:
        >>> import numpyro
        >>> from bmrjax.infer.within_handlers import within_handlers
        >>> def program(x): ...
        >>> handled = numpyro.handlers.block(numpyro.handlers.seed(program, 0))
        >>> [type(each).__name__ for each in within_handlers(handled)]
        ['block', 'seed', 'function']
    """
    yield program
    while isinstance(program, Messenger):
        program = program.fn
        yield program


def called_program(program: Any) -> Any:
    """Return what gets the arguments that a program or guide is called with, within handlers.

    Example:
        >>> import numpyro
        >>> from bmrjax.infer.within_handlers import called_program
        >>> def program(x): ...
        >>> called_program(numpyro.handlers.block(program)) is program
        True
    """
    return next(
        each
        for each in within_handlers(program)
        if not (isinstance(each, Messenger) and type(each).__call__ in _PASS_ON)
    )

"""What NumPyro's handlers are around."""

from collections.abc import Iterator
from typing import Any

from numpyro.primitives import Messenger


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

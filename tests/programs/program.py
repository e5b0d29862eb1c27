"""What the tests and the benchmark must know of one program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    """A NumPyro program with its data, as a user would write and pass them.

    Attributes:
        name: Unique name.
        model: The program.
        data: Positional arguments as a tuple, or keyword arguments as a dict.
        watch: Latent sites whose posterior means are compared; the first elements of each.
        minibatch: ``"ok"`` if rows may be processed in minibatches; else the names of which an error
            message must contain at least one: the sites at fault, or the argument that is needed whole.
        steps: Optimiser steps for which NumPyro's own SVI converges.
        nuts: False where NUTS has no meaning, because the program has learnable parameters.
        notes: Anything that a reader of the table should know.
    """

    name: str
    model: Callable
    data: tuple | dict[str, Any]
    watch: tuple[str, ...]
    minibatch: str | tuple[str, ...] = "ok"
    steps: int = 2000
    nuts: bool = True
    notes: str = ""

    @property
    def args(self) -> tuple:
        """Positional arguments of the program."""
        return self.data if isinstance(self.data, tuple) else ()

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the program."""
        return self.data if isinstance(self.data, dict) else {}

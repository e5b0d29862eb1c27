"""What networks are called with: arrays, pytrees of arrays, and the randomness that their code asks for."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, list)


def requires(module: Any, name: str, args: Sequence[Any]) -> bool:
    """Say whether a module's call has an argument of a name without a default, which no other one fills.

    Args:
        module: An Equinox or Flax NNX module.
        name: ``"key"`` or ``"rngs"``.
        args: The positional arguments that it gets.
    """
    try:
        signature = inspect.signature(type(module).__call__)
        filled = signature.bind_partial(module, *args).arguments
    except (TypeError, ValueError):
        return False
    parameter = signature.parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty and name not in filled


def takes(module: Any, name: str) -> bool:
    """Say whether a module's call has an argument of a name."""
    return name in inspect.signature(type(module).__call__).parameters


@dataclass(frozen=True)
class Arguments:
    """The arguments of a network, as arrays.

    Attributes:
        arrays: Their leaves.
        structure: How they make up the arguments; None if each is one.
        traced: The network on them, as a `TracedOnce`, once it was checked that it runs.
    """

    arrays: tuple[Array, ...]
    structure: Any
    traced: Any = None

    def of(self, arrays: Sequence[Array]) -> Sequence[Any]:
        """Return arguments that are made of other arrays."""
        return arrays if self.structure is None else jtu.tree_unflatten(self.structure, arrays)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of arrays for one of arguments."""
        return lambda *arrays: function(*self.of(arrays))


def arguments_of(caller: str, given: Sequence[Any]) -> Arguments:
    """Return example inputs as arrays.

    Args:
        caller: Name of the calling function, for the message.
        given: Arrays, and dicts, tuples and other pytrees of arrays.

    Raises:
        TypeError: For what holds something else.
    """
    leaves, structure = jtu.tree_flatten(tuple(given), is_leaf=lambda x: isinstance(x, list))
    for x in leaves:
        if not isinstance(x, NUMBERS):
            raise TypeError(
                f"{caller}: example inputs are arrays, or dicts and tuples of arrays, got "
                f"{type(x).__name__}. For a network that takes an option, give a module of your own "
                "around it whose arguments are arrays."
            )
    plain = all(isinstance(x, NUMBERS) for x in given)
    return Arguments(tuple(map(jnp.asarray, leaves)), None if plain else structure)

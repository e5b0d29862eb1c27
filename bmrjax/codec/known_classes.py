"""Classes and functions that descriptions of networks may name; `register` adds to them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from bmrjax.codec.flax_networks import flax_classes
from bmrjax.network_packages import network_modules
from bmrjax.structure import SelectInputs

Class = TypeVar("Class", bound=type)


def _library_classes() -> dict[str, type]:
    """Return the Equinox modules of offered packages, by name, and those of `equinox.nn`, with a prefix."""
    import equinox as eqx

    found: dict[str, type] = {"SelectInputs": SelectInputs}
    for module in network_modules():
        own = _modules_in(module).items()
        found |= {name: cls for name, cls in own if cls.__module__ == module.__name__}
    theirs = _modules_in(eqx.nn)
    for name in ("StateIndex", "Shared"):
        theirs.pop(name, None)
    # What stands for a Flax network has one name, that of the network.
    stand_ins = flax_classes()
    found = {name: cls for name, cls in found.items() if cls not in stand_ins.values()}
    return found | stand_ins | {f"eqx.{name}": cls for name, cls in theirs.items()}


def _modules_in(module: Any) -> dict[str, type]:
    import equinox as eqx

    found = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: cls for name, cls in found.items() if issubclass(cls, eqx.Module)}


@functools.cache
def known_functions() -> dict[str, Callable]:
    """Return the functions that a description may name: activations, and what they are made of."""
    from jax import lax

    named = (
        "relu silu gelu sigmoid softplus elu selu celu leaky_relu relu6 hard_tanh hard_sigmoid hard_swish "
        "soft_sign log_sigmoid glu softmax log_softmax mish identity"
    )
    found = {name: getattr(jax.nn, name) for name in named.split()}
    jnps = {f"jnp.{name}": getattr(jnp, name) for name in ("tanh", "sin", "cos", "exp", "abs")}
    return found | jnps | {"tanh": jax.nn.tanh, "lax.max": lax.max, "lax.add": lax.add}


_REGISTERED: dict[str, type] = {}


def known_classes() -> dict[str, type]:
    """Return the classes that a description may name, by the names that it has for them."""
    return _library_classes() | _REGISTERED


def register(cls: Class) -> Class:
    """Let the codec write and read an Equinox module of your own.

    Its declared attributes must be modules, arrays, plain values, lists, tuples and dicts of these, or
    activations of `jax.nn`. Decoding sets them without running its constructor. Files name the class only,
    so it must be registered, as it was, where they are read.

    Args:
        cls: An Equinox module.

    Returns:
        The class, so that this is a decorator.

    Raises:
        TypeError: For anything else.
        ValueError: If another class has its name.

    Example:
        >>> import equinox as eqx, jax
        >>> from bmrjax import codec
        >>> @codec.register
        ... class Scaled(eqx.Module):
        ...     weight: jax.Array
        ...     factor: float
        >>> codec.decode(codec.encode(Scaled(jax.numpy.ones(3), 2.0))).factor
        2.0
    """
    import equinox as eqx

    if not (isinstance(cls, type) and issubclass(cls, eqx.Module)):
        raise TypeError(f"register takes an Equinox module class, got {cls!r}.")
    taken = known_classes().get(cls.__name__, cls)
    if taken is not cls and taken.__module__ != cls.__module__:
        raise ValueError(f"register: there is another class {cls.__name__}; rename this one.")
    _REGISTERED[cls.__name__] = cls
    return cls  # pyright: ignore[reportReturnType]


def fields_of(cls: type) -> list[str]:
    """Return the names of the attributes that a class declares."""
    return [field.name for field in dataclasses.fields(cls)]

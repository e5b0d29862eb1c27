"""Classes and functions that descriptions of networks may name; `register` adds to them."""

import dataclasses
from typing import TypeVar

from bmrjax.codec import library_names
from bmrjax.codec.flax_networks import flax_classes
from bmrjax.codec.flax_objects import flax_kind
from bmrjax.network_packages import network_modules
from bmrjax.structure import SelectInputs

Class = TypeVar("Class", bound=type)


def _library_classes() -> dict[str, type]:
    """Return the Equinox modules of offered packages, by name, and those of libraries, with a prefix."""
    import equinox as eqx

    found: dict[str, type] = {"SelectInputs": SelectInputs}
    for module in network_modules():
        for name, cls in vars(module).items():
            if not isinstance(cls, type) or cls.__module__ != module.__name__:
                continue
            if issubclass(cls, eqx.Module):
                found[name] = cls
            elif flax_kind(cls):
                found[f"{module.__name__}:{name}"] = cls
    # What stands for a Flax network has one name, that of the network.
    stand_ins = flax_classes()
    found = {name: cls for name, cls in found.items() if cls not in stand_ins.values()}
    return found | stand_ins | library_names.equinox_classes() | library_names.flax_layer_classes()


_REGISTERED: dict[str, type] = {}


def known_classes() -> dict[str, type]:
    """Return the classes that a description may name, by the names that it has for them."""
    return _library_classes() | _REGISTERED


def register(cls: Class) -> Class:
    """Let the codec write and read a network's class under its plain name.

    Classes that can be imported need no registration: a file names them by their module, and whoever loads
    it allows that module. Register what cannot be imported, such as a class that a function defines, or
    what is to be read without `allow`. Decoding sets the attributes without running the constructor. The
    class must be registered, as it was, where files are read.

    Args:
        cls: An Equinox module, or a module or variable of Flax NNX.

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

    if not isinstance(cls, type) or not (issubclass(cls, eqx.Module) or flax_kind(cls)):
        raise TypeError(f"register takes an Equinox module class, or one of Flax NNX, got {cls!r}.")
    taken = known_classes().get(cls.__name__, cls)
    if taken is not cls and taken.__module__ != cls.__module__:
        raise ValueError(f"register: there is another class {cls.__name__}; rename this one.")
    _REGISTERED[cls.__name__] = cls
    return cls  # pyright: ignore[reportReturnType]


def fields_of(cls: type) -> list[str]:
    """Return the names of the attributes that a class declares."""
    if cls is library_names.flax_layer_classes()["nnx.StateAxes"]:
        return ["_filters", "_axes"]
    if not dataclasses.is_dataclass(cls):
        return list(getattr(cls, "_fields", ()))
    return [field.name for field in dataclasses.fields(cls)]

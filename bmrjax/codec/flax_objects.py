"""Modules and variables of Flax NNX, attribute by attribute; neither constructors nor setters run."""

from collections.abc import Mapping
from typing import Any

from bmrjax.codec.budget import Price
from bmrjax.codec.codec_error import CodecError

# A module or a variable; measured as those of `budget`.
FLAX_OBJECT = Price(30_000, 4000)
# What every variable has, and no file says.
USUAL = ("hijax", "ref", "eager_sharding")


def is_variable(value: Any) -> bool:
    """Say whether a value is a variable of Flax NNX."""
    from flax import nnx

    return isinstance(value, nnx.Variable)


def is_flax_object(value: Any) -> bool:
    """Say whether a value is a module of Flax NNX, a list, a dict or a stream of random keys of it."""
    from flax import nnx

    return isinstance(value, nnx.Pytree)


def flax_kind(cls: type) -> str | None:
    """Return whether a class is of modules or variables of Flax NNX: ``"object"``, ``"variable"`` or None."""
    from flax import nnx

    if issubclass(cls, nnx.Variable):
        return "variable"
    return "object" if issubclass(cls, nnx.Pytree) else None


def attributes_of(value: Any) -> dict[str, tuple[Any, str | None]]:
    """Return the attributes of a module by name.

    Args:
        value: A module, a list or the like.

    Returns:
        Each with ``"data"`` or ``"static"`` where it was said to be that, and None where it is what Flax
        makes of such a value.
    """
    from flax import nnx

    status = value._pytree__nodes
    found = {}
    for name, each in vars(value).items():
        if not _is_own(name):
            usual = type(value)._pytree__nodes.get(name, nnx.is_data(each))
            now = status.get(name, usual)
            found[name] = each, None if now == usual else ("data" if now else "static")
    return found


def _is_own(name: str) -> bool:
    return name.startswith(("_pytree__", "_object__"))


def is_attribute(name: str) -> bool:
    """Say whether a file may set an attribute of this name."""
    return name.isascii() and not name.startswith("__") and not _is_own(name)


def metadata_of(variable: Any, path: str) -> dict[str, Any]:
    """Return what a variable has beside its value.

    Raises:
        CodecError: If it is a reference into memory.
    """
    found = dict(variable.get_metadata())
    if found.get("hijax") or found.get("ref"):
        raise CodecError(
            f"encode: '{path}' is a variable that is a reference; make the network without hijax and ref."
        )
    return {name: value for name, value in found.items() if name not in USUAL}


def make_variable(cls: type, value: Any, metadata: Mapping[str, Any]) -> Any:
    """Return a variable of Flax NNX."""
    from flax import nnx

    usual = {"hijax": False, "ref": False, "eager_sharding": nnx.using_eager_sharding()}
    return cls.from_metadata(value, {**usual, **metadata})  # pyright: ignore[reportAttributeAccessIssue]


def make_object(cls: type, attributes: Mapping[str, tuple[Any, str | None]]) -> Any:
    """Return a module of Flax NNX with these attributes; see `attributes_of`."""
    from flax import nnx
    from flax.nnx.pytreelib import PytreeState

    made: Any = object.__new__(cls)
    held = vars(made)
    held["_pytree__state"] = PytreeState()
    held["_pytree__nodes"] = status = cls._pytree__nodes  # pyright: ignore[reportAttributeAccessIssue]
    said = {}
    for name, (value, kind) in attributes.items():
        held[name] = value
        if kind is not None:
            said[name] = kind == "data"
        elif name not in status:
            said[name] = nnx.is_data(value)
    if cls._pytree__is_pytree:  # pyright: ignore[reportAttributeAccessIssue]
        held["_pytree__nodes"] = status.update({**said, "_pytree__nodes": False})
    return made

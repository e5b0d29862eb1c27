"""How a batch of data becomes the arguments of a program."""

import enum
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

Keep = Mapping[str, Bool[Array, "..."]]


class Constants:
    """What the arguments of a program hold besides rows: numbers, None, strings, whole arrays.

    They are a part of the structure of a `Batch`, not of its leaves, so a compiled program holds them as
    constants, and the program that is fitted sees the objects that the caller gave, or copies of arrays and
    tables. Two are equal if their values are.

    Args:
        structure: Tree of the arguments, as a pair (args, kwargs), with a leaf per value.
        values: The leaves; `ROW` where an array with rows goes.
        num_rows: Number of data points.
    """

    def __init__(self, structure: Any, values: tuple[Any, ...], num_rows: int):
        self.structure: Any = structure
        self.values: tuple[Any, ...] = values
        self.num_rows: int = num_rows
        self.signature: tuple[Any, ...] = (structure, tuple(_signature(v) for v in values))

    def __hash__(self) -> int:
        return hash(self.signature)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and self.signature == other.signature

    def fingerprint(self, describe: Callable[[Any], str]) -> str:
        """Return a text that tells these constants from others, the same in every process.

        Args:
            describe: Returns such a text for an object that is neither a number nor a text nor an array.
        """
        plain = bool | int | float | str | None
        shown = []
        for value, signature in zip(self.values, self.signature[1], strict=True):
            kind = type(value).__name__
            known = isinstance(value, plain | np.ndarray | jax.Array | list | tuple)
            if known or is_table(value):
                shown.append(repr(signature))
            elif isinstance(value, np.generic | enum.Enum):
                own = value.name if isinstance(value, enum.Enum) else value.item()
                shown.append(repr((kind, own)))
            else:
                shown.append(kind if value is ROW else describe(value))
        return "; ".join(shown)


class _Row:
    """Marks the place of an array with rows."""

    def __repr__(self) -> str:
        return "ROW"


ROW: _Row = _Row()


def is_table(value: Any) -> bool:
    """Return whether a value is an array, or holds one as the tables of pandas and of others do."""
    has_values = hasattr(type(value), "__array__") and hasattr(value, "shape")
    return has_values and not isinstance(value, np.generic)


def _signature(value: Any) -> Any:
    if isinstance(value, np.ndarray | jax.Array) or is_table(value):
        host = np.asarray(value)
        # Of objects, such as the texts of a table, the bytes are addresses.
        held = repr(host.tolist()).encode() if host.dtype == object else host.tobytes()
        columns = tuple(map(str, getattr(value, "columns", ())))
        shape = (host.shape, columns) if columns else host.shape
        return type(value).__name__, shape, str(host.dtype), hashlib.sha256(held).hexdigest()
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(_signature(each) for each in value)
    try:
        hash(value)
    except TypeError:
        return (_Same(value),)
    return type(value).__name__, value


class _Same:
    """Compares what has no value to compare by: equal to itself alone."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __repr__(self) -> str:
        return type(self.value).__name__


@jax.tree_util.register_pytree_node_class
class Batch:
    """Arguments of a program, of which some are arrays with one row per data point.

    As a tree, its leaves are these arrays, so ``jax.tree.map(lambda a: a[:10], batch)`` takes ten rows;
    all else stays as it is.

    Args:
        rows: The arrays with rows, in the order of the arguments.
        constants: All else.
    """

    def __init__(self, rows: tuple[Any, ...], constants: Constants):
        self.rows: tuple[Any, ...] = tuple(rows)
        self.constants: Constants = constants

    def tree_flatten(self) -> tuple[tuple[Any, ...], Constants]:
        """Return leaves and structure."""
        return self.rows, self.constants

    @classmethod
    def tree_unflatten(cls, constants: Constants, rows: Any) -> "Batch":
        """Undo `tree_flatten`."""
        return cls(tuple(rows), constants)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments."""
        rows = iter(self.rows)
        values = [next(rows) if value is ROW else value for value in self.constants.values]
        args, kwargs = jax.tree.unflatten(self.constants.structure, values)
        return tuple(args), dict(kwargs)


Data = tuple[Array, ...] | Mapping[str, Array] | Batch


def arguments(batch: Data) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that `batch` stands for."""
    if isinstance(batch, Batch):
        return batch.arguments()
    return ((), dict(batch)) if isinstance(batch, Mapping) else (tuple(batch), {})


def first_rows(batch: Data, size: int) -> Data:
    """Return the first rows of every array. Nothing is compiled where arrays are in the host's memory.

    Args:
        batch: Arrays with a common leading axis.
        size: How many.
    """

    def first(a: Any) -> Any:
        if isinstance(a, jax.Array):
            near = len(a.devices()) == 1 and next(iter(a.devices())).platform == "cpu"
            if not near or jnp.issubdtype(a.dtype, jax.dtypes.extended):
                return a[:size]
        return np.asarray(a)[:size]

    return jax.tree.map(first, batch)


def length(batch: Data) -> int:
    """Return the number of data points."""
    leaves = jax.tree.leaves(batch)
    if not leaves and isinstance(batch, Batch):
        return batch.constants.num_rows
    return leaves[0].shape[0] if leaves else 1

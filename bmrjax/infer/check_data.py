"""The arguments that a caller gives, checked, and sorted into rows and constants."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bmrjax.backend.on_device import held_on_device
from bmrjax.checks import check_unmasked, plain_array
from bmrjax.infer.arguments import ROW, Batch, Constants, Data, is_table


class NonFiniteDataError(ValueError):
    """An array with rows holds NaN or infinite values."""


class Part(NamedTuple):
    """One value among the arguments.

    Attributes:
        path: Where it is: ``"0"`` for the first positional argument, ``"x"`` for the keyword x, and
            ``"0/x"`` for the entry x of a dict that is the first argument.
        value: What the caller gave.
        array: The same as an array, if it is one; None for all else.
    """

    path: str
    value: Any
    array: Any


def parts_of_data(data: Any) -> tuple[Any, list[Part]]:
    """Return the tree of the arguments and its leaves.

    Args:
        data: A tuple or list of positional arguments, or a mapping of keyword arguments.
    """
    found: list[Part] = []

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {key: walk(each, f"{path}/{key}") for key, each in value.items()}
        array = _as_array(value)
        if array is None and isinstance(value, tuple | list) and len(value):
            each = [walk(one, f"{path}/{i}") for i, one in enumerate(value)]
            return _of_type(value, each)
        found.append(Part(path, value, array))
        return len(found) - 1

    if isinstance(data, Mapping):
        tree: Any = ((), {key: walk(value, str(key)) for key, value in data.items()})
    else:
        tree = (tuple(walk(value, str(i)) for i, value in enumerate(data)), {})
    # The leaves of a dict come in the order of its sorted keys.
    order, structure = jax.tree.flatten(tree)
    return structure, [found[i] for i in order]


def _of_type(value: tuple | list, each: list) -> Any:
    """Return a list, a tuple or a named tuple, as `value` is one, of other entries."""
    if hasattr(value, "_fields"):
        return type(value)(*each)
    return tuple(each) if isinstance(value, tuple) else each


def _as_array(value: Any) -> Any:
    """Return an array for an array, a table or nested lists of numbers; None for all else."""
    if isinstance(value, np.ndarray):
        return value if np.ma.is_masked(value) else plain_array(value)
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, list | tuple):
        return np.asarray(value) if value and _is_numbers(value) else None
    if hasattr(value, "__array__") and hasattr(value, "shape") and not np.isscalar(value):
        return np.asarray(value)  # a table, a tensor
    return None


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_numbers(each) for each in value)
    return isinstance(value, int | float | np.number | np.bool_)


def check_data(
    data: Any,
    name: str,
    *,
    rows: Collection[str] | None = None,
    static: Collection[str | int] = (),
    allow_non_finite: bool = False,
) -> Data:
    """Return arguments as arrays with one row per data point, and constants.

    An array has rows if its leading axis is as long as that of most arrays (of the longest, where they
    are all different). Everything else is passed to the program as it was given.

    Args:
        data: A tuple of positional arguments or a mapping of keyword arguments; their values may be
            nested dicts. A `Batch` is returned as it is.
        name: What the argument is called, for messages.
        rows: Paths of the arrays that have rows (see `row_paths`), where that is known.
        static: Arguments to pass as they were given, although they may have rows: names of keywords or
            positions, or whole paths.
        allow_non_finite: Whether NaN and infinite values may be in arrays with rows.

    Returns:
        A tuple or dict of arrays if all arguments have rows, else a `Batch`.

    Raises:
        TypeError: If `data` is neither a tuple nor a mapping, or is traced by JAX.
        ValueError: For arrays that hold no numbers or no rows, and, with `rows`, for unequal lengths.
        NonFiniteDataError: For values that are not finite.
    """
    if isinstance(data, Batch):
        return data
    if not isinstance(data, tuple | list | Mapping):
        raise TypeError(
            f"{name}: expected a tuple of arrays, passed as model(*batch), or a dict, passed as "
            f"model(**batch); got {type(data).__name__}. For one array write (x,)."
        )
    structure, parts = parts_of_data(data)
    static = {str(each) for each in static}
    unknown = sorted(s for s in static if not any(_within(part.path, s) for part in parts))
    if unknown:
        raise ValueError(
            f"{name}: static names {unknown}, and the arguments are {[p.path for p in parts]}. Give "
            "keywords, or positions from 0."
        )
    free = [p for p in parts if not any(_within(p.path, s) for s in static)]
    for part in free:
        if rows is None or part.path in rows:
            _check_kind(part, name)
    num_rows = _num_rows(free if any(map(_has_axes, free)) else parts, name, rows)
    values: list[Any] = []
    arrays: list[Any] = []
    for part in parts:
        shape = () if part.array is None else np.shape(part.array)
        is_row = part in free and shape[:1] == (num_rows,)
        if rows is not None:
            is_row = is_row and part.path in rows
        values.append(ROW if is_row else _held(part))
        if is_row:
            arrays.append(_checked(part, name, allow_non_finite=allow_non_finite))
    if arrays and len(arrays) == len(values) and all("/" not in part.path for part in parts):
        args, kwargs = jax.tree.unflatten(structure, arrays)
        return {key: kwargs[key] for key in data} if isinstance(data, Mapping) else args
    return Batch(tuple(arrays), Constants(structure, tuple(values), num_rows))


def row_paths(data: Data) -> tuple[str, ...]:
    """Return the paths of the arrays with rows among checked arguments, as leaves come; see `Part`."""
    if isinstance(data, Batch):
        leaves = jax.tree.unflatten(data.constants.structure, data.constants.values)
        args, kwargs = leaves
        _, parts = parts_of_data(kwargs if kwargs else args)
        return tuple(part.path for part in parts if part.value is ROW)
    # The leaves of a dict come in the order of its sorted keys.
    return tuple(map(str, sorted(data) if isinstance(data, Mapping) else range(len(data))))


def lengths(data: Any) -> dict[str, int]:
    """Return the length of the leading axis of each array among the arguments, by path."""
    if isinstance(data, Batch):
        args, kwargs = data.arguments()
        data = kwargs if kwargs else args
    _, parts = parts_of_data(data)
    shapes = {p.path: np.shape(p.array) for p in parts if p.array is not None}
    return {path: shape[0] for path, shape in shapes.items() if shape}


def table_paths(data: Any) -> dict[str, str]:
    """Return what each table among the arguments is, such as ``"DataFrame"``, by path.

    Tables are given to a program as arrays: those of pandas, tensors of other libraries.
    """
    if isinstance(data, Batch) or not isinstance(data, tuple | list | Mapping):
        return {}
    given = np.ndarray | jax.Array | list | tuple
    return {
        part.path: type(part.value).__name__
        for part in parts_of_data(data)[1]
        if part.array is not None and not isinstance(part.value, given)
    }


def _has_axes(part: Part) -> bool:
    return part.array is not None and np.ndim(part.array) > 0


def column_names(data: Any) -> dict[str, tuple[str, ...]]:
    """Return the column names of each table (a pandas DataFrame, say) among the arguments, by path."""
    if isinstance(data, Batch):
        return {}
    _, parts = parts_of_data(data)
    tables = {p.path: getattr(p.value, "columns", None) for p in parts if p.array is not None}
    return {
        path: tuple(str(name) for name in columns)
        for path, columns in tables.items()
        if columns is not None
    }


def _within(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def _shown(part: Part) -> str:
    head, *rest = part.path.split("/")
    first = f"[{head}]" if head.isdecimal() else f"[{head!r}]"
    return first + "".join(f"[{key!r}]" for key in rest)


def _check_kind(part: Part, name: str) -> None:
    if isinstance(part.array, Tracer):
        raise TypeError(
            f"{name}{_shown(part)} has no values: this was called within jax.jit, vmap or grad. Call it "
            "outside; what it computes is compiled."
        )
    if part.array is None or isinstance(part.array, jax.Array):
        return
    check_unmasked(part.array, f"{name}{_shown(part)}")
    if part.array.dtype == object or part.array.dtype.kind in "USVmM":
        raise ValueError(
            f"{name}{_shown(part)} holds {part.array.dtype} values; give numbers. (What is not an array of "
            "numbers, and what the program takes as it is, can be named in static= of FitOptions.)"
        )


def _num_rows(parts: list[Part], name: str, rows: Collection[str] | None) -> int:
    arrays = list(filter(_has_axes, parts))
    if rows is not None:
        found = {p.path: np.shape(p.array)[0] for p in arrays if p.path in rows}
        if len(set(found.values())) > 1:
            keys = {int(k) if k.isdecimal() else k: v for k, v in found.items()}
            raise ValueError(
                f"{name}: the arrays have {keys} rows; they must share their leading axis."
            )
        arrays = [p for p in arrays if p.path in rows] or arrays
    counts = Counter(np.shape(p.array)[0] for p in arrays)
    counts.pop(0, None)
    if not counts:
        if arrays:
            shape = np.shape(arrays[0].array)
            raise ValueError(
                f"{name}{_shown(arrays[0])} has shape {shape}; give one row per data point."
            )
        return 1
    most = max(counts.values())
    return max(size for size, count in counts.items() if count == most)


def _held(part: Part) -> Any:
    """Return what the program gets as it was given; of a table a copy, which the caller does not change."""
    value = part.array if isinstance(part.value, np.ndarray) else part.value
    if not is_table(value) or isinstance(value, jax.Array) or not hasattr(value, "copy"):
        return value
    return value.copy()


def _checked(part: Part, name: str, *, allow_non_finite: bool) -> jax.Array:
    of_numpy = isinstance(part.array, np.ndarray)
    check_range(part.array, f"{name}{_shown(part)}")
    array = held_on_device(part.array) if of_numpy else jnp.asarray(part.array)
    if jnp.issubdtype(array.dtype, jnp.inexact) and not allow_non_finite:
        bad = ~_finite_rows(array, on_the_host=not isinstance(part.array, jax.Array))
        count = int(bad.sum())
        if count:
            raise NonFiniteDataError(
                f"{name}{_shown(part)} has NaN or infinite values in {count} of "
                f"{array.shape[0]} rows, first in row {int(bad.argmax())}. "
                "Drop or impute them first."
            )
    return array


def check_range(array: Any, name: str) -> None:
    """Raise ValueError for whole numbers that wrap around in the type that JAX gives them.

    Args:
        array: Of any type.
        name: What it is called, for the message.
    """
    dtype = getattr(array, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iu" or not np.size(array):
        return
    ours = jax.dtypes.canonicalize_dtype(dtype)
    if ours == dtype:
        return
    least, most = int(np.min(array)), int(np.max(array))
    if least < np.iinfo(ours).min or most > np.iinfo(ours).max:
        raise ValueError(
            f"{name} holds whole numbers from {least} to {most}, which wrap around in {ours}, the type that "
            "JAX has for them. Give them as floating-point numbers, or less their smallest one; or switch on "
            'double precision, by jax.config.update("jax_enable_x64", True).'
        )


def _finite_rows(array: jax.Array, *, on_the_host: bool) -> np.ndarray:
    """Return which rows are all finite; by NumPy, which compiles nothing, if that copies little."""
    on_the_host = on_the_host or all(device.platform == "cpu" for device in array.devices())
    of: Any = np if on_the_host else jnp
    rows: Any = np.asarray(array) if on_the_host else array
    return np.asarray(of.isfinite(rows.reshape(len(rows), -1)).all(-1))

"""What a program, an optimiser or a criterion is made of, as plain values that can be compared later.

Objects are taken apart: attributes of dataclasses and modules, closures, defaults, constants and globals of
functions and of the functions that they call, the methods that `__call__` calls, arrays, numbers. So a
learning rate in an optimiser's closure or a prior's scale in a program's is seen, and no repr with an address
in it. Code itself is not compared, nor the module that it is in: a program may be imported or run. Of
libraries' functions and objects, only what they are given counts; and of one's own, not what they may have
kept while they were called.
"""

import collections
import dataclasses
import datetime
import dis
import enum
import functools
import inspect
import math
import numbers
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from bmrjax.infer.arguments import is_table
from bmrjax.run.digests import digest

# Deeper nesting, and more values, are not looked at: a fingerprint is a safeguard, not a proof.
_DEEPEST = 24
_MOST_VALUES = 20_000
# Of an array, so many numbers at most are in the sums of before version 2.
_MOST_NUMBERS = 2**20
# Two machines differ in the last digits of a random start.
_RELATIVE = 1e-3
# An array of floating-point numbers is compared by so many sums of parts at most, each to so many digits.
_MOST_PARTS = 128
_RELATIVE_OF_PARTS = 1e-5
# How fingerprints are made; values of another version are compared where both have them.
_VERSION_PATH, _VERSION = "version of the fingerprint", 2
# Modules whose functions are not looked into, nor what their objects hold beside what they were made with.
_LIBRARIES = sys.stdlib_module_names | set(
    "bmrjax jax jaxlib numpy scipy numpyro optax flax equinox chex jaxtyping beartype pandas".split()
)
_PLAIN = (
    bytes, numbers.Number, range, slice, enum.Enum, PurePath, np.dtype, datetime.date, datetime.timedelta
)  # fmt: skip
# What grows while a program is called, a cache or a record, unless it is a parameter or a field.
_GROWING = (dict, list, set, collections.deque)
# Operations in Python's code.
_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_OF_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")

Fingerprint = dict[str, Any]


def fingerprint(value: Any) -> Fingerprint:
    """Return the plain values that an object is made of, by the path to each.

    Args:
        value: Anything.

    Returns:
        JSON values: numbers, truth values and text as they are; of an array, its shape, type, and sums of its
        parts or a digest; of a function or another object, its name.

    Example:
        >>> import functools
        >>> fingerprint(functools.partial(max, 0.1))
        {'version of the fingerprint': 2, '': 'partial', 'func': 'max', 'args.0': 0.1}
    """
    found: Fingerprint = {_VERSION_PATH: _VERSION}
    _walk(value, "", found, 0, set())
    return found


def first_difference(before: Fingerprint, now: Fingerprint) -> tuple[str, Any, Any] | None:
    """Return the path at which two fingerprints differ first, with both values, or None.

    Example:
        >>> first_difference({"scale": 0.1}, {"scale": 0.2})
        ('scale', 0.1, 0.2)
    """
    paths = [*now, *(path for path in before if path not in now)]
    if before.get(_VERSION_PATH) != now.get(_VERSION_PATH):
        paths = [path for path in now if path in before and path != _VERSION_PATH]
    for path in paths:
        had, has = before.get(path), now.get(path)
        if not _alike(had, has):
            return path, had, has
    return None


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        exact = ("shape", "dtype", "digest", "not finite")
        if any(name in a and name in b and a[name] != b[name] for name in exact):
            return False
        if "parts" in a and "parts" in b:
            return all(
                abs(x - y) <= _RELATIVE_OF_PARTS * max(size, other)
                for x, y, size, other in zip(
                    a["parts"], b["parts"], a["sizes"], b["sizes"], strict=True
                )
            )
        sums = a.get("sums", ()), b.get("sums", ())
        if "digest" in a and "digest" in b or not all(map(math.isfinite, [*sums[0], *sums[1]])):
            return True  # infinite masks had sums of no use
        size = max(map(abs, [1e-30, *sums[0], *sums[1]]))
        return all(
            math.isclose(x, y, rel_tol=_RELATIVE, abs_tol=_RELATIVE * size)
            for x, y in zip(*sums, strict=True)
        )
    return a == b and type(a) is type(b)


def _walk(value: Any, path: str, found: Fingerprint, depth: int, above: set[int]) -> None:
    if depth > _DEEPEST or len(found) >= _MOST_VALUES:
        return
    if value is None or isinstance(value, bool | int | str):
        found[path] = value
        return
    if isinstance(value, float):
        found[path] = value if math.isfinite(value) else str(value)
        return
    is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
    if is_array and value.dtype != object:
        found[path] = _array(value)
        return
    if id(value) in above:
        return
    above = above | {id(value)}

    def inner(part: Any, name: Any) -> None:
        _walk(part, f"{path}.{name}" if path else str(name), found, depth + 1, above)

    if isinstance(value, Mapping):
        for key, part in value.items():
            inner(part, key)
    elif isinstance(value, list | tuple | collections.deque):
        names = getattr(value, "_fields", range(len(value)))
        for name, part in zip(names, value, strict=True):
            inner(part, name)
    elif is_table(value):
        found[path] = _name(type(value))
        inner(list(map(str, getattr(value, "columns", ()))), "columns")
        values = np.asarray(value)
        inner(values.tolist() if values.dtype == object else values, "values")
    elif isinstance(value, set | frozenset):
        found[path] = sorted(map(str, value))
    elif isinstance(value, functools.partial):
        found[path] = "partial"
        inner(value.func, "func")
        inner(value.args, "args")
        inner(value.keywords, "keywords")
    elif isinstance(value, types.MethodType):
        inner(value.__func__, "function")
        inner(value.__self__, "self")
    elif isinstance(value, types.FunctionType):
        _function(value, path, found, inner)
    elif isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        found[path] = _name(value)
    elif isinstance(value, _PLAIN):
        found[path] = f"{_name(type(value))} {value}"
    else:
        found[path] = _name(type(value))
        for name, part in _attributes(value).items():
            inner(part, name)


def _function(value: types.FunctionType, path: str, found: Fingerprint, inner: Any) -> None:
    # `jax.jit` and other wrappers keep the function that they wrap.
    found[path] = _name(value)
    code = value.__code__
    for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
        try:
            inner(cell.cell_contents, name)
        except ValueError:
            continue  # not filled yet
    inner(value.__defaults__, "defaults")
    inner(value.__kwdefaults__, "defaults")
    plain = [c for c in code.co_consts if isinstance(c, bool | int | float | str)]
    if value.__module__ is None or not value.__module__.startswith(("jax.", "optax", "numpyro")):
        inner([c for c in plain if c != value.__doc__], "constants")
    if not _is_own(value):
        return
    inner(list(_nested_constants(code)), "inner constants")
    for name in dict.fromkeys(_names(code, _OF_GLOBALS)):
        part = value.__globals__.get(name)
        if isinstance(part, type) and _is_own(part):
            inner(_class_numbers(part), name)
        is_code = isinstance(part, types.ModuleType | types.BuiltinFunctionType | type)
        if not is_code and (not isinstance(part, types.FunctionType) or _is_own(part)):
            inner(part, name)


def _is_own(value: Any) -> bool:
    """Return whether a function or a class is of none of the libraries."""
    return str(value.__module__).partition(".")[0] not in _LIBRARIES


def _nested_constants(code: types.CodeType) -> Iterator[Any]:
    """Yield the constants in tuples and sets of a function, and of the functions that are made in it."""
    for part in code.co_consts:
        if isinstance(part, tuple | frozenset):
            yield from sorted(map(repr, part)) if isinstance(part, frozenset) else part
        elif isinstance(part, types.CodeType):
            for number, each in enumerate(part.co_consts):
                is_docstring = number == 0 and isinstance(each, str)
                if isinstance(each, bool | int | float | str) and not is_docstring:
                    yield each
            yield from _nested_constants(part)


def _names(code: types.CodeType, operations: tuple[str, ...]) -> Iterator[str]:
    """Yield what a function, and those that are made in it, names in some of Python's operations."""
    for each in dis.get_instructions(code):
        if each.opname in operations:
            yield each.argval
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part, operations)


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object declares, or holds where it can be taken apart safely."""
    kind = type(value)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        declared = {name: getattr(value, name, None) for name in fields}
        return declared | (_methods(kind) if _is_own(kind) else {})
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
    held = {name: getattr(value, name, None) for name in slots} | getattr(value, "__dict__", {})
    held = {name: part for name, part in held.items() if not name.startswith(("__", "_pytree__"))}
    # What it was made with; what an object computes and keeps for later says nothing of what it is. Objects
    # of one's own may keep what they were made with under other names.
    names = _parameter_names(kind)
    kept = {name: [each for each in (name, f"_{name}") if each in held] for name in names}
    found = {each: held[each] for some in kept.values() for each in some}
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None:
        found = {"wrapped": wrapped} | {
            name: part for name, part in found.items() if part is not wrapped
        }
    if not _is_own(kind):
        return found
    methods = _methods(kind)
    if not (names and all(kept.values())):
        stored = {
            name for each in methods.values() for name in _names(each.__code__, ("STORE_ATTR",))
        }
        found |= {
            name: part
            for name, part in held.items()
            if name not in stored and not isinstance(part, _GROWING)
        }
    return found | _class_numbers(kind) | methods


def _own_classes(kind: type) -> list[type]:
    return [each for each in kind.__mro__ if _is_own(each)]


def _class_numbers(kind: type) -> dict[str, Any]:
    """Return the numbers and arrays that a class of one's own, or one that it inherits from, holds."""
    return {
        name: part
        for each in reversed(_own_classes(kind))
        for name, part in vars(each).items()
        if not name.startswith(("__", "_pytree__"))
        and isinstance(part, bool | int | float | np.ndarray | jax.Array)
    }


def _methods(kind: type) -> dict[str, types.FunctionType]:
    """Return the methods of one's own that a call of an object may run, with those of classes above."""
    found: dict[str, types.FunctionType] = {}
    names = ["__call__"]
    for name in names:  # grows meanwhile
        for each in _own_classes(kind):
            method: Any = vars(each).get(name)
            if isinstance(method, property):
                method = method.fget
            method = inspect.unwrap(getattr(method, "__func__", method))
            if isinstance(method, types.FunctionType) and _is_own(method):
                found[f"{each.__qualname__}.{name}" if name in found else name] = method
                used = _names(method.__code__, _OF_ATTRIBUTES)
                names += dict.fromkeys(used).keys() - set(names)
    return found


def _parameter_names(kind: type) -> list[str]:
    for function in (kind, kind.__init__):  # a metaclass may hide what `__init__` takes
        try:
            parameters = inspect.signature(function).parameters.values()
        except (ValueError, TypeError):
            continue
        if any(each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
            return [each.name for each in parameters if each.name != "self"]
    return []


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__)


def _array(value: Any) -> Any:
    described = {"shape": list(value.shape), "dtype": str(value.dtype)}
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {**described, "digest": digest(jax.random.key_data(value))}
    array = np.asarray(value)
    if not jax.numpy.issubdtype(array.dtype, np.number):
        return {**described, "digest": digest(array)}
    flat = array.reshape(-1)
    if jax.numpy.issubdtype(array.dtype, np.integer):
        described["digest"] = digest(array)
    else:
        described |= _parts(flat)
    flat = np.nan_to_num(np.abs(flat[:: 1 + flat.size // _MOST_NUMBERS]).astype(np.float64))
    flat = np.where(flat < 1e290, flat, 0)
    turned = np.cos(np.arange(flat.size) % 1009)
    return {**described, "sums": [float(flat.sum()), _dot(flat, turned)]}


def _parts(flat: np.ndarray) -> dict[str, Any]:
    """Return sums of parts of an array, to compare it by, with the sums of the sizes for the tolerance.

    A part of n numbers differs if one of them changes by more than about 1e-5 n times their size.
    """
    if np.iscomplexobj(flat):
        flat = np.ascontiguousarray(flat).view(np.finfo(flat.dtype).dtype)
    length = max(1, -(-flat.size // _MOST_PARTS))
    turned = 1.5 + 0.5 * np.cos(np.arange(length) % 1009)  # their order counts too
    parts, sizes, strange = [], [], 0
    for start in range(0, flat.size, length):
        part = flat[start : start + length].astype(np.float64)
        size = _dot(np.abs(part), turned)
        if not size < 1e290:  # NaN, too
            finite = np.abs(part) < 1e280
            places = np.flatnonzero(~finite)
            kinds = np.where(np.isnan(part[places]), 3, np.where(part[places] > 0, 1, 2))
            strange += int((kinds * (places + start + 1)).sum())
            part = np.where(finite, part, 0)
            size = _dot(np.abs(part), turned)
        parts.append(float(f"{_dot(part, turned):.8g}"))
        sizes.append(float(f"{size:.8g}"))
    return {"parts": parts, "sizes": sizes, "not finite": strange}


def _dot(part: np.ndarray, weights: np.ndarray) -> float:
    # BLAS starts threads, which cost a multiple of this.
    return float(np.einsum("i,i", part, weights[: part.size]))

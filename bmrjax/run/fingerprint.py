"""What a program, an optimiser or a criterion is made of, as plain values that can be compared later.

Objects are taken apart: attributes of dataclasses and modules, closures and defaults of functions, arrays,
numbers. So a learning rate in an optimiser's closure or a prior's scale in a program's is seen, and no repr
with an address in it. Code itself is not compared, nor the module that it is in: a program may be imported or
run.
"""

import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bmrjax.run.digests import digest

# Deeper nesting, and more values, are not looked at: a fingerprint is a safeguard, not a proof.
_DEEPEST = 24
_MOST_VALUES = 20_000
# Of an array, so many numbers at most are summed up.
_MOST_NUMBERS = 2**20
# Two machines differ in the last digits of a random start.
_RELATIVE = 1e-3

Fingerprint = dict[str, Any]


def fingerprint(value: Any) -> Fingerprint:
    """Return the plain values that an object is made of, by the path to each.

    Args:
        value: Anything.

    Returns:
        JSON values: numbers, truth values and text as they are; of an array, its shape, type, and sums; of a
        function or another object, its name.

    Example:
        >>> import functools
        >>> fingerprint({"scale": 0.1, "step": functools.partial(max, 3)})
        {'scale': 0.1, 'step': 'partial', 'step.func': 'max', 'step.args.0': 3}
    """
    found: Fingerprint = {}
    _walk(value, "", found, 0, set())
    return found


def first_difference(before: Fingerprint, now: Fingerprint) -> tuple[str, Any, Any] | None:
    """Return the path at which two fingerprints differ first, with both values, or None.

    Example:
        >>> first_difference({"scale": 0.1}, {"scale": 0.2})
        ('scale', 0.1, 0.2)
    """
    for path in [*now, *(path for path in before if path not in now)]:
        had, has = before.get(path), now.get(path)
        if not _alike(had, has):
            return path, had, has
    return None


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        same = a.get("shape") == b.get("shape") and a.get("dtype") == b.get("dtype")
        sums = a.get("sums", ()), b.get("sums", ())
        size = max(map(abs, [1e-30, *sums[0], *sums[1]]))
        return same and all(
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
    if isinstance(value, np.ndarray | np.generic | jax.Array):
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
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))
        for name, part in zip(names, value, strict=True):
            inner(part, name)
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
        for name in code.co_names:
            part = value.__globals__.get(name)
            if isinstance(part, bool | int | float | str | np.ndarray | jax.Array):
                inner(part, name)


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object declares, or holds where it can be taken apart safely."""
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name, None) for name in fields}
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None:
        return {"wrapped": wrapped}
    # What it was made with; what an object computes and keeps for later says nothing of what it is.
    try:
        names = inspect.signature(type(value)).parameters
    except (ValueError, TypeError):
        return {}
    held = getattr(value, "__dict__", {})
    return {name: held[name] for name in names if name in held}


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__)


def _array(value: Any) -> Any:
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    array = np.asarray(value)
    described = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if not jax.numpy.issubdtype(array.dtype, np.number):
        return {**described, "digest": digest(array)}
    flat = array.reshape(-1)
    flat = np.nan_to_num(np.abs(flat[:: 1 + flat.size // _MOST_NUMBERS]).astype(np.float64))
    turned = np.cos(np.arange(flat.size) % 1009)  # their order counts too
    return {**described, "sums": [float(flat.sum()), float(flat @ turned)]}

"""What a traced program is known by, before it is lowered."""

import hashlib
import struct
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

# Of these, a compiler sees the function alone; the rest are rules of differentiation, new in each program.
_FUNCTION_ALONE = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def program_key(traced: Any) -> Any:
    """Return what two traced programs have in common only where one can be compiled in place of the other.

    Names of variables do not count; operations, their parameters, shapes, types, the values of constants,
    donated arguments and JAX's settings do. The text of a lowered program would not do: arguments that
    nothing is computed from are not in it, so of two functions of the same shapes, one of the first argument
    and one of the second, it is the same.

    Args:
        traced: From ``jax.jit(f).trace(...)``.

    Returns:
        Something hashable; None for a program that holds what cannot be compared.
    """
    key = _key(traced, constants=True)
    return None if key is None else (key, repr(sorted(jax.config.values.items())))


def equations_key(traced: Any) -> Any:
    """Return what two traced programs have in common where they differ in nothing but arrays they close over.

    Args:
        traced: From ``jax.jit(f).trace(...)``.

    Returns:
        Something hashable; None for a program that holds what cannot be compared.
    """
    return _key(traced, constants=False)


def constants_key(traced: Any) -> Any:
    """Return what the arrays that traced programs close over have in common if their values are the same.

    Arrays that no output is computed from do not count.

    Args:
        traced: From ``jax.jit(f).trace(...)``.

    Returns:
        Something hashable; None for arrays that cannot be compared.
    """
    jaxpr, values = traced.jaxpr.jaxpr, traced.jaxpr.consts
    needed = _needed(jaxpr, [True] * len(jaxpr.outvars))
    try:
        return tuple(
            _Reader()._array(value) if variable in needed else None
            for variable, value in zip(jaxpr.constvars, values, strict=True)
        )
    except (AttributeError, TypeError):
        return None


def _needed(jaxpr: Any, outputs: list[bool]) -> set[Any]:
    """Return the variables of a program that some of its outputs are computed from."""
    wanted = zip(jaxpr.outvars, outputs, strict=True)
    needed = {v for v, is_wanted in wanted if is_wanted and not hasattr(v, "val")}
    for equation in reversed(jaxpr.eqns):
        used = [v in needed for v in equation.outvars]
        if not any(used) and not equation.effects:
            continue
        inputs, inner = equation.invars, equation.params.get("jaxpr")
        inner = getattr(inner, "jaxpr", None)
        if equation.primitive.name == "jit" and inner is not None:
            of_inner = _needed(inner, used)
            inputs = [v for v, own in zip(inputs, inner.invars, strict=True) if own in of_inner]
        needed.update(v for v in inputs if not hasattr(v, "val"))
    return needed


def _key(traced: Any, *, constants: bool) -> Any:
    reader, program = _Reader(), traced.jaxpr
    try:
        text = reader.closed(program) if constants else reader.jaxpr(program.jaxpr)
        donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
        objects = tuple(reader.objects)
        key = text, objects, donated, str(traced.in_avals), traced.in_tree, traced.out_tree
        hash(key)
    except (AttributeError, TypeError):  # of another version of JAX; without a hash
        return None
    return key


class _Reader:
    """Writes a program as text, with references to `objects` for what has no text of its own."""

    def __init__(self) -> None:
        self.objects: dict[Any, int] = {}
        # By what an object is; it is held, so that no other one takes its place.
        self._jaxprs: dict[int, tuple[Any, str]] = {}
        self._seen: dict[int, tuple[Any, str]] = {}

    def closed(self, closed: Any) -> str:
        return f"[{self.jaxpr(closed.jaxpr)} {self._values(closed.consts)}]"

    def jaxpr(self, jaxpr: Any) -> str:
        if id(jaxpr) not in self._jaxprs:
            text = "\n".join(self._lines(jaxpr))
            self._jaxprs[id(jaxpr)] = jaxpr, hashlib.sha256(text.encode()).hexdigest()
        return self._jaxprs[id(jaxpr)][1]

    def _lines(self, jaxpr: Any) -> Iterable[str]:
        names: dict[Any, int] = {}

        def new(variables: Any) -> str:
            described = []
            for variable in variables:
                names[variable] = len(names)
                described.append(self._once(variable.aval))
            return " ".join(described)

        def read(variables: Any) -> str:
            return " ".join(
                f"<{self._value(v.val)} {self._once(v.aval)}>"
                if hasattr(v, "val")
                else f"{names[v]}"
                for v in variables
            )

        yield new(jaxpr.constvars)
        yield new(jaxpr.invars)
        for equation in jaxpr.eqns:
            primitive, params = equation.primitive, equation.params
            if primitive.name in _FUNCTION_ALONE:
                params = {"of": params[_FUNCTION_ALONE[primitive.name]]}
            inputs, context = read(equation.invars), self._context(equation.ctx)
            how = f"{self._once(primitive)} {context} {self._mapping(params)}"
            yield f"{how} ({inputs}) {new(equation.outvars)}"
        yield read(jaxpr.outvars)

    def _context(self, context: Any) -> str:
        if id(context) not in self._seen:
            names = [name for name in type(context).__slots__ if name != "__weakref__"]
            described = self._values([getattr(context, name, None) for name in names])
            self._seen[id(context)] = context, described
        return self._seen[id(context)][1]

    def _once(self, x: Any) -> str:
        if id(x) not in self._seen:
            self._seen[id(x)] = x, self._object(x)
        return self._seen[id(x)][1]

    def _object(self, x: Any) -> str:
        return f"@{self.objects.setdefault((type(x), x), len(self.objects))}"

    def _values(self, values: Any) -> str:
        return f"({','.join([self._value(x) for x in values])})"

    def _mapping(self, values: Any) -> str:
        items = [f"{self._value(name)}:{self._value(value)}" for name, value in values.items()]
        return f"{{{','.join(items)}}}"

    def _value(self, x: Any) -> str:
        kind = type(x)
        if x is None or kind in (bool, int, str, bytes):
            return repr(x)
        if isinstance(x, int):  # JAX's own literals have a type
            return f"{self._object(kind)}{int(x)}{getattr(x, 'dtype', '')}"
        if isinstance(x, float | complex):  # -0.0 == 0.0, and nan != nan
            parts = struct.pack("dd", complex(x).real, complex(x).imag).hex()
            return f"{self._object(kind)}{parts}{getattr(x, 'dtype', '')}"
        if isinstance(x, np.ndarray | np.generic | jax.Array):
            return self._array(x)
        if isinstance(x, tuple | list):
            return f"{self._object(kind)}{self._values(x)}"
        if kind is dict:
            return self._mapping(x)
        if hasattr(x, "eqns"):
            return self.jaxpr(x)
        if hasattr(x, "jaxpr") and hasattr(x, "consts"):
            return self.closed(x)
        return self._object(x)

    def _array(self, x: Any) -> str:
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return f"key {jax.random.key_impl(x)} {self._array(jax.random.key_data(x))}"
        if x.dtype == object:
            raise TypeError("an array of objects has no value of its own")
        values = np.ascontiguousarray(np.asarray(x))
        digest = hashlib.sha256(values.reshape(-1).view(np.uint8).data).hexdigest()
        return f"array {x.dtype} {x.shape} {digest}"

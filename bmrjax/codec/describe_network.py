"""Networks as text: names of known classes, plain values, and the shapes of arrays."""

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.flax_networks import held_form
from bmrjax.codec.flax_objects import attributes_of, is_flax_object, is_variable, metadata_of
from bmrjax.codec.known_classes import fields_of
from bmrjax.codec.names import NamesOfObjects
from bmrjax.codec.shared_paths import AtPaths, SharedNode, paths_of

ARRAY_DTYPES = (
    "float32 float16 bfloat16 float64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 "
    "complex128"
).split()


@dataclasses.dataclass(frozen=True)
class Hole:
    """Where an array goes.

    Attributes:
        name: Path to it in the network.
        shape: Its shape.
        dtype: Name of its type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def fractional(self) -> bool:
        """Whether its numbers have fractions."""
        return "float" in self.dtype or "complex" in self.dtype

    @property
    def extent(self) -> int:
        """Number of elements, were each axis at least 1 long: what tables of rows and columns take."""
        return math.prod(max(n, 1) for n in self.shape)


class Describer:
    """Turn a network into text; its arrays are collected on the way.

    Args:
        state: The running statistics of the network, if it has any.

    Attributes:
        holes: Where each array was.
        arrays: The arrays.
        names: The names of all classes and functions.
    """

    def __init__(self, state: Any = None):
        self._state = state
        self.names: NamesOfObjects = NamesOfObjects()
        self.holes: list[Hole] = []
        self.arrays: list[np.ndarray] = []
        # Number of each object that can be in several places, by identity; None while it is described.
        self._numbers: dict[int, int | None] = {}
        self._kept: list[Any] = []
        # Where a Flax network may be described by what stands for its class: nothing else shares its parts.
        self._alone = {""}

    def text(self, network: Any) -> str:
        """Return the text of a network."""
        return json.dumps(self._node(network, ""), separators=(",", ":"))

    def _node(self, value: Any, path: str) -> Any:
        import equinox as eqx

        plain = self._plain(value)
        if plain is not _NOT_PLAIN:
            return plain
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value, path)
        if is_flax_object(value):
            return self._once(value, path, lambda: self._flax(value, path))
        if isinstance(value, list | tuple | Mapping) and not fields_of(type(value)):
            return self._container(value, path)
        if isinstance(value, functools.partial):
            return self._partial(value, path)
        if isinstance(value, eqx.nn.StateIndex):
            held = value.init if self._state is None else self._state.get(value)
            return {"state": self._node(held, path)}
        if isinstance(value, eqx.nn.Shared):
            return self._shared(value, path)
        if isinstance(value, SharedNode):
            return {"removed": None}
        if isinstance(value, AtPaths):
            return {"paths" if value.several else "path": self._paths(value)}
        if isinstance(value, eqx.Module):
            return self._fields(value, path)
        if is_variable(value):
            return self._once(value, path, lambda: self._variable(value, path))
        if fields_of(type(value)) or (
            dataclasses.is_dataclass(value) and not isinstance(value, type)
        ):
            return self._fields(value, path)
        return self._named(value, path)

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool) or type(value) is str:
            return value
        if isinstance(value, enum.Enum):
            name = self.names.of_member(value)
            return _NOT_PLAIN if name is None else {"enum": name}
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float) and not isinstance(value, np.generic):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, complex) and not isinstance(value, np.generic):
            return {"complex": [self._plain(value.real), self._plain(value.imag)]}
        if value is ...:
            return {"ellipsis": None}
        if isinstance(value, np.dtype) and str(value) in ARRAY_DTYPES:
            return {"dtype": str(value)}
        return _NOT_PLAIN

    def _container(self, value: Any, path: str) -> Any:
        from flax.core import FrozenDict

        if isinstance(value, list):
            return [self._node(v, path_to(path, i)) for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": [self._node(v, path_to(path, i)) for i, v in enumerate(value)]}
        kind = {dict: "dict", FrozenDict: "frozen"}.get(type(value))
        if kind and all(type(k) is str for k in value):
            return {kind: {k: self._node(v, path_to(path, k)) for k, v in value.items()}}
        if kind == "dict":
            inner = [
                [self._node(k, path), self._node(v, path_to(path, k))] for k, v in value.items()
            ]
            return {"map": inner}
        raise CodecError(
            f"encode: '{path}' is a {type(value).__module__}.{type(value).__qualname__}, which no file can "
            "hold. Give a dict, a list or a tuple."
        )

    def _array(self, value: Any, path: str) -> Any:
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            kind = str(jax.random.key_impl(value))
            return {"key": [kind, self._array(jax.random.key_data(value), path)]}
        if str(value.dtype) not in ARRAY_DTYPES:
            raise CodecError(
                f"encode: '{path}' is an array of {value.dtype}, which no file can hold."
            )
        hole = Hole(path, tuple(value.shape), str(value.dtype))
        self.holes.append(hole)
        self.arrays.append(np.asarray(value))
        node: dict[str, Any] = {"array": list(hole.shape)}
        if hole.dtype != "float32":
            node["dtype"] = hole.dtype
        # Those of NumPy are constants for Equinox and Flax, and its numbers can be options.
        if not isinstance(value, jax.Array):
            node["as"] = "array" if isinstance(value, np.ndarray) else "number"
        return node

    def _partial(self, value: Any, path: str) -> Any:
        kind = {functools.partial: "partial", jax.tree_util.Partial: "tree partial"}.get(
            type(value)
        )
        if kind is None:
            return self._named(value, path)
        return {
            kind: [
                self._node(value.func, path_to(path, "func")),
                [self._node(v, path_to(path, i)) for i, v in enumerate(value.args)],
                {k: self._node(v, path_to(path, k)) for k, v in value.keywords.items()},
            ]
        }

    def _once(self, value: Any, path: str, describe: Callable[[], Any]) -> Any:
        """Describe an object where it is first, and refer to it elsewhere."""
        if id(value) in self._numbers:
            number = self._numbers[id(value)]
            if number is None:
                raise CodecError(f"encode: '{path}' is a part of itself, which no file can hold.")
            return {"same": number}
        self._numbers[id(value)] = None
        self._kept.append(value)  # so that no other object takes its identity
        node = describe()
        self._numbers[id(value)] = sum(n is not None for n in self._numbers.values())
        return node

    def _shared(self, value: Any, path: str) -> Any:
        fields = {"pytree": self._node(value.pytree, path_to(path, "pytree"))}
        for name in ("where", "get"):
            function = getattr(value, name)
            found = paths_of(function, value.pytree)
            if found is not None:
                function = found
            fields[name] = self._node(function, path_to(path, name))
        return {self._class_name(type(value), path): fields}

    def _paths(self, value: AtPaths) -> Any:
        found = [list(path) for path in value.paths]
        return found if value.several else found[0]

    def _fields(self, value: Any, path: str) -> Any:
        return {
            self._class_name(type(value), path): {
                name: self._node(getattr(value, name), path_to(path, name))
                for name in fields_of(type(value))
            }
        }

    def _variable(self, value: Any, path: str) -> Any:
        held = {"value": self._node(value.get_raw_value(), path)}
        metadata = metadata_of(value, path)
        if metadata:
            held["metadata"] = self._node(metadata, path_to(path, "metadata"))
        return {self._class_name(type(value), path): held}

    def _flax(self, value: Any, path: str) -> Any:
        form = held_form(value) if path in self._alone else None
        if form is not None:
            name, held = form
            self._alone.add(path_to(path, "network"))
            fields = fields_of(type(held))
            return {name: {n: self._node(getattr(held, n), path_to(path, n)) for n in fields}}
        inner = {}
        for name, (each, kind) in attributes_of(value).items():
            node = self._node(each, path_to(path, name))
            inner[name] = node if kind is None else {kind: node}
        return {self._class_name(type(value), path): inner}

    def _class_name(self, cls: type, path: str) -> str:
        name = self.names.of_class(cls)
        if name is None:
            raise CodecError(
                f"encode: '{path or 'the network'}' is a {cls.__module__}.{cls.__qualname__}, which cannot "
                "be imported by this name. Define the class at the top of a module, or register it with "
                "bmrjax.codec.register, where files are read too."
            )
        return name

    def _named(self, value: Any, path: str) -> Any:
        name = self.names.of_function(value) if callable(value) else None
        if name is not None:
            return {"function": name}
        if callable(value) and hasattr(value, "__qualname__"):
            raise CodecError(
                f"encode: '{path}' is {value!r:.80}, which has no name that could be imported, so no file "
                "can hold it. Write it as a function at the top of a module (def scaled(x): ...), as "
                "functools.partial of such a function or of one of jax.nn or jax.numpy, or as an Equinox "
                "module with a __call__."
            )
        raise CodecError(
            f"encode: '{path}' is {value!r:.80}, which no file can hold. What can be: arrays, numbers, "
            "texts, dtypes, functions with a name, modules, dataclasses, and lists, tuples, dicts of these."
        )


_NOT_PLAIN = object()


def path_to(path: str, part: Any) -> str:
    """Return the path to a part of what is at a path."""
    return f"{path}.{part}" if path else str(part)

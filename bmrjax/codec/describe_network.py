"""Networks as text: names of known classes, plain values, and the shapes of arrays."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.known_classes import fields_of, known_classes, known_functions

ARRAY_DTYPES = (
    "float32 float16 bfloat16 float64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
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
    """

    def __init__(self, state: Any = None):
        self._state = state
        self._classes = {cls: name for name, cls in known_classes().items()}
        self._names = [(f, name) for name, f in known_functions().items()]
        self.holes: list[Hole] = []
        self.arrays: list[np.ndarray] = []

    def text(self, network: Any) -> str:
        """Return the text of a network."""
        return json.dumps(self._node(network, ""), separators=(",", ":"))

    def _node(self, value: Any, path: str) -> Any:
        import equinox as eqx

        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value, path)
        if isinstance(value, list):
            return [self._node(v, path_to(path, i)) for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": [self._node(v, path_to(path, i)) for i, v in enumerate(value)]}
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return {"dict": {k: self._node(v, path_to(path, k)) for k, v in value.items()}}
        if isinstance(value, eqx.nn.StateIndex):
            held = value.init if self._state is None else self._state.get(value)
            return {"state": self._node(held, path)}
        if isinstance(value, eqx.Module):
            return self._module(value, path)
        for function, name in self._names:
            if value is function:
                return {"function": name}
        raise CodecError(
            f"encode: '{path}' is {value!r:.80}, which no file can hold. Of functions, those of jax.nn can."
        )

    def _array(self, value: Any, path: str) -> Any:
        if jnp.issubdtype(value.dtype, jax.dtypes.extended) or str(value.dtype) not in ARRAY_DTYPES:
            raise CodecError(
                f"encode: '{path}' is an array of {value.dtype}, which no file can hold."
            )
        hole = Hole(path, tuple(value.shape), str(value.dtype))
        self.holes.append(hole)
        self.arrays.append(np.asarray(value))
        shape = list(hole.shape)
        return (
            {"array": shape} if hole.dtype == "float32" else {"array": shape, "dtype": hole.dtype}
        )

    def _module(self, value: Any, path: str) -> Any:
        cls = type(value)
        if cls not in self._classes:
            raise CodecError(
                f"encode: '{path or 'the network'}' is a {cls.__module__}.{cls.__qualname__}, which the "
                "codec does not know. Register the class with bmrjax.codec.register, where files are "
                "read too."
            )
        return {
            self._classes[cls]: {
                name: self._node(getattr(value, name), path_to(path, name))
                for name in fields_of(cls)
            }
        }


def path_to(path: str, part: Any) -> str:
    """Return the path to a part of what is at a path."""
    return f"{path}.{part}" if path else str(part)

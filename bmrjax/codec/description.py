"""Networks as text: names of known classes, plain values, and the shapes of arrays.

Reading such a text runs no code of the network: an object is made without its constructor and given the
attributes that its class declares. Classes and functions are those of a list; `register` adds to it.
"""

import dataclasses
import functools
import importlib
import json
import math
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import bmrjax.nn
from bmrjax.codec.budget import (
    ARRAY,
    FLAX_BLOCK,
    FLAX_LAYER,
    FLAX_TRANSFORMER,
    MODULE,
    NODE,
    NUMBER,
    STATE,
    Budget,
)  # fmt: skip
from bmrjax.codec.errors import CodecError
from bmrjax.codec.flax_networks import FlaxMLP, FlaxSelectInputs, FlaxViT
from bmrjax.structure import SelectInputs

Class = TypeVar("Class", bound=type)

# Plain numbers of a network are sizes, factors and the like; texts name a padding or an axis.
LARGEST_INTEGER = 2**40
LONGEST_TEXT = 64
LONGEST_KEY = 128
# Windows of convolutions and of pooling, and what goes with them, have at most so many places.
WINDOWS = ("kernel_size", "padding", "stride", "dilation", "output_padding")
LARGEST_WINDOW = 2**12
DEEPEST = 32
MOST_AXES = 8
DTYPES = "float32 float16 bfloat16 float64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


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


@functools.cache
def _zoo() -> dict[str, type]:
    """Return the modules of `bmrjax.nn`, by name, and those of `equinox.nn`, with a prefix."""
    import equinox as eqx

    files = pkgutil.iter_modules(bmrjax.nn.__path__, "bmrjax.nn.")
    own = [importlib.import_module(file.name) for file in files]
    found: dict[str, type] = {
        "SelectInputs": SelectInputs,
        "NNXMLP": FlaxMLP,
        "NNXViT": FlaxViT,
        "NNXSelectInputs": FlaxSelectInputs,
    }
    for module in own:
        found |= {n: c for n, c in _modules_in(module).items() if c.__module__ == module.__name__}
    theirs = _modules_in(eqx.nn)
    for name in ("StateIndex", "Shared"):
        theirs.pop(name, None)
    return found | {f"eqx.{name}": cls for name, cls in theirs.items()}


def _modules_in(module: Any) -> dict[str, type]:
    import equinox as eqx

    found = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: cls for name, cls in found.items() if issubclass(cls, eqx.Module)}


@functools.cache
def _functions() -> dict[str, Callable]:
    from jax import lax

    named = (
        "relu silu gelu sigmoid softplus elu selu celu leaky_relu relu6 hard_tanh hard_sigmoid hard_swish "
        "soft_sign log_sigmoid glu softmax log_softmax mish identity"
    )
    found = {name: getattr(jax.nn, name) for name in named.split()}
    jnps = {f"jnp.{name}": getattr(jnp, name) for name in ("tanh", "sin", "cos", "exp", "abs")}
    return found | jnps | {"tanh": jax.nn.tanh, "lax.max": lax.max, "lax.add": lax.add}


_REGISTERED: dict[str, type] = {}


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
    taken = (_zoo() | _REGISTERED).get(cls.__name__, cls)
    if taken is not cls and taken.__module__ != cls.__module__:
        raise ValueError(f"register: there is another class {cls.__name__}; rename this one.")
    _REGISTERED[cls.__name__] = cls
    return cls  # pyright: ignore[reportReturnType]


def _fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


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
        self._classes = {cls: name for name, cls in (_zoo() | _REGISTERED).items()}
        self._names = [(f, name) for name, f in _functions().items()]
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
            return [self._node(v, _join(path, i)) for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": [self._node(v, _join(path, i)) for i, v in enumerate(value)]}
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return {"dict": {k: self._node(v, _join(path, k)) for k, v in value.items()}}
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
        if jnp.issubdtype(value.dtype, jax.dtypes.extended) or str(value.dtype) not in DTYPES:
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
                name: self._node(getattr(value, name), _join(path, name)) for name in _fields(cls)
            }
        }


def _join(path: str, part: Any) -> str:
    return f"{path}.{part}" if path else str(part)


class Builder:
    """Turn a text into a network; first `holes` reads it, then `build` fills it.

    Args:
        text: What `Describer.text` returned.
        budget: Pays for what the text asks for; by default it may ask for everything.

    Attributes:
        holes: The arrays.
        modules: How many modules it has.

    Raises:
        CodecError: If it is not a text of the codec, or names what the codec does not know.
    """

    def __init__(self, text: str, budget: Budget | None = None):
        self._budget = Budget() if budget is None else budget
        try:
            self._tree = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"the description of the network is damaged: {error}") from None
        self._classes, self._functions = _zoo() | _REGISTERED, _functions()
        self.holes: list[Hole] = []
        self.modules = 0
        self._check(self._tree, "", 0)

    def _check(self, node: Any, path: str, depth: int) -> None:
        """Read the tree without building anything, and note the arrays."""
        self._budget.charge(NODE)
        if depth > DEEPEST:
            raise CodecError("the description of the network is nested too deeply.")
        if node is None or isinstance(node, bool | float):
            return
        if isinstance(node, int):
            if abs(node) > LARGEST_INTEGER:
                size = f"{'-' * (node < 0)}2**{node.bit_length() - 1}"
                raise CodecError(f"the description of the network has a number like {size}.")
            return
        if isinstance(node, str):
            if len(node) > LONGEST_TEXT:
                raise CodecError("the description of the network has a long text in it.")
            return
        if isinstance(node, list):
            for i, each in enumerate(node):
                self._check(each, _join(path, i), depth + 1)
            return
        kind, inner = self._kind(node, path)
        if kind == "array":
            hole = Hole(path, tuple(inner), node.get("dtype", "float32"))
            self._budget.charge(ARRAY)
            self._budget.charge(NUMBER, hole.extent)
            self.holes.append(hole)
        elif kind == "tuple":
            self._check(inner, path, depth + 1)
        elif kind == "state":
            self._budget.charge(STATE)
            self._check(inner, path, depth + 1)
        elif kind in self._classes or kind == "dict":
            self._charge_module(kind, inner)
            for name, each in inner.items():
                self._check(each, _join(path, name), depth + 1)

    def _charge_module(self, kind: str, inner: dict[str, Any]) -> None:
        self._budget.charge(MODULE)
        if kind != "dict":
            self.modules += 1
            _check_windows(kind, inner)
        for name, parts, price in (
            ("NNXMLP", "layers", FLAX_LAYER),
            ("NNXViT", "blocks", FLAX_BLOCK),
        ):
            if kind == name and isinstance(inner[parts], list):
                self._budget.charge(price, len(inner[parts]))
        if kind == "NNXViT":
            self._budget.charge(FLAX_TRANSFORMER)

    def _kind(self, node: dict[str, Any], path: str) -> tuple[str, Any]:
        """Return what a node is and what is in it, checked."""
        kind = next(iter(node), "")
        inner = node.get(kind)
        where = f"the description of the network is damaged at '{path}': "
        if kind == "array":
            sizes = inner if isinstance(inner, list) and len(inner) <= MOST_AXES else [None]
            if not all(type(n) is int and 0 <= n <= LARGEST_INTEGER for n in sizes):
                raise CodecError(f"{where}it is no shape of an array.")
            if node.get("dtype", "float32") not in DTYPES or set(node) - {"array", "dtype"}:
                raise CodecError(f"{where}it is no type of an array.")
            return kind, inner
        if len(node) != 1:
            raise CodecError(f"{where}expected one name, got {len(node)}.")
        if kind == "function":
            good = isinstance(inner, str) and inner in self._functions
        elif kind == "float":
            good = inner in ("inf", "-inf", "nan")
        elif kind == "tuple":
            good = isinstance(inner, list)
        elif kind == "dict":
            good = isinstance(inner, dict) and all(len(key) <= LONGEST_KEY for key in inner)
        elif kind == "state":
            good = True
        elif kind not in self._classes:
            raise CodecError(
                f"{where}there is no class '{kind[:LONGEST_TEXT]}'. If it is your own, register it with "
                "bmrjax.codec.register before decoding."
            )
        else:
            fields = _fields(self._classes[kind])
            good = isinstance(inner, dict) and set(inner) == set(fields)
            if isinstance(inner, dict) and not good:
                differ = sorted(set(inner) ^ set(fields))[0]
                raise CodecError(
                    f"{where}'{differ[:LONGEST_TEXT]}' is only in the file or only in class {kind}; the file "
                    "is of another version of it."
                )
        if not good:
            raise CodecError(f"{where}'{kind}' does not fit what is in it.")
        return kind, inner

    def build(self, arrays: list[np.ndarray]) -> Any:
        """Return the network, or the network and its state, with these arrays."""
        import equinox as eqx

        self._left = iter(arrays)
        self._stateful = False
        network = self._made(self._tree)
        if not self._stateful:
            return network
        return eqx.nn.make_with_state(lambda: network)()

    def _made(self, node: Any) -> Any:
        import equinox as eqx

        if isinstance(node, list):
            return [self._made(each) for each in node]
        if not isinstance(node, dict):
            return node
        kind, inner = next(iter(node.items()))
        if kind == "array":
            # Numbers of a made-up file may be beyond float32.
            array = next(self._left)
            with np.errstate(over="ignore", invalid="ignore"):
                array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
            return jnp.asarray(array)
        if kind == "tuple":
            return tuple(self._made(each) for each in inner)
        if kind == "dict":
            return {name: self._made(each) for name, each in inner.items()}
        if kind == "function":
            return self._functions[inner]
        if kind == "float":
            return float(inner)
        if kind == "state":
            self._stateful = True
            return eqx.nn.StateIndex(self._made(inner))
        made = object.__new__(self._classes[kind])
        for name, each in inner.items():
            object.__setattr__(made, name, self._made(each))
        return made


def _check_windows(kind: str, fields: dict[str, Any]) -> None:
    """Refuse windows that would need more memory, or time to compile, than any network has use for."""
    left = [fields[name] for name in WINDOWS if name in fields]
    while left:
        node = left.pop()
        if isinstance(node, list | dict):
            left.extend(node if isinstance(node, list) else node.values())
        elif isinstance(node, int | float) and abs(node) > LARGEST_WINDOW:
            raise CodecError(
                f"the description of the network has a {kind} with a window or a padding of more than "
                f"{LARGEST_WINDOW} places."
            )


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")

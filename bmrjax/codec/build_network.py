"""Networks from texts, which are checked before anything is built.

Reading such a text runs no code of the network: an object is made without its constructor and given the
attributes that its class declares.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.codec.budget import (
    ARRAY,
    MODULE,
    NODE,
    NUMBER,
    STATE,
    Budget,
)  # fmt: skip
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.describe_network import ARRAY_DTYPES, Hole, path_to
from bmrjax.codec.flax_networks import flax_prices
from bmrjax.codec.known_classes import fields_of, known_classes, known_functions

# Plain numbers of a network are sizes, factors and the like; texts name a padding or an axis.
LARGEST_INTEGER = 2**40
LONGEST_TEXT = 64
LONGEST_KEY = 128
# Windows of convolutions and of pooling, and their paddings and strides, have at most so many places.
WINDOWS = ("kernel_size", "padding", "stride", "dilation", "output_padding")
LARGEST_WINDOW = 2**12
DEEPEST = 32
MOST_AXES = 8


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
        self._classes, self._functions = known_classes(), known_functions()
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
                self._check(each, path_to(path, i), depth + 1)
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
                self._check(each, path_to(path, name), depth + 1)

    def _charge_module(self, kind: str, inner: dict[str, Any]) -> None:
        self._budget.charge(MODULE)
        if kind != "dict":
            self.modules += 1
            _check_windows(kind, inner)
            for price, count in flax_prices(kind, inner):
                self._budget.charge(price, count)

    def _kind(self, node: dict[str, Any], path: str) -> tuple[str, Any]:
        """Return what a node is and what is in it, checked."""
        kind = next(iter(node), "")
        inner = node.get(kind)
        where = f"the description of the network is damaged at '{path}': "
        if kind == "array":
            sizes = inner if isinstance(inner, list) and len(inner) <= MOST_AXES else [None]
            if not all(type(n) is int and 0 <= n <= LARGEST_INTEGER for n in sizes):
                raise CodecError(f"{where}it is not a shape of an array.")
            if node.get("dtype", "float32") not in ARRAY_DTYPES or set(node) - {"array", "dtype"}:
                raise CodecError(f"{where}it is not a type of an array.")
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
            fields = fields_of(self._classes[kind])
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
    raise ValueError(f"{name} is not a number")

"""Networks from texts, which are checked before anything is built.

Reading such a text runs no code of the network: an object is made without its constructor and given the
attributes that its class declares.
"""

import functools
import json
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.codec.budget import Budget
from bmrjax.codec.check_description import STATUS, DescriptionCheck
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.flax_networks import built_form, is_form
from bmrjax.codec.flax_objects import flax_kind, make_object, make_variable
from bmrjax.codec.names import NameResolver
from bmrjax.codec.shared_paths import AtPaths, SharedNode


class Builder:
    """Turn a text into a network; first `holes` reads it, then `build` fills it.

    Args:
        text: What `Describer.text` returned.
        budget: Pays for what the text asks for; by default it may ask for everything.
        allow: See `NameResolver`. None to read the text only, whatever it names.

    Attributes:
        holes: The arrays.
        modules: How many modules it has.
        foreign: Names in it that are of no library.

    Raises:
        CodecError: If it is not a text of the codec, or names what it may not.
    """

    def __init__(self, text: str, budget: Budget | None = None, allow: Iterable[Any] | None = ()):
        try:
            self._tree = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"the description of the network is damaged: {error}") from None
        self._names = None if allow is None else NameResolver(allow)
        found = DescriptionCheck(self._tree, self._names, Budget() if budget is None else budget)
        self.holes = found.holes
        self.modules: int = found.modules
        self.foreign: list[str] = sorted(found.foreign)

    def build(self, arrays: list[np.ndarray]) -> Any:
        """Return the network, or the network and its state, with these arrays."""
        import equinox as eqx

        self._left = iter(arrays)
        self._stateful = False
        self._numbered: list[Any] = []
        self._classes: dict[str, tuple[type, str | None, bool]] = {}
        self._makers = {kind: getattr(self, f"_{kind.replace(' ', '_')}") for kind in _KINDS}
        network = self._made(self._tree)
        if not self._stateful:
            return network
        return eqx.nn.make_with_state(lambda: network)()

    def _made(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._made(each) for each in node]
        if not isinstance(node, dict):
            return node
        kind, inner = next(iter(node.items()))
        if kind == "array":
            return self._array(node.get("as"))
        make = self._makers.get(kind)
        return self._module(kind, inner) if make is None else make(inner)

    def _array(self, kind: str | None) -> Any:
        array = next(self._left)
        if kind == "number":
            return array[()]
        if kind == "array":
            return array.copy()
        # Numbers of a made-up file may be beyond float32.
        with np.errstate(over="ignore", invalid="ignore"):
            array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        return jnp.asarray(array)

    def _tuple(self, inner: Any) -> Any:
        return tuple(self._made(each) for each in inner)

    def _dict(self, inner: Any) -> Any:
        return {name: self._made(each) for name, each in inner.items()}

    def _frozen(self, inner: Any) -> Any:
        from flax.core import FrozenDict

        return FrozenDict(self._dict(inner))

    def _map(self, inner: Any) -> Any:
        return {self._made(key): self._made(value) for key, value in inner}

    def _function(self, inner: str) -> Any:
        return self._found().function_of(inner)

    def _enum(self, inner: str) -> Any:
        return self._found().member_of(inner)

    def _float(self, inner: str) -> float:
        return float(inner)

    def _complex(self, inner: Any) -> complex:
        return complex(*(self._made(each) for each in inner))

    def _dtype(self, inner: str) -> np.dtype:
        return np.dtype(jnp.dtype(inner))

    def _partial(self, inner: Any, cls: Any = functools.partial) -> Any:
        function, args, keywords = inner
        made = self._made(function)
        if not callable(made):
            raise CodecError(
                "the description of the network has a partial of something that is not a function."
            )
        return cls(made, *self._made(args), **self._dict(keywords))

    def _tree_partial(self, inner: Any) -> Any:
        return self._partial(inner, jax.tree_util.Partial)

    def _state(self, inner: Any) -> Any:
        import equinox as eqx

        self._stateful = True
        return eqx.nn.StateIndex(self._made(inner))

    def _key(self, inner: Any) -> Any:
        return jax.random.wrap_key_data(self._made(inner[1]), impl=inner[0])

    def _same(self, inner: int) -> Any:
        return self._numbered[inner]

    def _removed(self, inner: None) -> Any:
        return SharedNode()

    def _ellipsis(self, inner: None) -> Any:
        return ...

    def _path(self, inner: Any) -> AtPaths:
        return AtPaths((tuple(inner),), several=False)

    def _paths(self, inner: Any) -> AtPaths:
        return AtPaths(tuple(map(tuple, inner)), several=True)

    def _found(self) -> NameResolver:
        if self._names is None:
            raise CodecError("what was only read cannot be built.")
        return self._names

    def _module(self, kind: str, inner: dict[str, Any]) -> Any:
        if kind not in self._classes:
            cls = self._found().class_of(kind)
            self._classes[kind] = cls, flax_kind(cls), is_form(cls)
        cls, flax, form = self._classes[kind]
        if flax == "variable":
            held = self._dict(inner)
            made = make_variable(cls, held["value"], held.get("metadata", {}))
        elif flax:
            made = make_object(cls, {name: self._attribute(each) for name, each in inner.items()})
        elif issubclass(cls, tuple):
            values = self._dict(inner)
            return tuple.__new__(cls, [values[name] for name in cls._fields])  # pyright: ignore
        else:
            made = object.__new__(cls)
            for name, each in inner.items():
                object.__setattr__(made, name, self._made(each))
            if not form:
                return made
            made = built_form(made)
        self._numbered.append(made)
        return made

    def _attribute(self, node: Any) -> tuple[Any, str | None]:
        if isinstance(node, dict) and next(iter(node), "") in STATUS:
            kind, inner = next(iter(node.items()))
            return self._made(inner), kind
        return self._made(node), None


_KINDS = frozenset(
    "tuple dict frozen map function enum float complex dtype partial state key same removed ellipsis".split()
) | {"path", "paths", "tree partial"}


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")

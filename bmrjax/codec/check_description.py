"""Descriptions of networks, checked before anything is built of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bmrjax.codec.budget import (
    ARRAY,
    LIST,
    MODULE,
    NODE,
    NUMBER,
    STATE,
    STATEFUL_MODULE,
    STATEFUL_OBJECT,
    Budget,
)
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.describe_network import ARRAY_DTYPES, Hole, path_to
from bmrjax.codec.flax_networks import flax_prices, is_form_name
from bmrjax.codec.flax_objects import FLAX_OBJECT, flax_kind, is_attribute
from bmrjax.codec.known_classes import fields_of
from bmrjax.codec.names import LONGEST_NAME, NameResolver, is_qualified

# Plain numbers of a network are sizes, factors and the like; texts name a padding, an axis or an equation.
LARGEST_INTEGER = 2**40
LONGEST_TEXT = 1024
LONGEST_KEY = 128
# Windows of convolutions and of pooling, and their paddings and strides, have at most so many places.
WINDOWS = (
    "kernel_size",
    "padding",
    "stride",
    "strides",
    "dilation",
    "output_padding",
    "input_dilation",
    "kernel_dilation",
    "window_shape",
    "window_dimensions",
    "window_strides",
    "base_dilation",
    "window_dilation",
    "lhs_dilation",
    "rhs_dilation",
)
LARGEST_WINDOW = 2**12
DEEPEST = 64
MOST_AXES = 8
# Implementations of random keys, and words of their keys.
KEYS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4, "fry": 2, "urbg": 4}
# What stands for an attribute in a module of Flax: said to be data, or said to be none.
STATUS = ("data", "static")


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What the name of a class stands for, looked up once for each name.

    Attributes:
        foreign: Whether it is of no library.
        cls: The class; None if it is not looked up.
        flax: See `flax_kind`.
        fields: The attributes that it declares; None if it is no class of networks.
        form: Whether it stands for a Flax network.
    """

    foreign: bool
    cls: type | None
    flax: str | None
    fields: frozenset[str] | None
    form: bool


class DescriptionCheck:
    """Read a description without building anything; classes and functions are found, not called.

    Args:
        names: Finds them; None to read only, whatever the description names.
        budget: Pays for what the description asks for.

    Attributes:
        holes: The arrays.
        modules: How many modules there are.
        foreign: Names that are of no library.

    Raises:
        CodecError: If it is not a description, or names what it may not.
    """

    def __init__(self, tree: Any, names: NameResolver | None, budget: Budget):
        self._resolve = names is not None
        self._names = NameResolver() if names is None else names
        self._budget = budget
        self.holes: list[Hole] = []
        self.modules = 0
        self.foreign: set[str] = set()
        # Of each object so far that can be in a second place: how many nodes it has, and how deep they are.
        # Whatever walks through the network meets them once for each place.
        # How many of them are objects of Flax is counted too.
        self._numbered: list[tuple[int, int, int]] = []
        self._nodes = self._deepest = self._objects = 0
        self._stateful = False
        self._found: dict[str, _Kind] = {}
        self._named_before: set[tuple[str, str]] = set()
        self._kinds: dict[str, Callable[[Any, str, int], bool]] = {
            "tuple": self._items,
            "dict": self._dict,
            "frozen": self._dict,
            "map": self._map,
            "function": self._function,
            "enum": self._member,
            "float": lambda inner, path, depth: inner in ("inf", "-inf", "nan"),
            "complex": self._complex,
            "dtype": lambda inner, path, depth: inner in ARRAY_DTYPES,
            "partial": self._partial,
            "tree partial": self._partial,
            "state": self._state,
            "key": self._key,
            "same": self._same,
            "ellipsis": lambda inner, path, depth: inner is None,
            "removed": lambda inner, path, depth: inner is None,
            "path": lambda inner, path, depth: _is_path(inner),
            "paths": lambda inner, path, depth: (
                isinstance(inner, list) and bool(inner) and all(_is_path(each) for each in inner)
            ),
        }
        self._visit(1, 0)
        self._check(tree, "", 0)
        if self._stateful:
            self._budget.charge(STATEFUL_MODULE, self.modules)
            self._budget.charge(STATEFUL_OBJECT, self._objects)

    def _check(self, node: Any, path: str, depth: int) -> None:
        """Check a node that is paid for, and what is in it."""
        if type(node) is list:
            self._items(node, path, depth)
            return
        if type(node) is not dict:
            _check_plain(node)
            return
        kind = next(iter(node), "")
        where = f"the description of the network is damaged at '{path}': "
        if kind == "array":
            self._array(node, path, where)
            return
        if len(node) != 1:
            raise CodecError(f"{where}expected one name, got {len(node)}.")
        check = self._kinds.get(kind)
        good = (
            check(node[kind], path, depth) if check else self._module(kind, node[kind], path, depth)
        )
        if not good:
            raise CodecError(f"{where}'{kind[:LONGEST_KEY]}' does not fit what is in it.")

    def _visit(self, nodes: int, depth: int) -> None:
        """Pay for nodes, of which the deepest is at a depth."""
        self._budget.charge(NODE, nodes)
        self._nodes += nodes
        self._deepest = max(self._deepest, depth)
        if depth > DEEPEST:
            raise CodecError("the description of the network is nested too deeply.")

    def _same(self, inner: Any, path: str, depth: int) -> bool:
        if type(inner) is not int or not 0 <= inner < len(self._numbered):
            return False
        nodes, height, objects = self._numbered[inner]
        self._visit(nodes, depth + height)
        self._objects += objects
        return True

    def _array(self, node: dict[str, Any], path: str, where: str) -> None:
        inner = node["array"]
        sizes: list[Any] = inner if isinstance(inner, list) and len(inner) <= MOST_AXES else [None]
        if not all(type(n) is int and 0 <= n <= LARGEST_INTEGER for n in sizes):
            raise CodecError(f"{where}it is not a shape of an array.")
        kind = node.get("as", "array")
        if node.get("dtype", "float32") not in ARRAY_DTYPES or set(node) - {"array", "dtype", "as"}:
            raise CodecError(f"{where}it is not a type of an array.")
        if kind not in ("array", "number") or (kind == "number" and sizes):
            raise CodecError(f"{where}it is not an array of NumPy.")
        hole = Hole(path, tuple(sizes), node.get("dtype", "float32"))
        self._budget.charge(ARRAY)
        self._budget.charge(NUMBER, hole.extent)
        self.holes.append(hole)

    def _items(self, inner: Any, path: str, depth: int) -> bool:
        if not isinstance(inner, list):
            return False
        self._budget.charge(LIST)
        self._visit(len(inner), depth + bool(inner))
        for i, each in enumerate(inner):
            if type(each) is dict or type(each) is list:
                self._check(each, path_to(path, i), depth + 1)
            else:
                _check_plain(each)
        return True

    def _dict(self, inner: Any, path: str, depth: int) -> bool:
        if not isinstance(inner, dict) or any(len(key) > LONGEST_KEY for key in inner):
            return False
        self._budget.charge(MODULE)
        self._visit(len(inner), depth + bool(inner))
        for name, each in inner.items():
            self._check(each, path_to(path, name), depth + 1)
        return True

    def _map(self, inner: Any, path: str, depth: int) -> bool:
        if not isinstance(inner, list):
            return False
        self._budget.charge(MODULE)
        self._visit(2 * len(inner), depth + bool(inner))
        for each in inner:
            if not isinstance(each, list) or len(each) != 2:
                return False
            self._check(each[0], path, depth + 1)
            self._check(each[1], path_to(path, _plain_key(each[0])), depth + 1)
        return True

    def _complex(self, inner: Any, path: str, depth: int) -> bool:
        good = isinstance(inner, list) and len(inner) == 2
        return good and all(
            isinstance(x, float) or x in ({"float": v} for v in ("inf", "-inf", "nan"))
            for x in inner
        )

    def _function(self, inner: Any, path: str, depth: int) -> bool:
        return self._named(inner, "function", self._names.function_of)

    def _member(self, inner: Any, path: str, depth: int) -> bool:
        return self._named(inner, "member", self._names.member_of)

    def _named(self, name: Any, kind: str, find: Callable[[str], Any]) -> bool:
        self._budget.charge(MODULE)
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            return False
        if (name, kind) in self._named_before:
            return True
        if is_qualified(name) and not self._names.knows(name):
            self.foreign.add(name)
            if not self._resolve:
                return True
        elif ":" not in name and not self._names.knows(name) and not name.startswith("lax."):
            return False
        find(name)
        self._named_before.add((name, kind))
        return True

    def _partial(self, inner: Any, path: str, depth: int) -> bool:
        shape = isinstance(inner, list) and len(inner) == 3
        if not shape or not isinstance(inner[1], list) or not isinstance(inner[2], dict):
            return False
        # Of something to call, and nothing else.
        if not isinstance(inner[0], dict) or next(iter(inner[0]), "array") in (
            "array",
            "dict",
            "map",
        ):
            return False
        self._budget.charge(MODULE)
        self._visit(1, depth + 1)
        self._check(inner[0], path_to(path, "func"), depth + 1)
        self._items(inner[1], path, depth)
        _check_windows("partial", inner[2])
        return all(key.isidentifier() for key in inner[2]) and self._dict(inner[2], path, depth)

    def _state(self, inner: Any, path: str, depth: int) -> bool:
        self._budget.charge(STATE)
        self._stateful = True
        self._visit(1, depth + 1)
        self._check(inner, path, depth + 1)
        return True

    def _begin(self, depth: int) -> tuple[int, int, int]:
        before = self._nodes, self._deepest, self._objects
        self._deepest = depth
        return before

    def _number(self, before: tuple[int, int, int], depth: int) -> None:
        """Note an object that is described whole, and that others may refer to."""
        nodes, deepest, objects = before
        counts = self._nodes - nodes + 1, self._deepest - depth, self._objects - objects
        self._numbered.append(counts)
        self._deepest = max(self._deepest, deepest)

    def _key(self, inner: Any, path: str, depth: int) -> bool:
        if not isinstance(inner, list) or len(inner) != 2 or inner[0] not in KEYS:
            return False
        array = inner[1]
        if (
            not isinstance(array, dict)
            or array.get("dtype") != "uint32"
            or set(array) != {"array", "dtype"}
        ):
            return False
        self._budget.charge(ARRAY, 3)
        self._visit(1, depth + 1)
        self._check(array, path, depth + 1)
        return self.holes[-1].shape[-1:] == (KEYS[inner[0]],)

    def _module(self, kind: str, inner: Any, path: str, depth: int) -> bool:
        where = f"the description of the network is damaged at '{path}': "
        if not isinstance(inner, dict) or any(len(key) > LONGEST_KEY for key in inner):
            if not self._names.knows(kind):
                self._names.class_of(kind)
            return False
        self._budget.charge(MODULE)
        self.modules += 1
        _check_windows(kind, inner)
        if kind not in self._found:
            self._found[kind] = self._look_up(kind)
        found = self._found[kind]
        flax = found.flax
        if found.foreign:
            self.foreign.add(kind)
        if found.cls is not None and flax is None and found.fields != inner.keys():
            self._check_fields(kind, found.cls, inner, where)
        if found.form:
            for price, count in flax_prices(kind, inner):
                self._budget.charge(price, count)
        if flax:
            self._budget.charge(FLAX_OBJECT)
        if flax == "variable" and not ("value" in inner and set(inner) <= {"value", "metadata"}):
            return False
        if flax == "object" and not all(is_attribute(name) for name in inner):
            return False
        numbered = flax is not None or found.form
        before = self._begin(depth) if numbered else None
        self._objects += bool(flax)
        self._visit(len(inner), depth + bool(inner))
        for name, each in inner.items():
            inside = path if flax == "variable" and name == "value" else path_to(path, name)
            # A name that is not looked up may be of such a module.
            may_say = flax == "object" or (not self._resolve and found.foreign)
            if may_say and isinstance(each, dict) and len(each) == 1 and next(iter(each)) in STATUS:
                each = next(iter(each.values()))
            self._check(each, inside, depth + 1)
        if before is not None:
            self._number(before, depth)
        return True

    def _look_up(self, kind: str) -> _Kind:
        foreign = is_qualified(kind) and not self._names.knows(kind)
        cls = self._names.class_of(kind) if self._resolve or not foreign else None
        flax = None if cls is None else flax_kind(cls)
        fields = None if cls is None else frozenset(fields_of(cls))
        if not fields and not dataclasses.is_dataclass(cls):
            fields = None
        return _Kind(foreign, cls, flax, fields, is_form_name(kind))

    def _check_fields(self, kind: str, cls: type, inner: dict[str, Any], where: str) -> None:
        fields = fields_of(cls)
        if not fields and not dataclasses.is_dataclass(cls):
            raise CodecError(f"{where}{kind} is no class of networks or of their options.")
        differ = sorted(set(inner) ^ set(fields))
        if differ:
            raise CodecError(
                f"{where}'{differ[0][:LONGEST_KEY]}' is only in the file or only in class {kind}; the file "
                "is of another version of it."
            )


def _check_plain(node: Any) -> None:
    """Refuse long numbers and long texts."""
    if type(node) is int and abs(node) > LARGEST_INTEGER:
        size = f"{'-' * (node < 0)}2**{node.bit_length() - 1}"
        raise CodecError(f"the description of the network has a number like {size}.")
    if type(node) is str and len(node) > LONGEST_TEXT:
        raise CodecError("the description of the network has a long text in it.")


def _plain_key(node: Any) -> str:
    return str(node)[:LONGEST_KEY]


def _is_path(inner: Any) -> bool:
    """Say whether a node is a path that leads through nothing but parts of a tree."""
    return isinstance(inner, list) and all(
        (type(part) is int and 0 <= part < 2**31)
        or (isinstance(part, str) and len(part) <= LONGEST_KEY and not part.startswith("__"))
        for part in inner
    )


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

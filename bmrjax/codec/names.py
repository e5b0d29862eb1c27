"""Names of classes and functions in files: `library.name` where a library has them, else `module:name`."""

import functools
import importlib
import re
import sys
from collections.abc import Iterable
from enum import Enum
from types import ModuleType
from typing import Any

from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.known_classes import known_classes
from bmrjax.codec.library_names import (
    enumerations,
    initialiser_not_saved,
    library_functions,
)  # fmt: skip

LONGEST_NAME = 256
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
NOT_SAVED = "initialiser_not_saved"


@functools.cache
def _functions() -> dict[str, Any]:
    return {**library_functions(), NOT_SAVED: initialiser_not_saved}


def is_qualified(name: str) -> bool:
    """Say whether a name in a file is of the form ``module:name``, without parts like ``__this__``."""
    parts = re.split(r"[.:]", name)
    # The module of a script is the one name with underscores that can be meant.
    plain = not any(part.startswith("__") for part in parts if part != "__main__")
    return len(name) <= LONGEST_NAME and plain and _QUALIFIED.fullmatch(name) is not None


class NameResolver:
    """Find classes and functions by the names that a file has for them; nothing is called.

    Args:
        allow: Modules, packages, classes and functions, as objects or (modules, packages) by name, that a
            file may name beside those of the libraries. A package stands for all that is in it.

    Raises:
        TypeError: For anything else in `allow`.
    """

    def __init__(self, allow: Iterable[Any] = ()):
        self._classes, self._functions = known_classes(), _functions()
        self._modules: list[str] = []
        self._given: dict[str, Any] = {}
        for each in (allow,) if isinstance(allow, str) else allow:
            if isinstance(each, str):
                self._modules.append(each)
            elif isinstance(each, ModuleType):
                self._modules.append(each.__name__)
            elif callable(each) and _full_name(each) is not None:
                self._given[str(_full_name(each))] = each
            else:
                raise TypeError(
                    "allow takes names of packages or modules, modules, classes and functions, got "
                    f"{each!r:.80}."
                )

    def knows(self, name: str) -> bool:
        """Say whether a name is of a library, or registered."""
        return name in self._classes or name in self._functions

    def class_of(self, name: str) -> type:
        """Return the class of a name.

        Raises:
            CodecError: If there is none that the file may name.
        """
        found = self._classes.get(name) or self._found(name, "class")
        if not isinstance(found, type):
            raise CodecError(f"the file names {name} as a class, which it is not.")
        return found

    def function_of(self, name: str) -> Any:
        """Return the function, or the class, of a name; see `class_of`."""
        for known in (self._functions, self._classes):
            if name in known:
                return known[name]
        return self._found(name, "function")

    def member_of(self, name: str) -> Enum:
        """Return the member of an enumeration, by the name of it; see `class_of`."""
        found = enumerations().get(name) or self._found(name, "member of an enumeration")
        if not isinstance(found, Enum):
            raise CodecError(f"the file names {name} as one of an enumeration, which it is not.")
        return found

    def _found(self, name: str, kind: str) -> Any:
        if not is_qualified(name):
            raise CodecError(
                f"the description of the network is damaged: there is no {kind} '{name[:64]}'. If it is a "
                "class of your own, register it with bmrjax.codec.register before decoding."
            )
        module, qualified = name.split(":")
        given = self._given.get(name)
        if given is None and module == "__main__":  # of a script; the class may have moved since
            alike = [v for k, v in self._given.items() if k.split(":")[1] == qualified]
            given = alike[0] if len(alike) == 1 else None
        if given is not None:
            return given
        if not self._allowed(module):
            raise CodecError(
                f"the network has {name} in it, and files may name only what is allowed. If you trust the "
                f"file and the module, give it: codec.load_network(..., allow=('{module}',)); or the "
                "class or function itself."
            )
        return self._imported(name, module, qualified)

    def _allowed(self, module: str | None) -> bool:
        return module is not None and any(
            module == each or module.startswith(f"{each}.") for each in self._modules
        )

    def _imported(self, name: str, module: str, qualified: str) -> Any:
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:
            text = " ".join(str(error).split())
            raise CodecError(
                f"the network has {name} in it, and {module} cannot be imported here "
                f"({type(error).__name__}: {text:.200})."
            ) from None
        for i, part in enumerate(qualified.split(".")):
            if i and not isinstance(found, type):
                raise CodecError(f"the file names {name}, which is of no class or function.")
            found = vars(found).get(part)
        if isinstance(found, Enum):
            found_in: str | None = type(found).__module__
        else:
            found_in = getattr(found, "__module__", None) if callable(found) else None
        library = any(found is each for each in self._functions.values())
        # What a module has imported from elsewhere, such as os.system, is not a part of it.
        if found is None or not (self._allowed(found_in) or library):
            raise CodecError(
                f"the network has {name} in it, and {module} has no class or function "
                f"'{qualified[:64]}' of its own."
            )
        return found


class NamesOfObjects:
    """Find names for classes and functions, so that a file can hold what has them.

    Attributes:
        modules: Names of the modules beside those of the libraries that must be allowed on loading.
    """

    def __init__(self):
        self._library = known_classes()
        self._classes = {cls: name for name, cls in reversed(self._library.items())}
        self._functions = [(value, name) for name, value in _functions().items()]
        self.modules: set[str] = set()

    def of_class(self, cls: type) -> str | None:
        """Return the name of a class, or None if it cannot be imported by one."""
        return self._classes.get(cls) or self._qualified(cls)

    def of_function(self, function: Any) -> str | None:
        """Return the name of a function, or of a class as a value, or None if it has none."""
        for value, name in self._functions:
            if value is function:
                return name
        if isinstance(function, type):
            return self.of_class(function)
        if getattr(function, "__module__", None) == "jax._src.nn.initializers":
            return NOT_SAVED
        return self._qualified(function)

    def of_member(self, member: Enum) -> str | None:
        """Return the name of a member of an enumeration, or None if it has none."""
        for name, value in enumerations().items():
            if value is member:
                return name
        cls = self._qualified(type(member))
        return None if cls is None else f"{cls}.{member.name}"

    def _qualified(self, value: Any) -> str | None:
        module = getattr(value, "__module__", None)
        names = vars(sys.modules[module]) if module in sys.modules else {}
        qualified = getattr(value, "__qualname__", "")
        first, *rest = qualified.split(".")
        found = names.get(first)
        for part in rest:
            found = vars(found).get(part) if isinstance(found, type) else None
        if found is not value:
            # A lambda, or what a decorator made, that the module has under another name.
            qualified = next((name for name, each in names.items() if each is value), "")
        name = f"{module}:{qualified}"
        if not qualified or not is_qualified(name):
            return None
        if name not in self._library:
            self.modules.add(str(module))
        return name


def _full_name(value: Any) -> str | None:
    module, qualified = (getattr(value, name, None) for name in ("__module__", "__qualname__"))
    return f"{module}:{qualified}" if module and qualified else None

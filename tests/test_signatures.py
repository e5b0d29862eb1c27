"""How many arguments a call may take: what is more goes into a small frozen dataclass."""

import ast
import inspect
import types
from pathlib import Path

import pytest

import bmrjax

PACKAGE = Path(bmrjax.__file__).parent
MOST_ARGUMENTS = 16
# What the library makes for a caller to read, and no caller makes.
RESULTS = {"FitReduction", "GroupFit", "Result"}


def argument_names(function):
    """Return the arguments of a function as it is written, without the object or class of a method."""
    given = function.args
    found = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in found if name not in ("self", "cls")]


def functions():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(PACKAGE)}: {node.name}", argument_names(node)


def public_callables():
    """Yield what `bmrjax` and its public packages name, by its name."""
    packages = [bmrjax]
    packages += [v for v in vars_of(bmrjax).values() if isinstance(v, types.ModuleType)]
    for package in packages:
        for name, value in vars_of(package).items():
            if callable(value) and value.__module__.startswith("bmrjax"):
                yield name, value


def vars_of(package):
    names = getattr(package, "__all__", None) or [n for n in vars(package) if n[0] != "_"]
    return {name: getattr(package, name) for name in names}


def test_no_function_takes_more_arguments_than_a_reader_can_hold():
    counts = {name: len(arguments) for name, arguments in functions()}
    assert len(counts) > 2000
    assert {name: n for name, n in counts.items() if n > MOST_ARGUMENTS} == {}


def test_no_public_object_is_made_of_more():
    counts = {}
    for name, value in public_callables():
        try:
            counts[name] = len(inspect.signature(value).parameters)
        except ValueError:  # exceptions, which have no signature
            assert issubclass(value, Exception), name
    assert len(counts) > 200
    assert {name for name, n in counts.items() if n > MOST_ARGUMENTS} == RESULTS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self, a, /, b, *c, d, **e): ...", ["a", "b", "d"]),
        ("def f(cls): ...", []),
    ],
)
def test_arguments_are_counted_without_the_object_of_a_method(source, expected):
    assert argument_names(ast.parse(source).body[0]) == expected

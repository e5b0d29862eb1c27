"""Packages that hold networks, so that a class can be found by the name that a file has for it."""

import functools
import importlib
import pkgutil
from types import ModuleType

_packages: list[str] = []


def offer_networks(package: str) -> None:
    """Let the codec write and read the Equinox modules of a package, which is imported when it is needed.

    Args:
        package: Its full name.
    """
    if package not in _packages:
        _packages.append(package)


def network_modules() -> list[ModuleType]:
    """Import the packages that were offered, and return all of their modules."""
    return [module for package in _packages for module in _modules_of(package)]


@functools.cache
def _modules_of(package: str) -> tuple[ModuleType, ...]:
    path = importlib.import_module(package).__path__
    names = [each.name for each in pkgutil.iter_modules(path, f"{package}.")]
    return tuple(importlib.import_module(name) for name in names)

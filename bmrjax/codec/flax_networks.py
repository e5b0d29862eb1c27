"""Flax NNX networks as Equinox modules that hold the same arrays, which is what the codec describes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax

from bmrjax.codec.budget import Price
from bmrjax.network_packages import network_modules
from bmrjax.structure.nnx_select import NNXSelectInputs


@dataclass(frozen=True)
class FlaxForm:
    """What stands for a class of Flax NNX networks in a file.

    Attributes:
        network: The class. A file has its name.
        held: The Equinox module that holds the arrays of such a network.
        hold: From a network to this module.
        build: And back; raises `CodecError` if the arrays make no network.
        prices: What building it costs, given the attributes of the module as the file describes them.
    """

    network: type
    held: type[eqx.Module]
    hold: Callable[[Any], eqx.Module]
    build: Callable[[Any], Any]
    prices: Callable[[dict[str, Any]], Iterable[tuple[Price, int]]]


_FORMS: dict[str, FlaxForm] = {}


def _forms() -> dict[str, FlaxForm]:
    network_modules()  # which register theirs
    return _FORMS


def register_flax(form: FlaxForm) -> None:
    """Let the codec write and read a class of Flax NNX networks."""
    _FORMS[form.network.__name__] = form


class FlaxSelectInputs(eqx.Module):
    """What a `structure` wrapper that selects the inputs of a Flax NNX network holds."""

    network: Any
    indices: jax.Array


def flax_classes() -> dict[str, type]:
    """Return the modules that stand for Flax NNX networks, by the name of the networks' class."""
    return {name: form.held for name, form in _forms().items()} | {
        "NNXSelectInputs": FlaxSelectInputs
    }


def flax_prices(name: str, inner: dict[str, Any]) -> Iterable[tuple[Price, int]]:
    """Return what it costs to build the Flax NNX network that a module stands for, if it does for one."""
    return _forms()[name].prices(inner) if name in _forms() else ()


def is_form_name(name: str) -> bool:
    """Say whether modules of this name stand for Flax NNX networks."""
    return name == "NNXSelectInputs" or name in _forms()


def held_form(network: Any) -> tuple[str, eqx.Module] | None:
    """Return what stands for a Flax NNX network in a file, and its name, if a form is registered for it.

    A subclass may compute something else, and one that was changed may hold something else: they have none.
    """
    if type(network) is NNXSelectInputs:
        return "NNXSelectInputs", FlaxSelectInputs(network.network, network.indices[...])
    for name, form in _forms().items():
        if type(network) is form.network:
            try:
                return name, form.hold(network)
            except TypeError:
                return None
    return None


def is_form(cls: type) -> bool:
    """Say whether the modules of a class stand for Flax NNX networks."""
    return cls is FlaxSelectInputs or any(cls is form.held for form in _forms().values())


def built_form(held: Any) -> Any:
    """Return the Flax NNX network that a module stands for, or the module itself if it stands for none.

    Raises:
        CodecError: If the arrays do not make a network.
    """
    if isinstance(held, FlaxSelectInputs):
        return NNXSelectInputs(held.network, held.indices)
    for form in _forms().values():
        if isinstance(held, form.held):
            return form.build(held)
    return held

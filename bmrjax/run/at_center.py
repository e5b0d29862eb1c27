"""A fitted program with its latent sites at the centre of their posterior."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.primitives import Messenger

from bmrjax.handlers import inference
from bmrjax.infer.arguments import Keep
from bmrjax.infer.posterior import central_values
from bmrjax.structure.network_arrays import is_nnx


def at_center(
    model: Callable,
    guide: Callable,
    params: dict[str, Any],
    keep: Keep,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any] = MappingProxyType({}),
) -> Callable:
    """Return the program with its latent sites at the centre of their posterior, removed elements at zero.

    Args:
        model: NumPyro program.
        guide: Its guide, which has met the program.
        params: Constrained parameters and mutable sites.
        keep: Masks by site.
        inputs: Positional arguments of the program: one batch.
        named: Its keyword arguments.
    """
    values = {
        name: jnp.where(keep[name], value, 0) if name in keep else value
        for name, value in central_values(guide, params, inputs, named, keep).items()
    }
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    return numpyro.handlers.substitute(seeded, data={**params, **values})


def values_at_center(
    model: Callable, guide: Callable, params: dict[str, Any], keep: Keep, inputs: tuple[Any, ...]
) -> dict[str, Array]:
    """Return the latent and deterministic sites there, by name; see `at_center`."""
    fitted = at_center(model, guide, params, keep, inputs)
    with inference(), numpyro.handlers.trace() as trace:
        fitted(*inputs)
    return {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] in ("sample", "deterministic") and not site.get("is_observed", False)
    }


def buffers_as_given(
    model: Callable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, dict[str, Array]]:
    """Return the running statistics of the networks that a program is written with, by mutable site.

    Args:
        model: NumPyro program.
        args: Its positional arguments: one batch.
        kwargs: Its keyword arguments.
    """
    found: dict[str, dict[str, Array]] = {}

    class read(Messenger):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] == "apply_network":
                found[f"{msg['network'].name}.buffers"] = msg["network"].buffers

    with inference(), read():
        numpyro.handlers.seed(model, jax.random.key(0))(*args, **kwargs)
    return found


def networks_at_center(
    model: Callable,
    guide: Callable,
    params: dict[str, Any],
    keep: Keep,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the network of each random module there, and example inputs as it takes them; see `at_center`.

    Raises:
        ValueError: Without inputs.
    """
    if not inputs and not named:
        raise ValueError(
            "The networks are found by running the program; give its inputs, such as two rows: "
            "result.compact(x[:2]), result.network(x[:2])."
        )
    found: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    class collect(Messenger):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] != "apply_network":
                return
            network = msg["network"].whole(params.get(f"{msg['network'].name}.buffers"))
            single = not is_nnx(network)
            args = jax.tree.map(lambda x: x[0], msg["args"]) if single else msg["args"]
            found[msg["network"].name] = network, args

    fitted = at_center(model, guide, params, keep, inputs, named)
    with inference(), collect():
        fitted(*inputs, **named)
    return found

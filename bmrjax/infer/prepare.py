"""Making a guide of a loaded result ready to draw from."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import auto_guides


def prepare_guide(model: Callable, guide: Any, params: Mapping[str, Array], batch: Data) -> None:
    """Set up automatic guides that have not met their model yet.

    Without targets, a program's observed site is sampled, and an automatic guide would take it for
    a latent one. So sites that the fitted parameters do not know are conditioned on their draws.

    Args:
        model: NumPyro program.
        guide: Its guide.
        params: Fitted parameters.
        batch: Arguments of the program, with or without targets.
    """
    fresh = [g for g in auto_guides(guide) if g.prototype_trace is None]
    if not fresh:
        return
    trace = _trace(model, batch)
    for g in fresh:
        joint = f"{g.prefix}_loc" in params
        targets = _sites_of_data(model, batch) if joint else set()
        drawn = {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] == "sample"
            and not site["is_observed"]
            and (name in targets if joint else not _has_parameters(name, g.prefix, params))
        }
        whole, g.model = g.model, numpyro.handlers.condition(g.model, data=drawn)
        args, kwargs = arguments(batch)
        try:
            numpyro.handlers.seed(g, jax.random.key(0))(*args, **kwargs)
        finally:
            g.model = whole


def _has_parameters(name: str, prefix: str, params: Mapping[str, Array]) -> bool:
    return any(param.startswith(f"{name}_{prefix}") for param in params)


def _trace(model: Callable, batch: Data) -> dict[str, Any]:
    args, kwargs = arguments(batch)
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    return numpyro.handlers.trace(seeded).get_trace(*args, **kwargs)


def _sites_of_data(model: Callable, batch: Data) -> set[str]:
    """Return the sites that grow with the batch: in a program that could be fitted, its targets."""
    twice = jax.tree.map(lambda a: jnp.concatenate([a, a]), batch)
    shapes = [
        {n: jnp.shape(s["value"]) for n, s in _trace(model, b).items() if s["type"] == "sample"}
        for b in (batch, twice)
    ]
    return {name for name, shape in shapes[0].items() if shapes[1][name] != shape}

"""Making a guide of a loaded result ready to draw from."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
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
    args, kwargs = arguments(batch)
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(*args, **kwargs)
    for g in fresh:
        drawn = {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] == "sample"
            and not site["is_observed"]
            and not any(param.startswith(f"{name}_{g.prefix}") for param in params)
            and f"{g.prefix}_latent" not in params
        }
        whole, g.model = g.model, numpyro.handlers.condition(g.model, data=drawn)
        try:
            numpyro.handlers.seed(g, jax.random.key(0))(*args, **kwargs)
        finally:
            g.model = whole

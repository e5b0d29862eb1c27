"""Programs with a latent site a datum, which minibatches cannot carry."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.infer.arguments import Data, arguments, length
from bmrjax.infer.init import at_start
from bmrjax.infer.tracing import sites_of


def check_local_latents(model: Callable, batch: Data, key: Array) -> None:
    """Refuse a program with latent sites a datum, which minibatches cannot carry.

    Raises:
        ValueError: Naming the site whose shape follows the batch size.
    """

    def shapes(rows: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}

        def run(batch: Data) -> None:
            for name, site in sites_of(at_start(model), *arguments(batch), key=key).items():
                if site["type"] == "sample" and not site["is_observed"]:
                    found[name] = jnp.shape(site["value"])

        jax.eval_shape(run, jax.tree.map(lambda a: a[:rows], batch))
        return found

    size = length(batch)
    if size < 2:
        return
    whole, part = shapes(size), shapes(size - 1)
    local = sorted(name for name in whole if whole[name] != part.get(name))
    if local:
        raise ValueError(
            f"The latent sites {local} have one element a datum, so minibatches would mix them up. "
            "Fit with batch_size=None (all data in every step), or marginalise them."
        )

"""Whether the programs of an ensemble differ in the networks that they start from alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import biject_to

from bmrjax.backend.program_key import equations_key
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.tracing import sites_of


def check_same_programs(models: Sequence[Callable], batch: Data) -> None:
    """Refuse programs that differ in more than arrays: all members are trained by the first one.

    Arrays may be those of the networks that they start from. Programs whose sites differ are refused later,
    by name.

    Args:
        models: One per member.
        batch: Arguments of theirs.

    Raises:
        ValueError: Naming the members.
    """
    first, *others = [_described(model, batch) for model in {id(m): m for m in models}.values()]
    for sites, key in others:
        if None not in (first[1], key) and sites == first[0] and key != first[1]:
            raise ValueError(
                "ensemble: the programs differ in more than the networks that they start from, such as in "
                "the scale of a prior, and are trained together. For a number write "
                "bmr.hyperparameter('scale', default) in one program, and give its values in grid=; run "
                "others apart, by sparsify."
            )


def _described(model: Callable, batch: Data) -> tuple[Any, Any]:
    """Return the shapes of the sites of a program, and its equations."""

    def log_densities(batch: Data) -> dict[str, Any]:
        given = numpyro.handlers.substitute(model, substitute_fn=_point)
        sites = sites_of(given, *arguments(batch)).items()
        return {
            name: (site["value"], site["fn"].log_prob(site["value"]))
            for name, site in sites
            if site["type"] == "sample"
        }

    try:
        traced = jax.jit(log_densities).trace(batch)
    except Exception:  # the fit reports what is wrong with it
        return None, None
    return jax.tree.map(lambda x: x.shape, traced.out_info), equations_key(traced)


def _point(site: Mapping[str, Any]) -> Array | None:
    """Return a point of the support of a latent site that no network has a part in."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    try:
        transform = biject_to(site["fn"].support)
    except NotImplementedError:
        return None
    return transform(jnp.zeros(transform.inverse_shape(site["fn"].shape())))

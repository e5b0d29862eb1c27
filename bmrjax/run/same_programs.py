"""Whether the programs of an ensemble differ in the networks that they start from alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import biject_to

from bmrjax.backend.program_key import constants_key, equations_key
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.tracing import sites_of


def check_same_programs(models: Sequence[Callable], batch: Data) -> None:
    """Refuse programs that differ in more than the networks they start from.

    All members are trained by the first one.

    Programs whose sites differ are refused later, by name.

    Args:
        models: One per member.
        batch: Arguments of theirs.

    Raises:
        ValueError: Naming the members.
    """
    first, *others = [_described(model, batch) for model in {id(m): m for m in models}.values()]
    for sites, equations, constants in others:
        if sites != first[0]:
            continue
        found = (first[1:], (equations, constants))
        if any(None not in pair and pair[0] != pair[1] for pair in zip(*found, strict=True)):
            raise ValueError(
                "ensemble: the programs differ in more than the networks that they start from, such as in "
                "the scale or the location of a prior, and are trained together. For a number write "
                "bmr.hyperparameter('scale', default) in one program, and give its values in grid=; run "
                "others apart, by sparsify."
            )


def _described(model: Callable, batch: Data) -> tuple[Any, Any, Any]:
    """Return the shapes of the sites of a program, its equations, and the arrays that it computes with."""

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
        return None, None, None
    shapes = jax.tree.map(lambda x: x.shape, traced.out_info)
    return shapes, equations_key(traced), constants_key(traced)


def _point(site: Mapping[str, Any]) -> Any:
    """Return a value of a latent site, a parameter or a mutable site that no network has a part in."""
    if site["type"] in ("param", "mutable") and not callable(site["args"][0]):
        return jax.tree.map(jnp.zeros_like, site["args"][0])
    if site["type"] != "sample" or site["is_observed"]:
        return None
    try:
        transform = biject_to(site["fn"].support)
    except NotImplementedError:
        return None
    return transform(jnp.zeros(transform.inverse_shape(site["fn"].shape())))

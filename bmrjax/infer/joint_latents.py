"""The sites of a joint posterior, found by their numbers of elements."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from numpyro.distributions import biject_to

from bmrjax.infer.tracing import shape_of


def joint_latents(
    open_sites: Mapping[str, Any], growing: Collection[str], loc: Array | None
) -> set[str]:
    """Return which sites a joint posterior is of: those that do not grow with the data, and enough that do.

    The work grows with the number of growing sites times the number of different sums of their sizes, which
    is at most the size of the posterior.

    Args:
        open_sites: Sites that are not observed, of the part of the program that the posterior is for.
        growing: Names of sites that grow with the batch: targets that are not given, or latent sites with
            elements for each row.
        loc: Mean of the joint posterior; None where it has none, and then no site that grows is latent.

    Raises:
        ValueError: Where several choices have as many elements as the posterior, or none has.
    """
    fixed = {name for name in open_sites if name not in growing}
    if loc is None:
        return fixed
    sizes = {name: _free_size(site) for name, site in open_sites.items()}
    missing = jnp.size(loc) - sum(sizes[name] for name in fixed)
    # Each sum with the sites that give it, or with None if there are several such choices.
    choices: dict[int, frozenset[str] | None] = {0: frozenset()}
    for name, size in sizes.items():
        if name in fixed or not size:
            continue
        for total, chosen in list(choices.items()):
            if (more := total + size) <= missing:
                unique = chosen is not None and more not in choices
                choices[more] = chosen | {name} if unique and chosen is not None else None
    if missing not in choices:
        raise _wrong_size(open_sites, loc)
    chosen = choices[missing]
    if chosen is None:
        raise ValueError(
            f"The joint posterior has {jnp.size(loc)} elements, and it is not known which of the sites "
            f"{[name for name in sizes if name not in fixed][:5]} are latent: several choices have as many. "
            "Give the targets too, with as many rows as in the fit; or save the result of a new fit, which "
            "keeps the names of its latent sites."
        )
    return fixed | chosen


def check_size(sites: Mapping[str, Any], loc: Array) -> None:
    """Raise ValueError unless these sites have as many elements as a joint posterior.

    Args:
        sites: Its latent sites.
        loc: Its mean.
    """
    if sum(map(_free_size, sites.values())) != jnp.size(loc):
        raise _wrong_size(sites, loc)


def _wrong_size(sites: Mapping[str, Any], loc: Array) -> ValueError:
    sizes = {name: _free_size(site) for name, site in sites.items()}
    shown = ", ".join(f"'{name}': {size}" for name, size in list(sizes.items())[:5])
    return ValueError(
        f"The joint posterior has {jnp.size(loc)} elements, and the latent sites of the program have another "
        f"number with these arguments ({shown}). Where a site has an element per row, give as many rows as "
        "in the fit."
    )


def _free_size(site: Mapping[str, Any]) -> int:
    """Return the number of unconstrained elements of a site; a discrete one has none."""
    fn = site["fn"]
    if fn.support.is_discrete:
        return 0
    return math.prod(biject_to(fn.support).inverse_shape(shape_of(site)))

"""The sites of a guide whose posterior is independent normals with parameters of their own."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions.transforms import ExpTransform, IdentityTransform

from bmrjax.families import inside
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.tracing import is_latent, sites_of


@dataclass(frozen=True)
class NormalSite:
    """A site with posterior N(loc, scale²), element by element.

    Attributes:
        name: Of the site.
        loc: Name of the parameter of the means.
        scale: Name of the parameter of the standard deviations.
        transform: From the unconstrained parameter to the standard deviations.
    """

    name: str
    loc: str
    scale: str
    transform: Any


def normal_sites(
    guide: Callable,
    params: Mapping[str, Any],
    transforms: Mapping[str, Any],
    batch: Data,
    *,
    transformed: bool = False,
) -> list[NormalSite]:
    """Return the normal sites of a guide.

    A site is one of them if its distribution is a normal whose location and scale are two parameters as they
    are, which no other site uses. So a guide that is written by hand is read as an automatic one is.

    Args:
        guide: NumPyro guide, which has met its model.
        params: Its constrained parameters.
        transforms: From unconstrained to constrained parameters, by name.
        batch: One batch of data.
        transformed: Whether sites that are a function of such a normal, as a log-normal is, are returned too.
    """
    found: list[tuple[str, str, str]] = []
    kinds = (dist.Independent, *([dist.TransformedDistribution] if transformed else []))

    def look(params: Mapping[str, Any], batch: Data) -> None:
        sites = sites_of(guide, *arguments(batch), values=params)
        name_of = {id(value): name for name, value in params.items()}
        uses: Counter[str] = Counter()
        for site in sites.values():
            if site["type"] != "sample":
                continue
            for leaf in jax.tree.leaves(site["fn"]):
                uses.update([name_of[id(leaf)]] if id(leaf) in name_of else [])
            base: Any = inside(site["fn"], kinds)
            if not is_latent(site) or type(base) is not dist.Normal:
                continue
            values: tuple[Any, Any] = base.loc, base.scale
            loc, scale = (name_of.get(id(value)) for value in values)
            if loc is None or scale is None or jnp.shape(values[0]) != jnp.shape(values[1]):
                continue
            found.append((str(site["name"]), loc, scale))
        found[:] = [f for f in found if uses[f[1]] == uses[f[2]] == 1 and f[1] != f[2]]

    jax.eval_shape(look, dict(params), batch)
    return [
        NormalSite(name, loc, scale, transforms[scale])
        for name, loc, scale in found
        if isinstance(transforms[loc], IdentityTransform)
    ]


def log_scale_of(site: NormalSite, value: Array) -> tuple[Array, Array | float]:
    """Return the log standard deviations, and their derivative with respect to the unconstrained parameter.

    Args:
        site: The site.
        value: Its unconstrained parameter.
    """
    if isinstance(site.transform, ExpTransform):
        return value, 1.0
    return jax.jvp(lambda x: jnp.log(site.transform(x)), (value,), (jnp.ones_like(value),))


def of_log_scale(site: NormalSite, log_scale: Array, before: Array, step: Array) -> Array:
    """Return the unconstrained parameter at a log standard deviation.

    Args:
        site: The site.
        log_scale: Log standard deviations after a step.
        before: The parameter before it.
        step: The step; where it is zero, the parameter stays as it is.
    """
    if isinstance(site.transform, ExpTransform):
        return log_scale
    return jnp.where(step == 0, before, site.transform.inv(jnp.exp(log_scale)))

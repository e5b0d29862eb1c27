"""Laplace priors, of normal posteriors too, and Laplace posteriors."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions.kl import kl_divergence

from bmrjax.families.base import (
    FamilyFacts,
    Shown,
    affine,
    facts,
    has_closed_form,
    location,
    removed,
    shown_elements,
    stored,
)
from bmrjax.families.guide_form import GuideForm, GuideSite, offer
from bmrjax.families.normal import divergence_under
from bmrjax.families.support import is_real
from bmrjax.reduction import Laplace, Normal, laplace_divergence


@stored.register(dist.Laplace)
def _(fn: Any) -> Laplace:
    return Laplace(fn.loc, fn.scale)


@affine.register(Laplace)
def _(q: Laplace, loc: Any, scale: Any) -> Laplace:
    return Laplace(loc + scale * q.loc, abs(scale) * q.scale)


@location.register(Laplace)
def _(q: Laplace) -> tuple[Any, Any]:
    return q.loc, q.scale


@facts.register(Laplace)
def _(q: Any) -> FamilyFacts:
    del q
    return FamilyFacts("Laplace", criteria="criteria.SpikeAndSlab(family=reduction.Laplace)")


@has_closed_form.register(Laplace)
def _(posterior: Any, prior: Any) -> bool:
    return isinstance(prior, Laplace | Normal)


@removed.register(Laplace)
def _(q: Laplace, keep: Any) -> Laplace:
    return Laplace(jnp.where(keep, q.loc, 0.0), jnp.where(keep, q.scale, 0.0))


@shown_elements.register(Laplace)
def _(q: Laplace, keep: Any) -> Shown:
    return Shown(dist.Laplace(q.loc, jnp.where(keep, q.scale, 1.0)))


@divergence_under.register(Laplace)
def _(prior: Laplace, posterior: Normal) -> Array:
    return laplace_divergence(posterior, prior)


@kl_divergence.register(dist.Normal, dist.Laplace)
def _(q: Any, p: Any) -> Array:
    return laplace_divergence(Normal(q.loc, q.scale), Laplace(p.loc, p.scale))


@kl_divergence.register(dist.Laplace, dist.Laplace)
def _(q: Any, p: Any) -> Array:
    return laplace_divergence(Laplace(q.loc, q.scale), Laplace(p.loc, p.scale))


@kl_divergence.register(dist.Laplace, dist.Normal)
def _(q: Any, p: Any) -> Array:
    square = jnp.square((q.loc - p.loc) / p.scale) + 2 * jnp.square(q.scale / p.scale)
    constant = 0.5 * math.log(2 * math.pi) - 1 - math.log(2)
    return 0.5 * square + constant + jnp.log(p.scale) - jnp.log(q.scale)


class LaplaceForm(GuideForm):
    """A Laplace posterior, of which ``scale`` is the mean distance from ``loc``."""

    def check(self, site: GuideSite) -> None:
        """Raise ValueError if the site is not on the real line."""
        if not is_real(site.prior):
            raise ValueError(
                f"AutoMeanField: site '{site.name}' asks for a Laplace posterior, and its prior is not on "
                "the real line. Take infer={'posterior': 'laplace'} away."
            )

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        base = normal.base_dist if normal.event_dim else normal
        return dist.Laplace(base.loc, base.scale).to_event(normal.event_dim)

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        return dist.Laplace(parameter("loc"), parameter("scale"))


offer("laplace", LaplaceForm(), where="for sites on the real line")

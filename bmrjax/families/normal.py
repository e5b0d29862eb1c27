"""Normal posteriors: how they are read, removed, shown, and their divergence from normals."""

import functools
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions.kl import kl_divergence

from bmrjax.families.base import (
    FamilyFacts,
    Shown,
    affine,
    divergence_of_elements,
    facts,
    has_closed_form,
    location,
    read,
    read_as_stored,
    removed,
    shown_elements,
    stored,
)
from bmrjax.reduction import Normal, delta_f_under


@stored.register(dist.Normal)
def _(fn: Any) -> Normal:
    return Normal(fn.loc, fn.scale)


@affine.register(Normal)
def _(q: Normal, loc: Any, scale: Any) -> Normal:
    return Normal(loc + scale * q.loc, abs(scale) * q.scale)


@location.register(Normal)
def _(q: Normal) -> tuple[Any, Any]:
    return q.loc, q.scale


@facts.register(Normal)
def _(q: Normal) -> FamilyFacts:
    del q
    return FamilyFacts("normal", criteria="criteria.SpikeAndSlab() or criteria.Shrinkage()")


@has_closed_form.register(Normal)
def _(posterior: Normal, prior: Any) -> bool:
    del posterior
    return delta_f_under.dispatch(type(prior)) is not delta_f_under.dispatch(object)


@removed.register(Normal)
def _(q: Normal, keep: Any) -> Normal:
    return Normal(jnp.where(keep, q.loc, 0.0), jnp.where(keep, q.scale, 0.0))


@shown_elements.register(Normal)
def _(q: Normal, keep: Any) -> Shown:
    return Shown(dist.Normal(q.loc, jnp.where(keep, q.scale, 1.0)))


@functools.singledispatch
def divergence_under(prior: Any, posterior: Normal) -> Array | None:
    """Return KL(posterior, prior) of each element of a normal posterior, in nats; None for NumPyro's own.

    Args:
        prior: What `read` returns for the prior.
        posterior: Normal posterior, positive scale.
    """
    del prior, posterior
    return None


@divergence_under.register(Normal)
def _(prior: Normal, posterior: Normal) -> Array:
    # The logarithms apart: that of an exponential costs nothing, and nothing overflows.
    standardised = ((posterior.loc - prior.loc) / prior.scale) ** 2
    distance = standardised + (posterior.scale / prior.scale) ** 2
    return 0.5 * (distance - 1.0) - jnp.log(posterior.scale) + jnp.log(prior.scale)


@divergence_of_elements.register(Normal)
def _(q: Normal, posterior: Any, prior: Any) -> Any:
    found = divergence_under(read(prior), q)
    return kl_divergence(posterior, prior) if found is None else found


def normal_parameters(fn: dist.Distribution) -> tuple[Array, Array] | None:
    """Return (loc, scale), shaped as the site, if `fn` is independent normals; else None.

    A normal under affine transforms, element by element, is a normal: N(m, s) becomes N(a + bm, |b|s).
    """
    found = read(fn)
    return (found.loc, found.scale) if isinstance(found, Normal) else None


def stored_normal_parameters(fn: dist.Distribution) -> tuple[Any, Any] | None:
    """Return (loc, scale) as `normal_parameters` does, but as they are stored."""
    found = read_as_stored(fn)
    return (found.loc, found.scale) if isinstance(found, Normal) else None

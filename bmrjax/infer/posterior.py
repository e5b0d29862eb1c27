"""The posteriors and priors that a criterion reads off a fitted program."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.distributions import (
    center,
    is_log_uniform,
    log_normal_parameters,
    normal_parameters,
    spike_and_slab_parameters,
)
from bmrjax.infer.arguments import Keep
from bmrjax.infer.correlated import correlated_marginals
from bmrjax.infer.joint_guide import JointGuide
from bmrjax.infer.tracing import sites_of
from bmrjax.reduction import ImproperLogUniform, LogNormal, LogUniform, Normal, SpikeAndSlab


class SitePosteriors(NamedTuple):
    """The sites that can be reduced in closed form.

    Attributes:
        posterior: Site name to its posterior, shaped as the site: normal, spike-and-slab or log-normal.
        prior: The same for the prior (log-uniform for log-normal), given the guide's central values of its
            parents.
        layers: Site name to the layer whose statistics it shares.
    """

    posterior: dict[str, Normal | SpikeAndSlab | LogNormal]
    prior: dict[str, Normal | SpikeAndSlab | LogUniform | ImproperLogUniform]
    layers: dict[str, str]


def only(found: SitePosteriors, sites: list[str]) -> SitePosteriors:
    """Return the posteriors of `sites`."""
    return SitePosteriors(
        *({name: values[name] for name in sites} for values in found)  # type: ignore[misc]
    )


def site_posteriors(
    model: Callable,
    guide: Callable,
    params: Mapping[str, Array],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keep: Keep | None = None,
) -> SitePosteriors:
    """Find the latent sites whose prior and posterior are of one family with a closed form.

    The prior is exact when its parameters are constants, as for ŵ of `priors.Flat`; where they are
    latent themselves, they are set to the centre of their posterior.

    Args:
        model: NumPyro program.
        guide: Its guide, with a sample site for each latent site.
        params: Constrained parameters.
        args: Positional arguments of the program: one batch.
        kwargs: Its keyword arguments.
        keep: Masks a site; a correlated posterior is that of what they keep.
    """
    marginals = correlated_marginals(guide, params, keep or {})
    guide_sites = sites_of(guide, args, kwargs, values=params)
    values = central_values(guide, params, args, kwargs)
    posterior, prior, layers = {}, {}, {}
    for name, site in sites_of(model, args, kwargs, values={**params, **values}).items():
        if site["type"] != "sample" or site["is_observed"] or name not in values:
            continue
        q, p = marginals.get(name, _read(guide_sites[name]["fn"])), _read(site["fn"])
        if q is None or type(p) not in _PRIORS[type(q)]:
            continue
        posterior[name], prior[name] = q, p
        layers[name] = site.get("infer", {}).get("layer", name)
    return SitePosteriors(posterior, prior, layers)


# Posterior to the priors under which criteria read it.
_PRIORS: dict[type, tuple[type, ...]] = {
    Normal: (Normal, ImproperLogUniform),
    SpikeAndSlab: (SpikeAndSlab,),
    LogNormal: (LogUniform,),
}


def _read(fn: Any) -> Any:
    if (noise := log_normal_parameters(fn)) is not None:
        return noise
    if (normal := normal_parameters(fn)) is not None:
        return Normal(*normal)
    if (spiked := spike_and_slab_parameters(fn)) is not None:
        return SpikeAndSlab(*spiked)
    return ImproperLogUniform(jnp.ones(fn.shape())) if is_log_uniform(fn) else None


def central_values(
    guide: Callable, params: Mapping[str, Array], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Array]:
    """Return each latent site at the centre of its posterior (its mean, or its median).

    Args:
        guide: NumPyro guide.
        params: Constrained parameters.
        args: Positional arguments of the program: one batch.
        kwargs: Its keyword arguments.
    """
    if isinstance(guide, JointGuide):
        sites_of(guide, args, kwargs, values=params)  # a guide that is loaded meets its model here
        return guide.centre(params)
    values = {}
    for name, site in sites_of(guide, args, kwargs, values=params).items():
        if site["type"] == "sample" and not site["is_observed"]:
            point = center(site["fn"])
            values[name] = site["value"] if point is None else point
    return values

"""The posteriors and priors that a criterion reads off a fitted program."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.infer.autoguide import AutoContinuous

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.criteria import SitePosteriors
from bmrjax.criteria.in_turn import few_enough
from bmrjax.families import (
    center,
    facts,
    has_closed_form,
    inside,
    is_real,
    is_removable,
    read,
    read_joint,
    removed,
)
from bmrjax.handlers import both_masks, inference, known_masks
from bmrjax.infer.arguments import Data, Keep, arguments
from bmrjax.infer.joint_guide import JointGuide
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.infer.readable_guide import ReadableGuide
from bmrjax.infer.tracing import is_latent, sites_of
from bmrjax.reduction import Normal


def site_posteriors(
    model: Callable, guide: Callable, params: Mapping[str, Any], /, *args: Any, **kwargs: Any
) -> SitePosteriors:
    """Read what a criterion needs off a program that is being fitted, or has been.

    Pure and jittable: it can be a part of a training step. Networks are in inference mode.

    Args:
        model: NumPyro program, or one inside `prune`.
        guide: Its guide, with a sample site for each latent site, or one inside `prune`.
        params: Constrained parameters, as ``svi.get_params(state)`` returns them.
        *args: Arguments of the program: one batch.
        **kwargs: Its keyword arguments.

    Returns:
        The sites whose prior and posterior have a closed form together: of one family, or a normal posterior
        under a Laplace prior. Where the parameters of a
        prior are latent themselves, they are at the centre of their posterior. The other latent sites are in
        `unread`, with the reason.

    Raises:
        ValueError: If a parameter of the guide is missing.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer import SVI, Trace_ELBO
        >>> from numpyro.infer.autoguide import AutoNormal
        >>> import bmrjax as bmr
        >>> def model():
        ...     numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("scale", dist.HalfNormal(1.0))
        >>> guide = AutoNormal(model)
        >>> svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
        >>> state = svi.init(jax.random.key(0))
        >>> found = bmr.site_posteriors(model, guide, svi.get_params(state))
        >>> found.posterior["w"].scale.shape
        (2,)
        >>> found.unread
        {'scale': 'its prior is a HalfNormal'}
    """
    with inference():
        sites = sites_of(unpruned(guide)[0], args, kwargs, values=params).items()
        # NumPyro would begin with its own values for those.
        missing = [n for n, site in sites if site["type"] == "param" and n not in params]
        if missing:
            raise ValueError(
                f"site_posteriors: params has no {missing[:3]}, which the guide needs; give all of "
                "svi.get_params(state)."
            )
        return read_posteriors(model, guide, params, args, kwargs)


def read_posteriors(
    model: Callable,
    guide: Callable,
    params: Mapping[str, Array],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keep: Keep | None = None,
) -> SitePosteriors:
    """Return the site posteriors of a program in the mode that it is in; see `site_posteriors`.

    Args:
        model: NumPyro program.
        guide: Its guide.
        params: Constrained parameters.
        args: Positional arguments of the program: one batch.
        kwargs: Its keyword arguments.
        keep: Masks by site; a correlated posterior is that of what they keep. By default those of a
            pruned guide (`Result.guide`).
    """
    (model, _), (guide, masks) = unpruned(model), unpruned(guide)
    keep = masks if keep is None else keep
    guide_sites = sites_of(guide, args, kwargs, values=params)
    values = central_values(guide, params, args, kwargs, keep)
    own = guide.posterior(params, keep) if isinstance(guide, ReadableGuide) else {}
    posterior, prior, layers, unread = {}, {}, {}, {}
    for name, site in sites_of(model, args, kwargs, values={**params, **values}).items():
        if not is_latent(site):
            continue
        if name not in values:
            unread[name] = "the guide has no site of this name"
            continue
        p = read(site["fn"])
        q = own[name] if name in own else read(guide_sites[name]["fn"])
        if not has_closed_form(q, p):
            unread[name] = _why_unread(q, p, site, guide_sites.get(name))
            continue
        posterior[name], prior[name] = q, p
        layers[name] = site.get("infer", {}).get("layer", name)
    rows = None
    if isinstance(guide, ReadableGuide) and few_enough(posterior):
        rows = guide.covariance_factors(params, keep)
    factors = {name: rows[name] for name in posterior} if rows and {*rows} >= {*posterior} else None
    return SitePosteriors(posterior, prior, layers, unread, factors)


def compiled_posteriors(
    model: Callable, guide: Callable, batch: Data
) -> Callable[[Mapping[str, Any], Keep], SitePosteriors]:
    """Return `read_posteriors` as a function of parameters and masks that is compiled.

    Operation by operation, JAX compiles a small program for each shape that a program and its guide draw,
    which takes many times as long the first time. For programs that have been fitted, and so can be traced.

    Args:
        model: NumPyro program.
        guide: Its guide.
        batch: One batch of its arguments. Those without rows (`FitOptions.static`) are not traced.
    """

    def read(params: dict[str, Any], keep: dict[str, Array], batch: Data) -> SitePosteriors:
        args, kwargs = arguments(batch)
        with inference():
            return read_posteriors(model, guide, params, args, kwargs, keep)

    compiled = quick_jit(read, num_calls=1)
    return lambda params, keep: compiled(dict(params), dict(keep), batch)


def _why_unread(q: Any, p: Any, site: Mapping[str, Any], of_guide: Mapping[str, Any] | None) -> str:
    """Return why a pair of posterior and prior cannot be read."""
    if p is None:
        return f"its prior is a {_name(site['fn'])}"
    if q is None:
        assert of_guide is not None
        return f"its posterior is a {_name(of_guide['fn'])}"
    names = " and a posterior that is ".join(facts(family).name for family in (p, q))
    return f"there is no closed form for a prior that is {names}"


def _name(fn: Any) -> str:
    """Return the name of a distribution, without what expands, masks or groups it."""
    while isinstance(base := getattr(fn, "base_dist", None), dist.Distribution) and not isinstance(
        fn, dist.TransformedDistribution
    ):
        fn = base
    return type(fn).__name__


def central_values(
    guide: Callable,
    params: Mapping[str, Array],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keep: Keep,
) -> dict[str, Array]:
    """Return each latent site at the centre of its posterior (its mean, or its median).

    Args:
        guide: NumPyro guide.
        params: Constrained parameters.
        args: Positional arguments of the program: one batch.
        kwargs: Its keyword arguments.
        keep: Masks by site, which the posteriors of other sites may depend on. Removed elements keep their
            centre, but for those of a pruned guide, which are zero.
    """
    guide, masks = unpruned(guide)
    if isinstance(guide, JointGuide):
        sites_of(guide, args, kwargs, values=params)  # a guide that is loaded meets its model here
        values = guide.centre(params)
        return {n: jnp.where(masks[n], v, 0) if n in masks else v for n, v in values.items()}
    values = {}
    with known_masks(both_masks(masks, keep)):
        sites = sites_of(guide, args, kwargs, values=params)
    for name, site in sites.items():
        if site["type"] == "sample" and not site["is_observed"]:
            point = center(site["fn"])
            values[name] = site["value"] if point is None else point
    return {n: jnp.where(masks[n], v, 0) if n in masks else v for n, v in values.items()}


def guide_posteriors(
    guide: Callable,
    params: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keep: Keep,
) -> dict[str, Any]:
    """Read the posteriors of the latent sites from the distributions of a guide.

    Args:
        guide: NumPyro guide: automatic, or written by hand.
        params: Constrained parameters.
        args: Positional arguments of the guide.
        kwargs: Its keyword arguments.
        keep: Masks by site; what is correlated with a removed element is given that it is zero.

    Returns:
        Those of the sites whose posterior can be read (normal, spike-and-slab, ...), element by element. Of
        removed elements loc and scale are 0; of removed noise, loc is -inf (θ = 1).

    Raises:
        ValueError: For a site with a mask whose posterior is none of these.
    """
    sites = sites_of(guide, args, kwargs, values=params)
    found: dict[str, Any] = {
        name: read(site["fn"]) for name, site in sites.items() if is_latent(site)
    }
    if isinstance(guide, ReadableGuide):
        found |= guide.posterior(params, keep)
    elif isinstance(guide, AutoContinuous):
        found |= _normal_marginals(guide, params)
    readable = {name: q for name, q in found.items() if is_removable(q)}
    missing = sorted(set(keep) - set(readable))
    if missing or not readable:
        points = [
            n for n, s in sites.items() if is_latent(s) and isinstance(inside(s["fn"]), dist.Delta)
        ]
        if points and not isinstance(guide, AutoContinuous):
            raise ValueError(
                f"posterior: the guide has point estimates of {points[:3]}, not distributions. Their values "
                "are in result.center(...)."
            )
        raise ValueError(
            f"posterior: the posterior of {missing[:3] or sorted(found)[:3]} is of no family that can be "
            "read. Draw from it, by result.sample(...)."
        )
    return {n: removed(q, keep[n]) if n in keep else q for n, q in readable.items()}


def _normal_marginals(guide: Any, params: Mapping[str, Any]) -> dict[str, Normal]:
    """Return the marginals of the sites on the real line, for a joint normal guide of NumPyro."""
    posterior: Any = guide.get_posterior(dict(params))
    if read_joint(posterior) is None and not isinstance(read(posterior), Normal):  # a flow, say
        return {}
    variance: Any = posterior.variance
    moments = posterior.mean, jnp.sqrt(variance)
    loc, scale = (dict(guide._unpack_latent(value)) for value in moments)
    real = [name for name in loc if is_real(guide.prototype_trace[name]["fn"])]
    return {name: Normal(loc[name], scale[name]) for name in real}

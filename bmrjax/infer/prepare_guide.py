"""Making a guide of a loaded result ready to draw from."""

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import AutoContinuous

from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import at_start, auto_guides, rebuild, set_up
from bmrjax.infer.saved_leaves import restore_modules
from bmrjax.infer.tracing import sites_of


def prepare_guide(model: Callable, guide: Any, params: dict[str, Any], batch: Data) -> None:
    """Set up automatic guides that have not met their model yet, and parameters that are loaded modules.

    Without targets, a program's observed site is sampled, and an automatic guide would take it for
    a latent one. So sites that the fitted parameters do not know are conditioned on their draws.

    Args:
        model: NumPyro program.
        guide: Its guide.
        params: Fitted parameters. Modules among them, of which a file holds the arrays only, become modules
            again, in place.
        batch: Arguments of the program, with or without targets.

    Raises:
        ValueError: If parameters are missing, which would silently have their first values.
    """
    restore_modules(model, guide, params, batch)
    fresh = [g for g in auto_guides(guide) if g.prototype_trace is None]
    if not fresh:
        return
    args, kwargs = arguments(batch)
    joint = [isinstance(g, AutoContinuous) for g in fresh]
    targets = _sites_of_data(model, batch) if any(joint) else set()

    def meet(key: Array, *args: Any, **kwargs: Any) -> list[dict[str, Array]]:
        sites = sites_of(at_start(model), args, kwargs, key=key)
        found = []
        open_sites = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        for g, is_joint in zip(fresh, joint, strict=True):
            if is_joint:
                unknown = _targets(open_sites, targets, params.get(f"{g.prefix}_loc"))
            else:
                unknown = {n for n in open_sites if not _has_parameters(n, g.prefix, params)}
            drawn = {name: open_sites[name]["value"] for name in open_sites if name in unknown}
            found.append(drawn)
            with _conditioned(g, drawn):
                numpyro.handlers.seed(g, key)(*args, **kwargs)
        return found

    drawn = set_up(fresh, meet, jax.random.key(0), batch)
    for g, values in zip(fresh, drawn, strict=True):
        with _conditioned(g, values):
            rebuild(g, args, kwargs)
    missing = _missing_params(model, guide, params, batch)
    if missing:
        for g in fresh:
            g.prototype_trace = None  # another call is refused too
        raise ValueError(
            f"The program and its guide ({type(guide).__name__}) have the parameters {missing[:5]}, and the "
            f"result has {sorted(params)[:5]} without these. Load it with the program and the guide that "
            "were fitted: bmr.load(directory, model=..., guide=...)."
        )


def check_params(
    model: Callable, guide: Callable, params: Mapping[str, Any], batch: Data, *, caller: str
) -> None:
    """Refuse parameters that lack some of the program's or the guide's, which would start anew.

    Args:
        model: NumPyro program.
        guide: Its guide, which has met the program.
        params: Constrained parameters.
        batch: Arguments of the program.
        caller: Name of the calling function, for the message.

    Raises:
        ValueError: Naming what is missing.
    """
    missing = _missing_params(model, guide, params, batch)
    if missing:
        raise ValueError(
            f"{caller}: the parameters {missing[:5]} of the program and its guide are missing. Give all that "
            "the fit returned: result.params, or svi.get_params(state)."
        )


def _missing_params(
    model: Callable, guide: Callable, params: Mapping[str, Any], batch: Data
) -> list[str]:
    """Return the parameters of a program and its guide that are not among those given."""

    def names(batch: Data) -> list[str]:
        args, kwargs = arguments(batch)
        for program in (guide, at_start(model)):
            sites = sites_of(program, args, kwargs)
            found.update(name for name, site in sites.items() if site["type"] == "param")
        return []

    found: set[str] = set()
    jax.eval_shape(names, batch)
    return sorted(found - set(params))


@contextlib.contextmanager
def _conditioned(guide: Any, values: Mapping[str, Array]) -> Iterator[None]:
    """Condition the model of a guide for as long as it is set up."""
    whole, guide.model = guide.model, numpyro.handlers.condition(guide.model, data=dict(values))
    try:
        yield
    finally:
        guide.model = whole


def _has_parameters(name: str, prefix: str, params: Mapping[str, Array]) -> bool:
    return any(param.startswith(f"{name}_{prefix}") for param in params)


def _targets(
    open_sites: Mapping[str, Any], growing: Collection[str], loc: Array | None
) -> Collection[str]:
    """Return which sites that grow with the data are targets, and no latent sites of a joint posterior.

    The latent ones have as many elements as the posterior; where several would do, those that come first in
    the program, since targets follow what they depend on.

    Args:
        open_sites: Sites that are not observed, in the order of the program.
        growing: Names of sites that grow with the batch.
        loc: Mean of the joint posterior; None where it has none.

    Raises:
        ValueError: Where no choice has as many elements as the posterior.
    """
    if loc is None:
        return growing
    sizes = {name: _free_size(site["fn"]) for name, site in open_sites.items()}
    others = sum(size or 0 for name, size in sizes.items() if name not in growing)
    candidates = [name for name, size in sizes.items() if name in growing and size is not None]
    for count in range(len(candidates) + 1):
        for latent in itertools.combinations(candidates, count):
            if others + sum(sizes[name] or 0 for name in latent) == jnp.size(loc):
                return set(growing) - set(latent)
    raise ValueError(
        f"The joint posterior has {jnp.size(loc)} elements, and the latent sites of the program have another "
        "number with these arguments. Where a site has an element per row, give as many rows as in the fit."
    )


def _free_size(fn: Any) -> int | None:
    """Return the number of unconstrained elements of a site; None for a discrete one."""
    if fn.support.is_discrete:
        return None
    return math.prod(biject_to(fn.support).inverse_shape(fn.batch_shape + fn.event_shape))


def _sites_of_data(model: Callable, batch: Data) -> set[str]:
    """Return the sites that grow with the batch: in a program that could be fitted, its targets."""

    def sites(batch: Data) -> dict[str, Any]:
        found = sites_of(at_start(model), *arguments(batch))
        return {name: s["value"] for name, s in found.items() if s["type"] == "sample"}

    twice = jax.tree.map(lambda a: jnp.concatenate([a, a]), batch)
    one, two = (jax.eval_shape(sites, b) for b in (batch, twice))
    return {name for name, value in one.items() if two[name].shape != value.shape}

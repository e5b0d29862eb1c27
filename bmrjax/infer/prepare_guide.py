"""Making a guide of a loaded result ready to draw from."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.infer.autoguide import AutoContinuous

from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import at_start, auto_guides, rebuild, set_up
from bmrjax.infer.joint_latents import check_size, joint_latents
from bmrjax.infer.saved_leaves import restore_modules
from bmrjax.infer.tracing import is_latent, sites_of


def prepare_guide(
    model: Callable,
    guide: Any,
    params: dict[str, Any],
    batch: Data,
    *,
    latent_sites: Collection[str] | None = None,
) -> None:
    """Set up automatic guides that have not met their model yet, and parameters that are loaded modules.

    Without targets, a program's observed site is sampled, and an automatic guide would take it for
    a latent one. So sites that were not latent in the fit are conditioned on their draws. Where their names
    are not known, they are those without parameters, or without a place in a joint posterior.

    Args:
        model: NumPyro program.
        guide: Its guide.
        params: Fitted parameters. Modules among them, of which a file holds the arrays only, become modules
            again, in place.
        batch: Arguments of the program, with or without targets.
        latent_sites: Names of the sites that were latent in the fit; see `latent_sites_of`. None if unknown.

    Raises:
        ValueError: If parameters are missing, which would silently have their first values, or if it is not
            known which sites a joint posterior is of.
    """
    restore_modules(model, guide, params, batch)
    # Parts before the list that they are in, which would set them up with all that is open to it.
    fresh = [g for g in reversed(auto_guides(guide)) if g.prototype_trace is None]
    if not fresh:
        return
    args, kwargs = arguments(batch)
    joint = [isinstance(g, AutoContinuous) for g in fresh]
    growing = _sites_of_data(model, batch) if any(joint) and latent_sites is None else set()

    def meet(key: Array, *args: Any, **kwargs: Any) -> list[dict[str, Array]]:
        found, there = [], set()
        for g, is_joint in zip(fresh, joint, strict=True):
            open_sites = {
                name: site
                for name, site in sites_of(at_start(g.model), args, kwargs, key=key).items()
                if site["type"] == "sample" and not site["is_observed"]
            }
            loc = params.get(f"{g.prefix}_loc") if is_joint else None
            if latent_sites is not None:
                latent = set(latent_sites) & set(open_sites)
            elif is_joint:
                latent = joint_latents(open_sites, growing, loc)
            else:
                latent = {n for n in open_sites if _has_parameters(n, g.prefix, params)}
            if loc is not None:
                check_size({n: s for n, s in open_sites.items() if n in latent}, loc)
            drawn = {name: s["value"] for name, s in open_sites.items() if name not in latent}
            found.append(drawn)
            there |= set(open_sites)
            with _conditioned(g, drawn):
                numpyro.handlers.seed(g, key)(*args, **kwargs)
        _check_names(model, batch, there, _fitted(fresh, params, latent_sites))
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


def _fitted(
    guides: Sequence[Any], params: Mapping[str, Any], latent_sites: Collection[str] | None
) -> set[str]:
    """Return the names of the sites that were latent in the fit, as far as they are known."""
    if latent_sites is not None:
        return set(latent_sites)
    ends = {f"_{g.prefix}_loc" for g in guides}
    return {n.removesuffix(end) for n in params for end in ends if n.endswith(end)} - {""}


def _check_names(model: Callable, batch: Data, there: set[str], fitted: set[str]) -> None:
    """Refuse a program in which a latent site has another name than in the fit: it would be drawn anew.

    A program may draw fewer sites without its targets, and draws these; they have rows.
    """
    lost = {name for name in fitted - there if not name.endswith("_unobserved")}
    others = there - fitted
    if not lost or not others:
        return
    try:
        others -= _sites_of_data(model, batch)
    except Exception:  # a program of a fixed number of rows may raise anything for another one
        return
    if others:
        raise ValueError(
            f"The fit had the latent sites {sorted(lost)}, which the program does not have; it has "
            f"{sorted(others)} instead, of which the fit knows nothing. Give the program that was fitted, "
            "with the names that its sites had."
        )


def latent_sites_of(guide: Any) -> tuple[str, ...] | None:
    """Return the names of the latent sites that automatic guides have met; None where none has met any."""
    met = [g.prototype_trace for g in auto_guides(guide) if g.prototype_trace is not None]
    if not met:
        return None
    return tuple(dict.fromkeys(n for trace in met for n, site in trace.items() if is_latent(site)))


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


def _sites_of_data(model: Callable, batch: Data) -> set[str]:
    """Return the sites that grow with the batch: in a program that could be fitted, its targets."""

    def sites(batch: Data) -> dict[str, Any]:
        found = sites_of(at_start(model), *arguments(batch))
        return {name: s["value"] for name, s in found.items() if s["type"] == "sample"}

    twice = jax.tree.map(lambda a: jnp.concatenate([a, a]), batch)
    one, two = (jax.eval_shape(sites, b) for b in (batch, twice))
    return {name for name, value in one.items() if two[name].shape != value.shape}

"""The sites of a fitted program that can be judged: those with one normal prior, whatever else is latent."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bmrjax.criteria import SitePosteriors
from bmrjax.families import atoms_are_known, stored_normal_parameters
from bmrjax.fitted.program_function import program_function
from bmrjax.infer.arguments import Data
from bmrjax.infer.init import at_start
from bmrjax.infer.prior_location import PriorFacts, prior_facts
from bmrjax.infer.tracing import is_latent, sites_of
from bmrjax.reduction import Normal
from bmrjax.run.inspection import Inspection, SiteReport
from bmrjax.run.judged import judge


@dataclasses.dataclass(frozen=True)
class JudgedPrior:
    """What the program says of its priors.

    Attributes:
        loc: Judged site to the location of its prior, shaped as the site.
        scale: Its standard deviation.
        latent: Every latent site of the program to its shape.
        inspection: Which sites are judged, and why the others are not.
        discrete: Latent sites that are discrete.
    """

    loc: dict[str, Float[np.ndarray, "..."]]
    scale: dict[str, Float[np.ndarray, "..."]]
    latent: dict[str, tuple[int, ...]]
    inspection: Inspection
    discrete: frozenset[str] = frozenset()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the judged sites."""
        return {name: loc.shape for name, loc in self.loc.items()}


def judged_prior(model: Callable, data: Data, sites: Sequence[str] | None) -> JudgedPrior:
    """Read the priors of the sites that are to be judged.

    The rule is that of `inspect`, and one more: a prior whose location or scale is latent is not one normal,
    and a mean and a covariance of the site's posterior do not tell what the evidence without an element is.

    Args:
        model: NumPyro program.
        data: Its arguments.
        sites: Sites to judge; by default those with more than one element and a prior centred at zero.

    Raises:
        ValueError: If a named site cannot be judged, or if none can, with the reason for each.
    """
    facts = prior_facts(model, data)
    if isinstance(sites, str):
        raise TypeError(f"reduce_fit: sites is a list of names; write sites=['{sites}'].")
    if sites is not None and not sites:
        raise ValueError("reduce_fit: sites is empty; name some, or leave it out for the default.")
    unknown = sorted(set(sites or ()) - set(facts))
    if unknown:
        raise ValueError(
            f"reduce_fit: the program has no sites {unknown}; its sample sites are {list(facts)}."
        )
    inspection = _inspect(facts, sites)
    refused = sorted(set(sites or ()) - set(inspection.judged))
    if refused or not inspection.judged:
        able = _inspect(facts, list(facts)).judged
        what = f"the sites {refused} cannot be judged" if refused else "no site is judged"
        raise ValueError(
            f"reduce_fit: {what}. Those that can be named in `sites`: {able}.\n"
            f"{inspection.reasons(refused or None)}"
        )
    latent: dict[str, tuple[int, ...]] = {}
    discrete: set[str] = set()

    def parameters(seeded: Callable, args: Any, kwargs: Any, _: Any) -> dict[str, Any]:
        traced = sites_of(at_start(seeded), args, kwargs)
        for name, site in traced.items():
            if is_latent(site):
                latent[name] = facts[name].shape
                if site["fn"].support.is_discrete:
                    discrete.add(name)
        judged = [name for name in facts if name in inspection.judged]
        return {name: stored_normal_parameters(traced[name]["fn"]) for name in judged}

    # One program for all parameters: run as it is, its draws would be compiled one operation at a time.
    with atoms_are_known():
        stored = program_function(parameters, model, data)(())
    loc, scale = {}, {}
    for name in facts:
        if name in stored:
            loc[name], scale[name] = (
                np.broadcast_to(np.asarray(value, np.float64), facts[name].shape)
                for value in stored[name]
            )
    return JudgedPrior(loc, scale, latent, inspection, frozenset(discrete))


def _inspect(facts: Mapping[str, PriorFacts], sites: Sequence[str] | None) -> Inspection:
    """Say for each site whether it is judged, and why."""
    normal = [n for n, f in facts.items() if f.family == "normal" and not f.observed]
    standard = Normal(jnp.zeros(()), jnp.ones(()))
    anything = dict.fromkeys(normal, standard)
    table = judge(facts, SitePosteriors(anything, anything), criterion=None, sites=sites)
    reports = []
    for site in table:
        prior = facts[site.name]
        if site.name in normal:
            site = _not_constant(site, prior)
        elif prior.location is not None:
            why = f"its prior is {prior.label}, and reduce_fit reads normal priors only"
            site = dataclasses.replace(site, judged=False, why=why, advice="")
        reports.append(site)
    return Inspection(tuple(reports))


def _not_constant(site: SiteReport, prior: PriorFacts) -> SiteReport:
    """Return a report that says so if the parameters of the prior are latent."""
    parts = {"location": prior.loc, "scale": prior.scale}
    latent = [part for part, text in parts.items() if text == f"latent {part}"]
    if not latent:
        return site
    subject = f"the {' and the '.join(latent)} of its prior {'are' if latent[1:] else 'is'} latent"
    why = f"{subject}, so its prior is not one normal"
    advice = (
        "Write it non-centred, as numpyro.handlers.reparam(program, config="
        f"{{'{site.name}': numpyro.infer.reparam.LocScaleReparam(centered=0)}}) does, and fit it again: the "
        f"prior of '{site.name}_decentered' is constant. Or fix the scale; or, where it is of "
        "priors.Flat(collapsed=True), fit priors.Flat()."
    )
    return dataclasses.replace(site, judged=False, why=why, advice=advice)

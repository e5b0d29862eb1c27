"""Which sites of a program are judged, and why the others are not."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bmrjax.criteria import Criterion, SitePosteriors
from bmrjax.errors import warn
from bmrjax.families import facts as facts_about
from bmrjax.families import facts_of
from bmrjax.infer.prior_location import PriorFacts
from bmrjax.reduction import LogNormal, ZeroOrNormal
from bmrjax.run.inspection import Inspection, SiteReport

_GUIDES = "Use infer.AutoMeanField, AutoNormal or infer.AutoMultivariate as the guide."

# What to write instead of priors without a closed form; each is the same prior, as a mixture of normals.
_INSTEAD = {
    "StudentT": (
        "Write it as a mixture of normals: Normal(0, scale / sqrt(precision)) with "
        "precision ~ Gamma(df / 2, df / 2)."
    ),
    "Cauchy": (
        "Write it as a mixture of normals: Normal(0, scale / sqrt(precision)) with "
        "precision ~ Gamma(0.5, 0.5)."
    ),
    "GaussianRandomWalk": "Write its steps as Normal(0, scale) elements, which are judged, and sum them.",
    "MultivariateNormal": (
        "Write it as Normal(0, 1) elements z, which are judged, multiplied by the Cholesky factor of the "
        "covariance."
    ),
    "Uniform": "Where its elements may be zero, give it a normal prior centred there.",
}

_DISCRETE = (
    "sparsify has no posterior for it: sum over it in the likelihood (dist.MixtureSameFamily does for "
    "mixtures), or give a guide and a loss that are made for it."
)

_MASKED = (
    "The mask takes the prior of some elements away, or of all. Sample the site outside of "
    "numpyro.handlers.mask, with the likelihood alone inside; latent values that are not used keep their "
    "prior then, and the likelihood does not change."
)

_GENERAL = "Use criteria.SpikeAndSlab() or criteria.Shrinkage(), or leave the site as it is."

_OTHERWISE = "Give it a normal prior, with a latent scale for heavy tails."


def judge(
    facts: Mapping[str, PriorFacts],
    found: SitePosteriors,
    *,
    criterion: Criterion | None,
    sites: Sequence[str] | None = None,
    guide: str = "the guide",
    started: Collection[str] = (),
) -> Inspection:
    """Say for each site whether it is judged, and why.

    By default a site is judged if its prior and posterior are of one family with a closed form, the one that
    the criterion reads, and if it has more than one element and a prior that is centred at zero whatever the
    other latent sites are. Weights of random modules and sites of `bmrjax.priors` are judged at any size.

    Args:
        facts: Of the priors; see `prior_facts`.
        found: The sites whose prior and posterior have a closed form.
        criterion: What will judge; None for any criterion.
        sites: Sites that the user named, the only ones that are then judged.
        guide: Name of the guide, for the reasons.
        started: Sites of which an earlier result has removed elements, which are judged too.
    """
    layers = {prior.layer for prior in facts.values() if prior.layer is not None}
    reports = []
    for name, prior in facts.items():
        auxiliary = False
        posterior = found.posterior.get(name)
        if prior.observed:
            why = (
                "one value per data point" if prior.has_rows else "one value for the whole data set"
            )
            judged, advice = False, ""
        else:
            why, advice = _unreadable(prior, posterior, found.prior.get(name), criterion, guide)
            owner = next((layer for layer in layers if name.startswith(f"{layer}.")), None)
            auxiliary = bool(why) and owner is not None and prior.layer is None
            if auxiliary:
                why, advice = f"a part of the prior of '{owner}'", ""
            judged = not why
            if judged and sites is not None:
                judged = name in sites
                why = "named in `sites`" if judged else "not named in `sites`"
            elif judged and name in started:
                why = "elements of it were removed before"
            elif judged:
                judged, why, advice = _by_default(name, prior)
        reports.append(
            SiteReport(
                name,
                prior.shape,
                prior.text,
                "" if prior.observed else _family(posterior),
                judged,
                why,
                advice,
                prior.observed,
                auxiliary,
            )
        )
    return Inspection(tuple(reports))


def reducible(
    facts: Mapping[str, PriorFacts],
    found: SitePosteriors,
    *,
    criterion: Criterion | None,
    sites: Sequence[str] | None = None,
    guide: str = "the guide",
    started: Collection[str] = (),
) -> tuple[SitePosteriors, Inspection]:
    """Return the sites that are judged, with the reasons; see `judge` for the arguments.

    Raises:
        ValueError: If a named site cannot be judged, or if none can; with the reason for each site.
    """
    options = {"criterion": criterion, "guide": guide, "started": started}
    inspection = judge(facts, found, sites=sites, **options)
    if sites is not None and not sites:
        raise ValueError("sparsify: sites is empty; name some, or leave it out for the default.")
    unknown = sorted(set(sites or ()) - set(inspection.judged))
    if unknown:
        readable = judge(facts, found, sites=list(facts), **options).judged
        reasons = [
            inspection.reasons([name]) or f"  '{name}': it is not a latent site of the program."
            for name in unknown
        ]
        raise ValueError(
            f"sparsify: the sites {unknown} cannot be reduced. Those that can: {readable}.\n"
            + "\n".join(reasons)
        )
    if criterion is not None:
        if not inspection.judged:
            raise ValueError(_nothing_judged(found, inspection, criterion))
        _warn_of_spikes(found, criterion, sites)
    return found.only(inspection.judged if sites is None else sites), inspection


def _family(posterior: Any) -> str:
    return "not readable" if posterior is None else facts_about(posterior).name


def _by_default(name: str, prior: PriorFacts) -> tuple[bool, str, str]:
    """Return whether a site that can be read is judged by default, why, and what to write instead."""
    single = prior.size == 1
    if prior.location == "latent" and not (single and prior.layer is None):
        return False, *_latent_location(name, prior)
    if prior.layer is not None:
        return True, f"weights of the layer '{prior.layer}'", ""
    if prior.location is None and prior.family is not None:
        return True, f"a {prior.family} prior", ""
    if single:
        why = "one element: intercepts and other scalars are judged only when named"
        return False, why, f"To judge it, name it: sites=['{name}', ...]."
    if prior.location == "fixed":
        where = (
            "at values other than zero"
            if prior.loc == "varying"
            else f"at {prior.loc}, not at zero"
        )
        advice = (
            "Write the deviation from there as a site of its own, with a prior centred at zero; or name this "
            "one in `sites` if its elements may become zero."
        )
        return False, f"its prior is centred {where}", advice
    return True, "more than one element, with a prior centred at zero", ""


def _latent_location(name: str, prior: PriorFacts) -> tuple[str, str]:
    reparam, ending = "LocScaleReparam(centered=0)", "decentered"
    if prior.label.endswith("transformed"):
        reparam, ending = "TransformReparam()", "base"
    advice = (
        "Write the hierarchy non-centred, as numpyro.handlers.reparam(program, config="
        f"{{'{name}': numpyro.infer.reparam.{reparam}}}) does; '{name}_{ending}' is then judged."
    )
    return "the location of its prior is latent or learned, so it is not centred at zero", advice


def _unreadable(
    prior: PriorFacts,
    posterior: Any,
    read_prior: Any,
    criterion: Criterion | None,
    guide: str,
) -> tuple[str, str]:
    """Return why this criterion cannot read a site, and what to write; empty strings if it can."""
    if prior.is_scaled:
        why = "a factor on its log density (handlers.scale, or a plate that subsamples) changes its prior"
        return (
            why,
            "Leave the site out of the factor, and write the scale that its prior has with it.",
        )
    if posterior is not None:
        if criterion is None or criterion.reads(posterior, read_prior):
            return "", ""
        if isinstance(posterior, criterion.family):
            name = type(criterion).__name__
            return f"its prior is {prior.label}, which criteria.{name} does not read", _GENERAL
        said = facts_about(posterior)
        why = (
            f"its posterior is {said.name}, which criteria.{type(criterion).__name__} does not read"
        )
        return why, f"Use {said.criteria}, or leave the site as it is."
    if prior.support == "discrete":
        return "it is discrete", _DISCRETE
    if prior.family is None:
        if prior.support == "positive":
            return f"it is positive ({prior.label}), so no element can be zero", ""
        why = f"its prior is {prior.label}, which no criterion reads"
        if prior.label.endswith(", masked"):
            return why, _MASKED
        instead = _INSTEAD.get(prior.label, _OTHERWISE if prior.support == "real" else "")
        return why, instead if prior.size > 1 else ""
    if prior.posterior is not None:
        why = f"it asks for a {prior.posterior} posterior"
        return why, "Leave infer={'posterior': ...} out to judge it."
    return f"{guide} gives it no normal posterior of its own", _GUIDES


def _nothing_judged(found: SitePosteriors, inspection: Inspection, criterion: Criterion) -> str:
    """Return the message of the error for a program of which nothing is judged."""
    name, family = type(criterion).__name__, criterion.family
    reasons = inspection.reasons()
    if family is LogNormal:
        return (
            f"sparsify: {name} needs a latent site with multiplicative noise, and the program has none. Put "
            "nn.MultiplicativeNoise in the network (nn.with_noise does), and use AutoMeanField as the guide."
        )
    if any(criterion.reads(q, found.prior[n]) for n, q in found.posterior.items()):
        return (
            "sparsify: no site of the program is judged by default. Name the sites that may lose elements in "
            f"`sites`, or use criterion=None to fit without reducing.\n{reasons}"
        )
    kind = facts_of(family).name
    message = (
        f"sparsify: {name} needs a latent site with a {kind} prior and a {kind} posterior, and the program "
        "with its guide has none. Use criterion=None to fit without reducing."
    )
    return f"{message}\n{reasons}" if reasons else message


def _warn_of_spikes(
    found: SitePosteriors, criterion: Criterion, sites: Sequence[str] | None
) -> None:
    """Warn if spike-and-slab sites are left alone, while others are judged."""
    spiked = [name for name, q in found.posterior.items() if isinstance(q, ZeroOrNormal)]
    if spiked and sites is None and criterion.family is not ZeroOrNormal:
        warn(
            f"sparsify: {type(criterion).__name__} leaves the spike-and-slab sites {spiked} as they are, and "
            "judges the others. criteria.Inclusion() judges the spike-and-slab sites; name what you want "
            "judged in `sites`."
        )

"""The subjects of a group study: their posteriors under one prior, as likelihoods."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpyro.infer.autoguide import AutoLaplaceApproximation

from bmrjax.fitted.joint_normal import JointNormal, check_joint_normal, wide_elements, width
from bmrjax.fitted.layout import ElementLayout, Names, shortened
from bmrjax.fitted.normality import Normality, measure_normality
from bmrjax.fitted.source import Source, from_fit, source_from_arrays
from bmrjax.group.messages import errors_of
from bmrjax.reduction import Normal


@dataclass(frozen=True)
class Subjects:
    """What is known of the subjects' parameters.

    Attributes:
        sources: The subjects' fits.
        layout: Their parameters.
        normals: Posterior and prior of each subject.
        precision: Precision of each subject's likelihood, in units of the prior; positive semi-definite.
        score: Its score at the prior's mean, in these units.
        constant: Sum over the subjects of the constants that make the evidence under the prior one, in logs.
        normality: How normal each posterior is.
    """

    sources: tuple[Source, ...]
    layout: ElementLayout
    normals: tuple[JointNormal, ...]
    precision: Float[np.ndarray, "subjects n n"]
    score: Float[np.ndarray, "subjects n"]
    constant: float
    normality: tuple[Normality, ...]

    @property
    def pareto_k(self) -> Float[np.ndarray, " subjects"]:
        """Shape of the tail of the importance weights of each posterior; NaN where it was not measured."""
        return np.array([one.pareto_k for one in self.normality])

    @property
    def prior_loc(self) -> Float[np.ndarray, " n"]:
        """Mean of the prior that all subjects share."""
        return self.normals[0].prior_loc

    @property
    def prior_scale(self) -> Float[np.ndarray, " n"]:
        """Its standard deviation."""
        return self.normals[0].prior_scale


def sources_of_arrays(loc: Any, covariance: Any, prior: Any, names: Names) -> tuple[Source, ...]:
    """Return the subjects' posteriors from arrays with a leading axis for subjects.

    Args:
        loc: Posterior means, (subjects, n).
        covariance: Posterior covariances, (subjects, n, n).
        prior: The prior of all subjects, or a list with one prior per subject.
        names: Names of the n parameters.
    """
    if loc is None or covariance is None or prior is None:
        raise TypeError(
            "peb: without fits, give loc=, covariance= and prior=reduction.Normal(loc, scale), with a "
            "leading axis for subjects in loc and covariance."
        )
    means, spreads = list(loc), list(covariance)
    if any(np.ndim(mean) != 1 for mean in means) or any(np.ndim(c) != 2 for c in spreads):
        raise ValueError(
            f"peb: loc has shape {np.shape(loc)} and covariance {np.shape(covariance)}; (subjects, n) and "
            "(subjects, n, n) are expected."
        )
    priors = [prior] * len(means) if isinstance(prior, Normal) else list(prior)
    if not len(means) == len(spreads) == len(priors):
        raise ValueError(
            f"peb: there are {len(means)} means, {len(spreads)} covariances and {len(priors)} priors; one "
            "of each per subject is expected."
        )
    found = []
    for i, parts in enumerate(zip(means, spreads, priors, strict=True)):
        with errors_of(f"peb: subject {i}"):
            found.append(source_from_arrays(*parts, names))
    return tuple(found)


def sources_of_fits(
    fits: Sequence[Any],
    model: Callable | Sequence[Callable] | None,
    data: Sequence[Any] | None,
    params: Sequence[Any] | None,
    *,
    sites: Sequence[str] | None,
    names: Names,
    seed: int,
) -> tuple[Source, ...]:
    """Return the subjects' posteriors from their fits; see `peb` for the arguments."""
    count = len(fits)
    models = list(model) if isinstance(model, Sequence) else [model] * count
    if data is None:
        raise TypeError(
            "peb: give data=, a list with the arguments of the program for each subject."
        )
    by_subject = {
        "model": models,
        "data": data,
        "params": [None] * count if params is None else params,
    }
    for name, values in by_subject.items():
        if isinstance(values, Mapping) or not isinstance(values, Sequence):
            raise TypeError(
                f"peb: {name} is a list with one entry per subject, got {type(values).__name__}."
            )
        if len(values) != count:
            raise ValueError(
                f"peb: {name} has {len(values)} entries, and there are {count} fits; one per subject "
                "is needed."
            )
    _check_laplace(fits)
    found = []
    for i, fit in enumerate(fits):
        with errors_of(f"peb: subject {i}"):
            found.append(
                from_fit(
                    fit,
                    models[i],
                    data[i],
                    by_subject["params"][i],
                    sites=sites,
                    names=names,
                    seed=seed,
                )
            )
    return tuple(found)


def _check_laplace(fits: Sequence[Any]) -> None:
    """Refuse one guide of Laplace's approximation for several subjects: it keeps the first one's data."""
    seen: dict[int, int] = {}
    for i, fit in enumerate(fits):
        if not isinstance(fit, AutoLaplaceApproximation):
            continue
        if id(fit) in seen:
            raise ValueError(
                f"peb: subjects {seen[id(fit)]} and {i} share one AutoLaplaceApproximation. It takes the "
                "Hessian on the data that it was first called with, which are those of one subject; make a "
                "guide per subject."
            )
        seen[id(fit)] = i


def subjects_of(
    sources: Sequence[Source],
    elements: Sequence[str | int] | None,
    names: Sequence[str],
    seed: int,
) -> Subjects:
    """Turn posteriors into likelihoods, after checking that they go together.

    Args:
        sources: The subjects' posteriors.
        elements: Parameters that the second level is about: names of elements or sites. The others keep the
            prior of the first level. By default all.
        names: Names of the subjects, for messages.
        seed: Of the draws at which a program is evaluated.

    Raises:
        ValueError: For subjects whose parameters or priors differ, singular covariances, or a posterior that
            is wider than its prior.
    """
    first = sources[0]
    for name, source in zip(names, sources, strict=True):
        _check_same(first, source, names[0], name)
    chosen = _chosen(first.layout, elements)
    layout = _part(first.layout, chosen)
    normals, precisions, scores, constant = [], [], [], 0.0
    for name, source in zip(names, sources, strict=True):
        with errors_of(f"peb: subject '{name}'"):
            check_joint_normal(source.normal, source.layout.label, rounding=source.rounding)
        full = source.normal
        normal = JointNormal(
            full.loc[chosen],
            full.covariance[np.ix_(chosen, chosen)],
            full.prior_loc[chosen],
            full.prior_scale[chosen],
        )
        wide = wide_elements(normal, layout.label, source.independent_draws)
        if wide is not None:
            raise ValueError(
                f"peb: the posterior of subject '{name}' is wider than the prior in {wide[1]} (the variance "
                f"is {wide[0]:.2f} times as large along one direction), so it is not that prior times a "
                "likelihood of normal shape. Check that `prior` is the prior of this fit, in the same units; "
                "fit again with more draws or until the guide has converged; or leave these parameters out "
                "by `elements`."
            )
        precision, score, own = _likelihood(normal)
        normals.append(normal)
        precisions.append(precision)
        scores.append(score)
        constant += own
    rng = np.random.default_rng(seed)
    normality = [
        Normality(math.nan) if s.model is None else measure_normality(s.whole, s.model, s.data, rng)
        for s in sources
    ]
    return Subjects(
        tuple(sources),
        layout,
        tuple(normals),
        np.stack(precisions),
        np.stack(scores),
        constant,
        tuple(normality),
    )


def _likelihood(normal: JointNormal) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the precision and the score of the likelihood, and the log of its constant."""
    values, vectors = width(normal)
    # What is as wide as the prior, up to noise, has said nothing.
    values = np.clip(values, 0.0, 1.0)
    standard = vectors.T @ ((normal.loc - normal.prior_loc) / normal.prior_scale)
    precision = (vectors * ((1 - values) / values)) @ vectors.T
    score = vectors @ (standard / values)
    # ln of one over the integral of the likelihood under N(0, I).
    constant = -0.5 * float(np.log(values).sum() + (standard**2 / values).sum())
    return 0.5 * (precision + precision.T), score, constant


def _check_same(first: Source, other: Source, first_name: str, name: str) -> None:
    if other.layout.label != first.layout.label:
        missing = [n for n in first.layout.label if n not in other.layout.label]
        more = [n for n in other.layout.label if n not in first.layout.label]
        raise ValueError(
            f"peb: subject '{name}' has other parameters than subject '{first_name}'"
            + (f"; without {shortened(missing)}" if missing else "")
            + (f"; with {shortened(more)}" if more else "")
            + ". Name the sites that all subjects have in `sites`."
        )
    if first.labels and other.labels and first.labels != other.labels:
        raise ValueError(
            f"peb: subject '{name}' has the columns {shortened(other.labels)} and subject '{first_name}' has "
            f"{shortened(first.labels)}, and what names= calls them goes by position. Give all subjects' "
            "columns one order and one set of names, or leave names out."
        )
    for part in ("prior_loc", "prior_scale"):
        one, two = getattr(first.normal, part), getattr(other.normal, part)
        # Each in its own units.
        differs = ~np.isclose(one, two, rtol=1e-5, atol=1e-6 * first.normal.prior_scale)
        if differs.any():
            which = shortened([n for n, d in zip(first.layout.label, differs, strict=True) if d])
            raise ValueError(
                f"peb: subject '{name}' was fitted under another prior than subject '{first_name}', in "
                f"{which} ({part.removeprefix('prior_')} {two[differs][0]:.4g}, not {one[differs][0]:.4g}). "
                "Posteriors can be compared only under one prior: fit the subjects again with the same one."
            )


def _part(layout: ElementLayout, chosen: Sequence[int]) -> ElementLayout:
    """Return the layout of some of the elements, in their order."""
    site = tuple(layout.site[i] for i in chosen)
    return ElementLayout(
        {
            name: np.array([j for j, own in enumerate(site) if own == name])
            for name in dict.fromkeys(site)
        },
        tuple(layout.element[i] for i in chosen),
        tuple(layout.label[i] for i in chosen),
        site,
    )


def _chosen(layout: ElementLayout, elements: Sequence[str | int] | None) -> list[int]:
    if elements is None:
        return list(range(layout.size))
    if isinstance(elements, str):
        raise TypeError(f"peb: elements is a list of names; write elements=['{elements}'].")
    with errors_of("peb"):
        found = {i for name in elements for i in layout.find(name, "elements")}
    if not found:
        raise ValueError("peb: elements is empty; name some, or leave it out for all.")
    return sorted(found)

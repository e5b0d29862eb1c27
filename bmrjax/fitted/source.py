"""The joint normal that is reduced, with what is known of where it came from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bmrjax.fitted.finished_fit import finished_fit
from bmrjax.fitted.fitted_posterior import FittedPosterior, Whole, draws_posterior, fitted_posterior
from bmrjax.fitted.guide_on_data import check_guide, guide_on_data
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.judged_prior import judged_prior
from bmrjax.fitted.layout import ElementLayout, Names, shortened
from bmrjax.fitted.normality import whole_normal
from bmrjax.fitted.program_function import check_parameters, with_parameters
from bmrjax.fitted.shrunk_covariance import shrunk_covariance
from bmrjax.fitted.whole_plates import with_all_rows
from bmrjax.infer.arguments import Data
from bmrjax.infer.check_data import column_names
from bmrjax.infer.program_data import program_data
from bmrjax.reduction import Normal
from bmrjax.run.diagnose import Finding
from bmrjax.run.inspection import Inspection
from bmrjax.run.result_inputs import check_columns

# The name of the one site of a posterior that is given as arrays.
ARRAY_SITE = "z"


@dataclass(frozen=True)
class Source:
    """What is reduced.

    Attributes:
        layout: The judged elements.
        normal: Their posterior and prior.
        text: Where it came from, in words.
        inspection: Which sites of the program were judged; empty for arrays.
        findings: What is wrong with the draws.
        whole: Joint normal over all latent elements, or why there is none.
        model: NumPyro program; None for arrays.
        data: Its arguments.
        rounding: Relative error of the covariance.
        independent_draws: Number of independent draws that the covariance is from; None for a closed form.
        labels: Names that the data or the arrays carry, whatever the elements are called; None without any.
    """

    layout: ElementLayout
    normal: JointNormal
    text: str
    inspection: Inspection = Inspection()
    findings: tuple[Finding, ...] = ()
    whole: Whole | str = "arrays come without a program"
    model: Callable | None = None
    data: Data = ()
    rounding: float = 1e-14
    independent_draws: float | None = None
    labels: tuple[str, ...] | None = None


def source_from_arrays(
    loc: Any, covariance: Any, prior: Any, names: Names, *, precision: Any = None
) -> Source:
    """Return what is reduced from a mean and a covariance.

    Args:
        loc: Posterior mean, (n,).
        covariance: Posterior covariance, (n, n).
        prior: Prior that it was fitted under; broadcasts to (n,).
        names: Names of the elements; by default the labels of a pandas Series or DataFrame.
        precision: Inverse of the covariance, (n, n), where it is known to more digits.

    Raises:
        TypeError: If one of the three is missing, or the prior is no `reduction.Normal`.
        ValueError: For shapes that do not fit, or a mean and a covariance with different labels.
    """
    if loc is None or covariance is None or prior is None:
        raise TypeError(
            "reduce_fit: without a fit, give loc=, covariance= and prior=reduction.Normal(loc, scale)."
        )
    if not isinstance(prior, Normal):
        raise TypeError(
            f"reduce_fit: prior is a bmrjax.reduction.Normal, got {type(prior).__name__}."
        )
    mean = np.asarray(loc, np.float64)
    if mean.ndim != 1 or not mean.size:
        raise ValueError(f"reduce_fit: loc has shape {mean.shape}; (n,) is expected, n at least 1.")
    parts = (prior.loc, prior.scale)
    try:
        prior_loc, prior_scale = (
            np.broadcast_to(np.asarray(part, np.float64), mean.shape) for part in parts
        )
    except ValueError:
        shapes = [np.shape(part) for part in parts]
        raise ValueError(
            f"reduce_fit: the prior has the shapes {shapes}, which do not broadcast to {mean.shape}."
        ) from None
    labels = _labels(loc, covariance)
    layout = ElementLayout.of_sites({ARRAY_SITE: mean.shape}, labels if names is None else names)
    normal = JointNormal(
        mean, np.asarray(covariance, np.float64), prior_loc, prior_scale, precision
    )
    digits = np.asarray(covariance).dtype
    rounding = float(np.finfo(digits).eps) if digits.kind == "f" else 0.0
    return Source(
        layout,
        normal,
        f"joint normal of {mean.size} elements, as given",
        rounding=max(rounding, 1e-14),
        labels=None if labels is None else tuple(labels),
    )


def _labels(loc: Any, covariance: Any) -> list[str] | None:
    """Return the labels of a mean that is a pandas Series, by default the names of the elements.

    Raises:
        ValueError: If the rows or columns of the covariance, a DataFrame, have others or another order.
    """
    indices = [getattr(loc, "index", None)]
    indices += [getattr(covariance, axis, None) for axis in ("index", "columns")]
    found = [
        [str(label) for label in index]
        for index in indices
        if index is not None and hasattr(index, "equals")
    ]
    # Labels that only count say nothing.
    found = [labels for labels in found if labels != [str(i) for i in range(len(labels))]]
    differs = [labels for labels in found if labels != found[0]]
    if differs:
        raise ValueError(
            f"reduce_fit: loc and covariance have different labels, or in another order: "
            f"{shortened(found[0])} and {shortened(differs[0])}. Give both in one order, as by "
            "covariance.loc[loc.index, loc.index]; arrays without labels are taken as they come."
        )
    usable = found and len(set(found[0])) == len(found[0]) == len(loc)
    return found[0] if usable else None


def from_fit(
    fit: Any,
    model: Callable | None,
    data: Any,
    params: Mapping[str, Any] | None,
    *,
    sites: Sequence[str] | None,
    names: Names,
    seed: int,
) -> Source:
    """Return what is reduced from a fit and its program; see `reduce_fit` for the arguments.

    Raises:
        TypeError: If there is no program.
        ValueError: As `judged_prior`, `check_guide` and `fitted_posterior` do.
    """
    given = finished_fit(fit, model=model, params=params)
    if given.model is None:
        raise TypeError(
            f"reduce_fit: this fit ({given.text}) holds no program. Give it as model=, with data= for its "
            "arguments; or, without one, the priors of its variables as prior=."
        )
    check_columns(data, "reduce_fit: data", given.columns)
    batch = program_data(given.model, data, batch_size=None, name="reduce_fit")
    model = with_all_rows(given.model, batch)
    prior = judged_prior(model, batch, sites)
    labels = _columns(data, given.columns, prior.shapes)
    names = labels if names is None else names
    if names is None and given.names:
        of_tree = {n: of for n, of in given.names.items() if n in prior.shapes}
        names = {n: of for n, of in of_tree.items() if len(of) == np.prod(prior.shapes[n])}
    layout = ElementLayout.of_sites(prior.shapes, names, given.keep)
    if not layout.size:
        raise ValueError("reduce_fit: the fit has removed every element of the judged sites.")
    if not given.at_start:
        check_parameters(model, given.params, batch)
    model = with_parameters(model, given.params)
    if given.guide is not None:
        given = replace(given, guide=guide_on_data(given.guide, batch))
        check_guide(given.guide, given.params or {}, batch, prior.latent, prior.discrete)
    posterior: FittedPosterior = fitted_posterior(
        given, model, batch, layout, prior.latent, seed=seed
    )
    whole, covariance, text = (
        whole_normal(posterior, model, batch, prior.latent),
        posterior.covariance,
        posterior.text,
    )
    if posterior.independent_draws is not None and not isinstance(whole, str):
        whole, weight = shrunk_covariance(whole, model, batch, posterior.independent_draws)
        if weight > 0:
            at = whole.positions(layout)
            covariance = whole.covariance[np.ix_(at, at)]
            text += f", their correlations moved by {weight:.0%} towards the program's curvature"
    normal = JointNormal(
        posterior.loc, covariance, layout.flat(prior.loc), layout.flat(prior.scale)
    )
    judged = ", ".join(f"'{name}'" for name in prior.shapes)
    return Source(
        layout,
        normal,
        f"joint normal of {judged} from {text}",
        prior.inspection,
        posterior.findings,
        whole,
        model,
        batch,
        independent_draws=posterior.independent_draws,
        labels=labels,
    )


def from_draws(
    fit: Any, prior: Mapping[str, Normal], *, names: Names, sites: Sequence[str] | None
) -> Source:
    """Return what is reduced from draws without a program, under priors that are given by site.

    Args:
        fit: What has draws; see `finished_fit`.
        prior: Site to the normal prior that it was drawn under; the sites that are judged.
        names: Names of the elements; by default those of a tree's coordinates.
        sites: Some of the sites of the priors; all of them by default.

    Raises:
        TypeError: If the fit is a guide, or a prior no `reduction.Normal`.
        ValueError: For sites without draws or priors that do not fit, and as `fitted_posterior` does.
    """
    given = finished_fit(fit)
    if given.draws is None:
        raise TypeError(
            f"reduce_fit: prior= by site stands for a program that draws come without; {given.text} has one."
        )
    judged = list(prior if sites is None else sites)
    unknown = sorted(set(judged) - set(prior))
    missing = sorted(set(judged) - set(given.draws))
    if unknown or missing or not judged:
        what = f"no draws of {missing}" if missing else f"no prior of {unknown or 'any site'}"
        raise ValueError(
            f"reduce_fit: there are {what}. There are draws of {sorted(given.draws)} and priors of "
            f"{sorted(prior)}."
        )
    loc, scale = {}, {}
    for site in judged:
        own, shape = prior[site], given.shapes[site]
        if not isinstance(own, Normal):
            raise TypeError(
                f"reduce_fit: prior['{site}'] is a bmrjax.reduction.Normal, got {type(own).__name__}."
            )
        try:
            loc[site], scale[site] = (
                np.broadcast_to(np.asarray(part, np.float64), shape)
                for part in (own.loc, own.scale)
            )
        except ValueError:
            raise ValueError(
                f"reduce_fit: prior['{site}'] has the shapes {np.shape(own.loc)} and {np.shape(own.scale)}, "
                f"which do not broadcast to that of the site, {shape}. Draws in a dict have one leading "
                "axis; flatten chains."
            ) from None
    if names is None:
        names = {site: labels for site, labels in given.names.items() if site in judged}
    layout = ElementLayout.of_sites({site: given.shapes[site] for site in judged}, names)
    posterior = draws_posterior(
        given.draws, given.text, layout, {site: given.shapes[site] for site in judged}
    )
    normal = JointNormal(posterior.loc, posterior.covariance, layout.flat(loc), layout.flat(scale))
    listed = ", ".join(f"'{site}'" for site in judged)
    return Source(
        layout,
        normal,
        f"joint normal of {listed} from {posterior.text}, under the priors that were given",
        findings=posterior.findings,
        whole="the draws come without a program",
        independent_draws=posterior.independent_draws,
    )


def _columns(
    data: Any, columns: tuple[str, ...] | None, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...] | None:
    """Return the names of columns that fit a judged site: those of a table, or of the fit."""
    tables = [*column_names(data).values(), *([] if columns is None else [columns])]
    lengths = {shape[-1] for shape in shapes.values() if shape}
    fitting = [names for names in tables if len(names) in lengths]
    # Of two tables as wide as a site, nothing says which one its elements belong to.
    clear = [n for n in fitting if all(n == m or len(n) != len(m) for m in fitting)]
    return clear[0] if clear else None

"""Parametric empirical Bayes: a linear model of subjects' parameters, from their posteriors alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bmrjax.errors import FitWarning, warn
from bmrjax.fitted.layout import Names, shortened
from bmrjax.fitted.normality import TRUSTED_PARETO_K
from bmrjax.group.between import components_of, integrate_level
from bmrjax.group.design import Design, design_of
from bmrjax.group.group_fit import GroupFit
from bmrjax.group.messages import errors_of
from bmrjax.group.second_level import SecondLevel
from bmrjax.group.subjects import Subjects, sources_of_arrays, sources_of_fits, subjects_of
from bmrjax.run.diagnose import Finding
from bmrjax.run.serial import one_at_a_time


@one_at_a_time
def peb(
    fits: Sequence[Any] | None = None,
    design: Any = None,
    *,
    model: Callable | Sequence[Callable] | None = None,
    data: Sequence[Any] | None = None,
    params: Sequence[Mapping[str, Any]] | None = None,
    loc: Any = None,
    covariance: Any = None,
    prior: Any = None,
    sites: Sequence[str] | None = None,
    names: Names = None,
    elements: Sequence[str | int] | None = None,
    components: Mapping[str, Sequence[str | int]] | None = None,
    between_scale: float = 0.25,
    between_spread: float = 1.0,
    seed: int = 0,
) -> GroupFit:
    r"""Fit a linear model of subjects' parameters to their posteriors; no subject is fitted again.

    Each subject was fitted by itself under the same prior N(η, diag(σ²)). Its posterior, taken to be a joint
    normal, over this prior is its likelihood, and under

    .. math::  θ_i = η + Σ_k x_{ik} β_k + ε_i,  ε_i \sim N(0, diag(τ²)),

    effects β, subjects and evidence are known in closed form for every τ, which is integrated out by
    importance sampling. What is exact if the posteriors are normal is then exact up to Monte Carlo error.

    The priors: covariates are centred, so that the constant is the mean of the group, and it has the prior of
    the first level, N(η, σ²). The effect of a covariate has the standard deviation σ per standard
    deviation of the covariate. The logarithm of τ/σ is normal around ln(`between_scale`) with the standard
    deviation `between_spread`, independently for each component.

    Args:
        fits: One fit per subject, each of a kind that `reduce_fit` takes.
        design: Covariates of the subjects, one row each: a DataFrame, a dict of columns, or an array. Text,
            categories and booleans become zeros and ones. A constant is added unless there is one; by
            default it is all there is.
        model: NumPyro program of all subjects, or a list; where the fits do not know it.
        data: Arguments of the program for each subject, a list.
        params: Constrained parameters of each subject's guide, a list.
        loc: Without `fits`: posterior means, (subjects, n).
        covariance: Without `fits`: posterior covariances, (subjects, n, n).
        prior: Without `fits`: the `reduction.Normal` that they were fitted under.
        sites: Sites whose parameters may vary between subjects; by default those of `inspect`.
        names: Names of the parameters, as in `reduce_fit`.
        elements: Parameters (or sites, by name) that the second level is about; the others keep the prior of
            the first level, with no exchange between subjects. By default all.
        components: Name of a component to the parameters that share one standard deviation between
            subjects; by default each has its own.
        between_scale: Prior median of the standard deviation between subjects, in units of σ.
        between_spread: Prior standard deviation of its logarithm.
        seed: Of all draws.

    Returns:
        Effects, standard deviations between subjects, and the subjects' parameters given all data. It
        reduces the effects (`GroupFit.reduce`) and predicts covariates (`GroupFit.leave_one_out`).

    Raises:
        TypeError: For arguments that do not go together.
        ValueError: For fewer subjects than the design needs, columns that determine each other, subjects with
            different priors or parameters, posteriors that are singular or wider than their prior, and
            what `reduce_fit` refuses.

    Warns:
        FitWarning: If a subject's posterior is not normal enough to be trusted, or has other findings; or if
            the integral over the standard deviations is not reliable.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> rng = np.random.default_rng(0)
        >>> group = np.repeat(["control", "patient"], 10)
        >>> truth = rng.normal([0.8, 0.0], 0.1, (20, 2)) + np.outer(group == "patient", [0.0, 0.6])
        >>> noise = 0.2 * np.eye(2)  # standard error of each subject's estimates
        >>> estimates = truth + rng.normal(size=(20, 2)) @ noise
        >>> covariance = np.linalg.inv(np.linalg.inv(noise**2) + np.eye(2))
        >>> study = bmr.peb(
        ...     design={"group": group},
        ...     loc=estimates @ np.linalg.inv(noise**2) @ covariance,
        ...     covariance=np.stack([covariance] * 20),
        ...     prior=bmr.reduction.Normal(0.0, 1.0),
        ...     names=["gain", "decay"],
        ... )
        >>> study.mean["group[patient]"].round(1)
        array([0.1, 0.5])
        >>> study.reduce(forced=["mean"]).chosen["group[patient]"]
        array([False,  True])

    References:
        Friston, Litvak, Oswal, Razi, Stephan, van Wijk, Ziegler and Zeidman (2016), NeuroImage 128; Zeidman
        et al. (2019), NeuroImage 200.
    """
    arrays = (loc, covariance, prior)
    if fits is None:
        program = {"model": model, "data": data, "params": params, "sites": sites}
        given = [name for name, value in program.items() if value is not None]
        if given:
            raise TypeError(f"peb: arrays have no program, so {shortened(given)} do not apply.")
        sources = sources_of_arrays(loc, covariance, prior, names)
    else:
        if any(value is not None for value in arrays):
            raise TypeError(
                "peb: loc, covariance and prior stand for fits; leave them out where `fits` is given."
            )
        if isinstance(fits, Mapping) or not isinstance(fits, Sequence):
            raise TypeError(
                f"peb: fits is a list with one fit per subject, got {type(fits).__name__}."
            )
        _check_count(len(fits))
        sources = sources_of_fits(fits, model, data, params, sites=sites, names=names, seed=seed)
    _check_count(len(sources))
    columns = design_of(design, len(sources))
    subjects = subjects_of(sources, elements, columns.subjects, seed)
    if set(columns.names) & set(subjects.layout.label):
        both = sorted(set(columns.names) & set(subjects.layout.label))
        raise ValueError(
            f"peb: {both} are names of covariates and of parameters; rename the covariates."
        )
    with errors_of("peb"):
        parts = components_of(
            subjects.layout, components, scale=between_scale, spread=between_spread
        )
    level = SecondLevel(
        subjects.precision,
        subjects.score,
        subjects.constant,
        columns.standardised,
        np.ones(len(columns.names) * subjects.layout.size, bool),
    )
    integral = integrate_level(level, parts, seed=seed)
    findings = _findings(subjects, columns, integral.pareto_k)
    for finding in findings:
        warn(f"peb: {finding}", FitWarning)
    return GroupFit.of(subjects, columns, parts, level, integral, findings, seed)


def _check_count(count: int) -> None:
    if count < 2:
        raise ValueError(
            f"peb: {count} subject{'' if count == 1 else 's'} cannot show what varies between subjects; at "
            "least 2 are needed. For one fit, use bmr.reduce_fit."
        )


def _findings(subjects: Subjects, design: Design, pareto_k: float) -> tuple[Finding, ...]:
    """Return what is wrong with the subjects' fits, by kind, and with the integral."""
    found: dict[str, list[tuple[str, Finding]]] = {}
    for name, source in zip(design.subjects, subjects.sources, strict=True):
        for finding in source.findings:
            found.setdefault(finding.code, []).append((name, finding))
    merged = [
        Finding(
            code,
            f"Subjects {shortened([name for name, _ in ones], 6)}; the first: {ones[0][1].message}",
            ones[0][1].advice,
        )
        for code, ones in found.items()
    ]
    bad = [
        name
        for name, normality in zip(design.subjects, subjects.normality, strict=True)
        if normality.trusted is False
    ]
    if bad:
        merged.append(
            Finding(
                "not-normal",
                f"The joint normal does not cover the posterior of the subjects {shortened(bad, 6)} (Pareto "
                f"k up to {np.nanmax(subjects.pareto_k):.2f}, above {TRUSTED_PARETO_K}).",
                "Take more draws if there are fewer than 100 for each latent element; else compare with a "
                "fit of all subjects in one program.",
            )
        )
    if pareto_k > TRUSTED_PARETO_K:
        merged.append(
            Finding(
                "scales-not-integrated",
                f"The integral over the standard deviations between subjects is not reliable (Pareto k "
                f"{pareto_k:.2f}).",
                "Let parameters share a standard deviation, by `components`.",
            )
        )
    return tuple(merged)

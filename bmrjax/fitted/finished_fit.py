"""What a caller gave as a finished fit: draws, or a guide with parameters."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpyro.infer import MCMC
from numpyro.infer.autoguide import AutoDelta, AutoGuide

from bmrjax.infer.pruned_guide import unpruned
from bmrjax.run.element_names import element_names
from bmrjax.run.result import Result


@dataclass(frozen=True)
class FinishedFit:
    """A fit, whatever it was made with.

    Attributes:
        model: NumPyro program, if the fit knows it.
        text: What the fit is, in words.
        draws: Site to draws, with leading axes for draws or for chains and draws.
        guide: Guide, if there are no draws.
        params: Its constrained parameters, and those of the program.
        at_start: Whether the fit left the parameters of the program where they start, as MCMC does.
        keep: Masks of elements that had been removed before, by site.
        columns: Names of the columns of the inputs.
        shapes: Site to shape, for draws.
        names: Site to the names of its elements, of a tree whose coordinates have some.
    """

    model: Callable | None
    text: str
    draws: Mapping[str, np.ndarray] | None = None
    guide: Any = None
    params: Mapping[str, Any] | None = None
    at_start: bool = False
    keep: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    names: Mapping[str, list[str]] = field(default_factory=dict)


# Axes of draws in a tree: of chains and draws, or of both together.
_LEAD = ("sample", "chain", "draw")


@functools.singledispatch
def finished_fit(
    fit: Any, *, model: Callable | None = None, params: Mapping[str, Any] | None = None
) -> FinishedFit:
    """Describe a fit; the rest of `reduce_fit` reads this form only.

    Args:
        fit: A `numpyro.infer.MCMC` that has run; draws by site; what has a group `posterior` with
            variables over chains and draws, such as a DataTree of ArviZ; a guide; or a `bmrjax.Result`.
        model: NumPyro program; of an MCMC, a guide or a result, the one that it was made for by default.
        params: Constrained parameters of a guide; of draws, those of the program.

    Raises:
        TypeError: For anything else, and for a guide without parameters.
        ValueError: For an MCMC that has not run.
    """
    if _has_group(fit):
        return _of_tree(fit, model, params)
    if not callable(fit):
        raise TypeError(
            "reduce_fit takes a numpyro.infer.MCMC, a dict of draws by site, an ArviZ DataTree, a guide with "
            "params=, a bmrjax.Result, or loc=, covariance= and prior=; got "
            f"{type(fit).__name__}."
        )
    return _of_guide(fit, model, params)


@finished_fit.register
def _(fit: MCMC, *, model: Callable | None = None, params: Any = None) -> FinishedFit:
    _no_params(params, "an MCMC")
    try:
        draws = fit.get_samples(group_by_chain=True)
    except Exception as error:
        raise ValueError("reduce_fit: this MCMC has no draws; call its run first.") from error
    if not draws:
        raise ValueError("reduce_fit: this MCMC has no draws; call its run first.")
    found = model if model is not None else getattr(fit.sampler, "model", None)
    shapes = {name: np.shape(value)[2:] for name, value in draws.items()}
    return FinishedFit(found, type(fit.sampler).__name__, draws=draws, shapes=shapes, at_start=True)


@finished_fit.register(Mapping)
def _(fit: Mapping[str, Any], *, model: Callable | None = None, params: Any = None) -> FinishedFit:
    if _has_group(fit):
        return _of_tree(fit, model, params)
    draws = {name: np.asarray(value) for name, value in fit.items()}
    shapes = {name: value.shape[1:] for name, value in draws.items()}
    return FinishedFit(model, "draws", draws=draws, shapes=shapes, params=params)


@finished_fit.register
def _(fit: Result, *, model: Callable | None = None, params: Any = None) -> FinishedFit:
    _no_params(params, "a Result")
    own = fit.model if fit.unpruned_model is None else unpruned(fit.model)[0]
    return FinishedFit(
        own if model is None else model,
        "a Result",
        guide=unpruned(fit.guide)[0],
        params=fit.params,
        keep=fit.keep,
        columns=fit.columns,
    )


@finished_fit.register
def _(
    fit: AutoGuide, *, model: Callable | None = None, params: Mapping[str, Any] | None = None
) -> FinishedFit:
    return _of_guide(fit, fit.model if model is None else model, params)


def _has_group(fit: Any) -> bool:
    group = getattr(fit, "posterior", None)
    return group is not None and not callable(group)


def _of_tree(fit: Any, model: Callable | None, params: Mapping[str, Any] | None) -> FinishedFit:
    group = fit.posterior
    variables = getattr(group, "data_vars", group)
    draws, shapes, names = {}, {}, {}
    for name in variables:
        variable, site = variables[name], str(name)
        lead = [dim for dim in _LEAD if dim in getattr(variable, "dims", ())]
        if lead:
            variable = variable.transpose(*lead, *_own_axes(variable, site, lead))
        draws[site] = np.asarray(variable)
        shapes[site] = draws[site].shape[len(lead) or 2 :]
        labels = _labels(variable, lead)
        if labels is not None:
            names[site] = labels
    return FinishedFit(
        model, "an ArviZ tree", draws=draws, shapes=shapes, names=names, params=params
    )


def _own_axes(variable: Any, site: str, lead: list[str]) -> list[str]:
    """Return the axes of a site in the order of the program, where they have the names that ArviZ counts."""
    own = [dim for dim in variable.dims if dim not in lead]
    counted = [f"{site}_dim_{i}" for i in range(len(own))]
    return counted if sorted(own) == sorted(counted) else own


def _labels(variable: Any, lead: list[str]) -> list[str] | None:
    """Return the names of the elements of a variable by the coordinates of its axes; None without any."""
    dims = [dim for dim in getattr(variable, "dims", ()) if dim not in lead]
    if not lead or not dims:
        return None
    axes = [_labels_along(variable, dim) for dim in dims]
    if all(names is None for names in axes):
        return None
    return element_names(tuple(variable.sizes[dim] for dim in dims), axes)


def _labels_along(variable: Any, dim: str) -> list[str] | None:
    """Return the coordinates of an axis as texts, unless they only count, or repeat."""
    if dim not in variable.coords:
        return None
    labels = [str(label) for label in np.asarray(variable.coords[dim])]
    counts = labels == [str(i) for i in range(len(labels))]
    return None if counts or len(set(labels)) < len(labels) else labels


def _of_guide(
    guide: Callable, model: Callable | None, params: Mapping[str, Any] | None
) -> FinishedFit:
    guide, keep = unpruned(guide)
    name = type(guide).__name__ if isinstance(guide, AutoGuide) else "a guide"
    if isinstance(guide, AutoDelta):
        raise TypeError(
            "reduce_fit: AutoDelta is a point, and has no covariance. Fit AutoLaplaceApproximation, which "
            "has the same optimum."
        )
    if params is None:
        raise TypeError(
            f"reduce_fit: {name} is a guide, and needs its parameters: params=svi_result.params."
        )
    return FinishedFit(model, name, guide=guide, params=params, keep=keep)


def _no_params(params: Any, what: str) -> None:
    if params is not None:
        raise TypeError(f"reduce_fit: params belongs to a guide or to draws; {what} has its own.")

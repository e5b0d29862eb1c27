"""Plots of what `peb` says of a group."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from bmrjax.plot.axes import (
    BLUE,
    GREY,
    clean_axes,
    mark_truth,
    new_figure,
    rows_height,
    titled,
    true_values,
)
from bmrjax.run.page_words import short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def effects(
    study: Any, *, truth: Mapping[str, ArrayLike] | None = None, most: int = 40
) -> "Figure":
    """Plot the mean and the 95 % interval of each effect, one panel per covariate.

    Args:
        study: A `GroupFit`, from `bmrjax.peb`.
        truth: Covariate to the true effects on the parameters, as of simulated data; drawn as marks.
        most: How many parameters are drawn at most, those whose effects are largest, in standard deviations.

    Returns:
        A figure whose panels share their rows, the parameters. Intervals that exclude zero are blue. Of many
        intervals some do so by chance: see `GroupFit.reduce` for the evidence of each effect.

    Raises:
        TypeError: For anything but a `GroupFit`.
        ValueError: If a covariate of `truth` is not in the design, or has not one value per parameter.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> age = np.linspace(20, 60, 12)
        >>> study = bmr.peb(
        ...     design={"age": age},
        ...     loc=np.outer(age - 40, [0.02, 0.0]) + np.random.default_rng(0).normal(0, 0.1, (12, 2)),
        ...     covariance=np.stack([0.01 * np.eye(2)] * 12),
        ...     prior=bmr.reduction.Normal(0.0, 1.0),
        ...     names=["gain", "decay"],
        ... )
        >>> figure = bmr.plot.effects(study, truth={"age": [0.02, 0.0]})
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['mean', 'age']
    """
    from matplotlib.ticker import MaxNLocator

    _check_study("effects", study)
    truth = dict(truth or {})
    if wrong := [name for name in truth if name not in study.covariates]:
        raise ValueError(
            f"plot.effects: truth has {wrong}, which the design has not; it has {list(study.covariates)}."
        )
    size = len(study.elements)
    # The constant is the mean of the group, which is not a difference between subjects.
    others = study.covariates[1:] or study.covariates
    ratio = np.max([np.abs(study.mean[name]) / study.sd[name] for name in others], axis=0)
    shown = np.sort(np.argsort(-ratio, kind="stable")[:most])
    rows = range(len(shown))
    columns = min(len(study.covariates), 3)
    lines = math.ceil(len(study.covariates) / columns)
    figure = new_figure((1.2 + 3.0 * columns, lines * rows_height(len(shown))))
    axes = list(figure.subplots(lines, columns, sharey=True, squeeze=False).flat)
    for spare in axes[len(study.covariates) :]:
        spare.remove()
    for ax, name in zip(axes, study.covariates, strict=False):
        low, high = study.lower[name][shown], study.upper[name][shown]
        colours = np.where((low > 0) | (high < 0), BLUE, GREY)
        ax.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
        ax.hlines(rows, low, high, color=colours, linewidth=2, zorder=2)
        ax.scatter(study.mean[name][shown], rows, color=colours, s=25, zorder=3)
        titled(ax, name, inches=2.6)
        ax.set_xlabel("Effect, 95% interval")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        if name in truth:
            mark_truth(ax, true_values(truth[name], size, "effects", "parameters")[shown])
        clean_axes(ax)
    axes[0].set_yticks(rows, short_names([study.elements[i] for i in shown]))
    axes[0].set_ylim(len(shown) - 0.4, -0.6)
    return figure


def subjects(study: Any, element: str, *, truth: ArrayLike | None = None) -> "Figure":
    """Plot a parameter of each subject, by itself and given all subjects.

    Args:
        study: A `GroupFit`, from `bmrjax.peb`.
        element: Name of the parameter.
        truth: What it really is, one value per subject, as of simulated data; drawn as marks.

    Returns:
        A figure with one row per subject: a grey point for the estimate from the subject's data and prior
        alone, a blue one with its 95 % interval for the estimate given all data.

    Raises:
        TypeError: For anything but a `GroupFit`.
        ValueError: If there is no such parameter, or not one true value per subject.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> age = np.linspace(20, 60, 12)
        >>> study = bmr.peb(
        ...     design={"age": age},
        ...     loc=np.outer(age - 40, [0.02, 0.0]) + np.random.default_rng(0).normal(0, 0.1, (12, 2)),
        ...     covariance=np.stack([0.01 * np.eye(2)] * 12),
        ...     prior=bmr.reduction.Normal(0.0, 1.0),
        ...     names=["gain", "decay"],
        ... )
        >>> bmr.plot.subjects(study, "gain").axes[0].get_title(loc="left")
        'gain of 12 subjects'
    """
    _check_study("subjects", study)
    if element not in study.elements:
        raise ValueError(
            f"plot.subjects: there is no parameter '{element}'; there are {list(study.elements)}."
        )
    at = study.elements.index(element)
    alone, together = study.subject_loc_alone[:, at], study.subject_loc[:, at]
    half = 1.96 * np.sqrt(study.subject_covariance[:, at, at])
    rows = range(len(alone))
    figure = new_figure((6.4, rows_height(len(alone))))
    ax = figure.subplots()
    ax.hlines(rows, together - half, together + half, color=BLUE, linewidth=2, zorder=2)
    ax.scatter(alone, rows, color=GREY, s=25, zorder=3, label="by itself")
    ax.scatter(together, rows, color=BLUE, s=25, zorder=3, label="given all subjects")
    if truth is not None:
        mark_truth(ax, true_values(truth, len(alone), "subjects", "subjects"))
    ax.set_yticks(rows, short_names([str(name) for name in study.subjects]))
    ax.set_ylim(len(alone) - 0.4, -0.6)
    ax.set_xlabel("Posterior mean, 95% interval")
    titled(ax, f"{element} of {len(alone)} subjects", inches=4.0)
    # Beside the axes: subjects may lie anywhere in them.
    ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    clean_axes(ax)
    return figure


def _check_study(caller: str, study: Any) -> None:
    """Refuse anything but a `GroupFit`, which this package does not import: `group` lies beside it."""
    if not hasattr(study, "subject_loc_alone"):
        raise TypeError(f"plot.{caller} takes what bmrjax.peb returns, got {type(study).__name__}.")

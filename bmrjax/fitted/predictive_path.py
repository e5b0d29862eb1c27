"""Submodels of each size against how well they predict a data point that is left out."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Bool, Float
from numpyro.infer.util import constrain_fn
from scipy.special import logsumexp

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.normality import log_joint, weighted_draws
from bmrjax.fitted.pareto_smoothing import smooth_tails
from bmrjax.fitted.program_function import look_at_sites, remembered_function
from bmrjax.infer.arguments import Data
from bmrjax.infer.masked_values import counted_values

if TYPE_CHECKING:
    from pandas import DataFrame

# Draws of each submodel, fewer where there are so many data points that they would not fit into memory.
_MOST_DRAWS, _LEAST_DRAWS, _MOST_NUMBERS = 2000, 400, 2e7

# Variance of weights with a mean of one up to which their tail is not smoothed: the draws are then worth at
# least 80 % of their number.
_LITTLE = 0.25


def predictive_path(
    masks: Bool[np.ndarray, "sizes units"],
    inside: Bool[np.ndarray, "sizes n"],
    candidates: Sequence[str],
    whole: Callable[[Bool[np.ndarray, " n"]], Whole],
    model: Callable,
    data: Data,
    rng: np.random.Generator,
) -> "DataFrame":
    """Estimate the expected log predictive density of submodels by PSIS-LOO; see `FitReduction.path`.

    With `numpyro.handlers.scale` around a likelihood, a data point that is left out takes its whole share of
    the log density with it, and is predicted once. Points that a mask leaves out do not count.

    Draws are from the joint normal given that the removed elements are zero. Their weight for a data point
    is the density of the program over that of the normal and over the likelihood of the point, smoothed by
    Pareto's distribution, so that nothing depends on the posterior being normal where `pareto_k` is small.

    Args:
        masks: Candidates that are in, by submodel.
        inside: Elements that are in.
        candidates: Their names.
        whole: Elements that are in to the joint normal over all latent elements of that submodel.
        model: NumPyro program.
        data: Its arguments.
        rng: Source of randomness.

    Raises:
        ValueError: If the program observes nothing, or the joint normal is singular.
    """
    import pandas as pd

    full = whole(np.ones(inside.shape[1], bool))
    density, terms = log_joint(full, model, data), _pointwise(full, model, data)
    rows = _count_points(model, data)
    if not rows:
        raise ValueError("FitReduction.path: the program observes nothing.")
    count = int(np.clip(_MOST_NUMBERS / rows, _LEAST_DRAWS, _MOST_DRAWS))
    pointwise, shapes = [], []
    for kept in inside:
        drawn = weighted_draws(whole(kept), density, rng, count)
        if drawn is None:
            raise ValueError(
                "FitReduction.path: the covariance of all latent elements together is singular."
            )
        of_points, left_out = terms(drawn.points)
        finite = np.isfinite(drawn.log_weights)
        base = np.where(finite, drawn.log_weights, drawn.log_weights[finite].max() - 300.0)
        log_weights = base - left_out
        most = log_weights.max(1)
        weights = np.exp(log_weights - most[:, None])
        total = weights.sum(1)
        if left_out is of_points:
            # A weight times the likelihood that it is divided by is the same for all points.
            predicted = logsumexp(base) - most - np.log(total)
        else:
            predicted = logsumexp(log_weights + of_points, axis=1) - most - np.log(total)
        shape = np.zeros(len(of_points))
        # Tails that carry little are left as they are; smoothing takes most of the time.
        varies = count * np.einsum("rd,rd->r", weights, weights) / total**2 - 1 > _LITTLE
        if varies.any():
            smoothed, shape[varies] = smooth_tails(log_weights[varies])
            predicted[varies] = logsumexp(smoothed + of_points[varies], axis=1)
        pointwise.append(predicted)
        shapes.append(np.max(np.nan_to_num(shape, nan=np.inf)))
    elpd = np.array(pointwise)
    difference = elpd - elpd[np.argmax(elpd.sum(1))]
    names = np.array(candidates, object)
    return pd.DataFrame(
        {
            "size": masks.sum(1),
            "candidates": [tuple(names[mask]) for mask in masks],
            "elpd": elpd.sum(1),
            "elpd_error": _error(elpd),
            "difference": difference.sum(1),
            "difference_error": _error(difference),
            "pareto_k": shapes,
        }
    )


def _error(pointwise: Float[np.ndarray, "sizes points"]) -> Float[np.ndarray, " sizes"]:
    """Return the standard error of a sum over data points."""
    return np.sqrt(pointwise.shape[1]) * pointwise.std(1)


def _count_points(model: Callable, data: Data) -> int:
    """Return the number of data points that a likelihood is a product over."""

    def count(sites: Any) -> int:
        found = 0
        for site in sites.values():
            if site["type"] == "sample" and site["is_observed"]:
                shape = np.shape(site["value"])
                shape = shape[: len(shape) - site["fn"].event_dim]
                found += math.prod(np.broadcast_shapes(shape, site["fn"].batch_shape))
        return found

    return look_at_sites(count, model, data)


def _pointwise(
    whole: Whole, model: Callable, data: Data
) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """Return a function of points, (draws, m), to two arrays, (rows, draws).

    The first is ln of the likelihood of each data point. The second is what the log joint loses without it:
    the same array, unless the program has `numpyro.handlers.scale` around a likelihood. Points that
    masks leave out are in neither.
    """

    def densities(seeded: Callable, args: Any, kwargs: Any, points: Any) -> Any:
        def one(point: Any) -> Any:
            values = constrain_fn(seeded, args, kwargs, dict(whole.unpack(point)))
            substituted = numpyro.handlers.substitute(seeded, data=values)
            sites = numpyro.handlers.trace(substituted).get_trace(*args, **kwargs)
            observed = [s for s in sites.values() if s["type"] == "sample" and s["is_observed"]]
            found = [site["fn"].log_prob(site["value"]) for site in observed]
            counts = [_counts(site, of) for site, of in zip(observed, found, strict=True)]
            parts = [found]
            if any(own is not None for own in counts):
                each = zip(counts, found, strict=True)
                parts.append([jnp.ones(of.shape) if own is None else own for own, of in each])
            return tuple(jnp.concatenate([jnp.ravel(a) for a in part]) for part in parts)

        return jax.lax.map(one, points, batch_size=100)

    evaluate = remembered_function(whole.functions, densities, model, data)

    def of_points(points: Any) -> tuple[np.ndarray, np.ndarray]:
        found, *counts = (np.asarray(part, np.float64).T for part in evaluate(points))
        if not counts:
            return found, found
        counted = counts[0].any(1)
        if not counted.any():
            raise ValueError("FitReduction.path: the program masks every data point.")
        return found[counted], (found * counts[0])[counted]

    return of_points


def _counts(site: Any, log_prob: Any) -> Any:
    """Return by how much each data point of an observed site counts; None where all do, once."""
    mask = counted_values(site["fn"], jnp.shape(site["value"]))
    if mask is None and site["scale"] is None:
        return None
    counts = jnp.asarray(1.0 if site["scale"] is None else site["scale"], float)
    if mask is not None:
        axes = tuple(range(mask.ndim - site["fn"].event_dim, mask.ndim))
        counts = jnp.where(mask.any(axes), counts, 0.0)
    return jnp.broadcast_to(counts, log_prob.shape)

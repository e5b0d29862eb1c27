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
    density, likelihood = log_joint(full, model, data), _pointwise(full, model, data)
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
        of_points = likelihood(drawn.points).T
        finite = np.isfinite(drawn.log_weights)
        base = np.where(finite, drawn.log_weights, drawn.log_weights[finite].max() - 300.0)
        log_weights = base - of_points
        most = log_weights.max(1)
        weights = np.exp(log_weights - most[:, None])
        total = weights.sum(1)
        # Without smoothing, a weight times the likelihood that it is divided by is the same for all points.
        predicted = logsumexp(base) - most - np.log(total)
        shape = np.zeros(rows)
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


def _pointwise(whole: Whole, model: Callable, data: Data) -> Callable[[Any], np.ndarray]:
    """Return ln of the likelihood of each data point as a function of points, (draws, m) to (draws, rows)."""

    def densities(seeded: Callable, args: Any, kwargs: Any, points: Any) -> Any:
        def one(point: Any) -> Any:
            values = constrain_fn(seeded, args, kwargs, dict(whole.unpack(point)))
            substituted = numpyro.handlers.substitute(seeded, data=values)
            sites = numpyro.handlers.trace(substituted).get_trace(*args, **kwargs)
            found = [
                jnp.ravel(site["fn"].log_prob(site["value"]))
                for site in sites.values()
                if site["type"] == "sample" and site["is_observed"]
            ]
            return jnp.concatenate(found) if found else jnp.zeros(0)

        return jax.lax.map(one, points, batch_size=100)

    evaluate = remembered_function(whole.functions, densities, model, data)
    return lambda points: np.asarray(evaluate(points), np.float64)

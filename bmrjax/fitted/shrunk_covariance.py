"""The covariance of few draws, shrunk towards what the curvature of the program says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpyro.infer.util import potential_energy

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.program_function import program_function
from bmrjax.infer.arguments import Data

# With so many independent draws for each latent element, or so few elements, noise does not matter.
_ENOUGH, _FEW_ELEMENTS = 100, 20
# Beyond, the Hessian takes longer than drawing on.
_MOST_ELEMENTS = 1000
# Least eigenvalue of the correlations by the curvature, which is computed in single precision.
_LEAST_EIGENVALUE = 1e-4


def shrunk_covariance(
    whole: Whole, model: Callable, data: Data, independent_draws: float
) -> tuple[Whole, float]:
    r"""Shrink the correlations of draws towards those of Laplace's approximation at their mean.

    The inverse of the covariance of n draws of m elements is too large by a factor of about n / (n - m), and
    noisy, which decides submodels that leave out many elements. The correlations R of the draws have the
    variance (1 - R²)² / n; those of the curvature, Q, have none, but are wrong where the posterior is not
    normal. Their mixture (1 - λ) R + λ Q has the least expected squared error at

    .. math::  λ = \sum (1 - R^2)^2 / n \Big/ \sum (R - Q)^2,

    one at most, sums over pairs. The variances of the draws are kept. Where the two differ by more than
    noise, as in a posterior that is not normal, λ is small.

    Args:
        whole: Joint normal of draws over all latent elements.
        model: NumPyro program.
        data: Its arguments.
        independent_draws: Number of independent draws that they are worth.

    Returns:
        The joint normal with the mixture, and λ; as it was, and zero, where there are enough draws, fewer
        than 20 or more than 1,000 elements, or a curvature that is not that of a maximum.

    References:
        Schäfer and Strimmer (2005), Statistical Applications in Genetics and Molecular Biology 4, for
        shrinkage of correlations towards a target.
    """
    varies = np.diag(whole.covariance) > 0
    size = int(varies.sum())
    if not _FEW_ELEMENTS <= size <= _MOST_ELEMENTS or independent_draws >= _ENOUGH * size:
        return whole, 0.0
    target = _target(whole, model, data, varies)
    if target is None:
        return whole, 0.0
    scale = np.sqrt(np.diag(whole.covariance)[varies])
    drawn = whole.covariance[np.ix_(varies, varies)] / scale / scale[:, None]
    pairs = ~np.eye(size, dtype=bool)
    noise = float(((1 - drawn[pairs] ** 2) ** 2).sum()) / max(independent_draws, 1.0)
    distance = float(((drawn - target)[pairs] ** 2).sum())
    weight = min(1.0, noise / distance) if distance > 0 else 1.0
    mixed = (weight * target + (1 - weight) * drawn) * scale * scale[:, None]
    covariance = whole.covariance.copy()
    covariance[np.ix_(varies, varies)] = 0.5 * (mixed + mixed.T)
    return replace(whole, covariance=covariance), weight


def _target(
    whole: Whole, model: Callable, data: Data, varies: np.ndarray
) -> Float[np.ndarray, "m m"] | None:
    """Return the correlations by the curvature at the mean of the draws; None if it is no maximum there."""

    def curvature(seeded: Callable, args: Any, kwargs: Any, point: Any) -> Any:
        def potential(z: Any) -> Any:
            return potential_energy(seeded, args, kwargs, dict(whole.unpack(z)))

        return jax.hessian(potential)(point)

    found = program_function(curvature, model, data)(whole.loc)
    precision = np.asarray(found, np.float64)[np.ix_(varies, varies)]
    if not np.isfinite(precision).all() or not (np.diag(precision) > 0).all():
        return None
    scale = np.sqrt(np.diag(precision))
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T) / scale / scale[:, None])
    if values[0] < _LEAST_EIGENVALUE:
        return None
    covariance = (vectors / values) @ vectors.T
    spread = np.sqrt(np.diag(covariance))
    return covariance / spread / spread[:, None]

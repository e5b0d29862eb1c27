"""The loss of one layer as a quadratic function of its weights, one row of weights at a time."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from bmrjax.trained.moments import LayerMoments

_lapack: Any = scipy.linalg.lapack


@dataclass
class Quadratic:
    """Curvature of a group of rows: H_o = scale · g_o A + δ I, and where each row's minimum is.

    Attributes:
        moments: Of the layer.
        group: Which group of it.
        scale: Number of data points over the temperature.
        prior_precision: δ.
        start: Weights that the prior keeps to, (outputs, inputs); biases last, if there are any.
        has_bias: Whether the last input is the bias.
    """

    moments: LayerMoments
    group: int
    scale: float
    prior_precision: float
    start: Float[np.ndarray, "outputs inputs"]
    has_bias: bool

    def row(self, output: int, keep: Bool[np.ndarray, " inputs"]) -> "RowPosterior":
        """Return the posterior of the kept weights of one row, given that the others are zero."""
        where = np.flatnonzero(keep)
        pull = self._pull(output, where)
        if len(where) == len(self.prior_precisions):
            values, vectors = self._spectrum
            scale = np.asarray(1 / (self._strength(output) * values + 1))
            covariance: Any = _Spectral(scale, vectors)
        else:
            covariance = _Dense(inverse(self._precision(output, where)))
        return RowPosterior(covariance.times(pull), covariance.diagonal(), covariance)

    def mean(self, output: int, keep: Bool[np.ndarray, " inputs"]) -> Float[np.ndarray, " kept"]:
        """Return the posterior mean of the kept weights of one row alone: a third of the work, or less."""
        where = np.flatnonzero(keep)
        if not len(where):
            return np.zeros(0)
        pull, precision = self._pull(output, where), self._precision(output, where)
        _, found, info = _lapack.dposv(precision, pull, lower=1)
        if info != 0:
            raise FloatingPointError("the curvature of a layer is not positive definite")
        return found

    def factor(
        self, output: int, where: Int[np.ndarray, " some"]
    ) -> Float[np.ndarray, "some some"]:
        """Return the lower Cholesky factor of the precision of some weights of one row."""
        factor, info = _lapack.dpotrf(self._precision(output, where), lower=1)
        if info != 0:
            raise FloatingPointError("the curvature of a layer is not positive definite")
        return factor

    def slope(
        self, weights: Float[np.ndarray, "outputs inputs"]
    ) -> Float[np.ndarray, "outputs inputs"]:
        """Return minus the gradient of the loss and the prior at some weights, in nats."""
        moments = self.moments
        missing = moments.targets[self.group].T - weights @ moments.inputs[self.group]
        return self.strengths[:, None] * missing + self.prior_precisions * (self.start - weights)

    @functools.cached_property
    def strengths(self) -> Float[np.ndarray, " outputs"]:
        """Curvature at the output of each row, over all data."""
        return self.scale * np.asarray(self.moments.outputs[self.group], np.float64)

    def _strength(self, output: int) -> float:
        return float(self.strengths[output])

    def _precision(
        self, output: int, where: Int[np.ndarray, " kept"]
    ) -> Float[np.ndarray, "kept kept"]:
        inputs = np.asarray(self.moments.inputs[self.group])
        precision = self._strength(output) * inputs[np.ix_(where, where)]
        precision[np.diag_indices(len(where))] += self.prior_precisions[where]
        return precision

    def _pull(self, output: int, where: Int[np.ndarray, " kept"]) -> Float[np.ndarray, " kept"]:
        pull = self._strength(output) * self.moments.targets[self.group, where, output]
        return pull + self.prior_precisions[where] * self.start[output, where]

    @functools.cached_property
    def prior_precisions(self) -> Float[np.ndarray, " inputs"]:
        """Prior precision of each weight of a row."""
        found = np.full(self.start.shape[1], self.prior_precision)
        if self.has_bias:
            # A flat prior; a little of it keeps a row that reaches nothing regular.
            found[-1] *= 1e-6
        return found

    @functools.cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Return values and vectors with strength · A + D = (V (strength · values + 1)⁻¹ Vᵀ)⁻¹."""
        inputs = np.asarray(self.moments.inputs[self.group])
        return whitened_spectrum(inputs, self.prior_precisions)

    def loss(
        self, output: int, where: Int[np.ndarray, " kept"], change: Float[np.ndarray, " kept"]
    ) -> float:
        """Return what a change of one row's weights costs, to second order, without the prior; in nats."""
        inputs = self.moments.inputs[self.group][np.ix_(where, where)]
        strength = self.scale * self.moments.outputs[self.group, output]
        return float(0.5 * strength * (change @ inputs @ change))


@dataclass(frozen=True)
class RowPosterior:
    """Posterior of one row: mean and variances, and columns of the covariance on demand."""

    mean: Float[np.ndarray, " kept"]
    variance: Float[np.ndarray, " kept"]
    covariance: "_Dense | _Spectral"


@dataclass(frozen=True)
class _Dense:
    matrix: np.ndarray

    def times(self, vector: np.ndarray) -> np.ndarray:
        return self.matrix @ vector

    def diagonal(self) -> np.ndarray:
        return np.diagonal(self.matrix)

    def columns(self, where: np.ndarray) -> np.ndarray:
        return self.matrix[:, where]


@dataclass(frozen=True)
class _Spectral:
    """V diag(values) Vᵀ: all rows of a layer share V as long as nothing is gone."""

    values: np.ndarray
    vectors: np.ndarray

    def times(self, vector: np.ndarray) -> np.ndarray:
        return self.vectors @ (self.values * (self.vectors.T @ vector))

    def diagonal(self) -> np.ndarray:
        return np.square(self.vectors) @ self.values

    def columns(self, where: np.ndarray) -> np.ndarray:
        return (self.vectors * self.values) @ self.vectors[where].T


def whitened_spectrum(
    matrix: Float[np.ndarray, "n n"], diagonal: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """Return values and vectors V with s · matrix + diag(diagonal) = (V diag(s · values + 1)⁻¹ Vᵀ)⁻¹."""
    root = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(matrix / np.outer(root, root))
    return np.maximum(values, 0), vectors / root[:, None]


def inverse(matrix: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Return the inverse of a symmetric positive definite matrix."""
    if not matrix.size:
        return matrix
    factor, info = _lapack.dpotrf(matrix, lower=1)
    if info == 0:
        found, info = _lapack.dpotri(factor, lower=1)
    if info != 0:
        raise FloatingPointError("the curvature of a layer is not positive definite")
    # LAPACK has left the other triangle at zero.
    whole = found + found.T
    whole[np.diag_indices(len(whole))] = np.diagonal(found)
    return whole


# Moments of a layer, its weights without the bias, and whether it has one.
LayerWeights = tuple[LayerMoments, Float[np.ndarray, "groups outputs inputs"], bool]


def prior_precision(parts: Sequence[LayerWeights], scale: float) -> float:
    """Return the prior precision of largest marginal likelihood of a layer (MacKay's fixed point).

    The evidence of N(0, 1/δ) on all weights of the layer, in the Laplace approximation with the curvature
    scale · A ⊗ diag(g), the bias integrated out under a flat prior.

    Args:
        parts: The layer; more than one where it is taken in parts.
        scale: Number of data points over the temperature.
    """
    spectrum = []
    for moments, _, has_bias in parts:
        for a, g in zip(moments.inputs, moments.outputs, strict=True):
            if has_bias:
                a = a[:-1, :-1] - np.outer(a[:-1, -1], a[-1, :-1]) / a[-1, -1]
            spectrum.append(np.outer(g, np.maximum(np.linalg.eigvalsh(a), 0)).ravel())
    curvature = scale * np.concatenate(spectrum)
    square = float(sum(np.sum(weights**2) for _, weights, _ in parts))
    if square == 0:
        return 1.0
    precision = sum(weights.size for _, weights, _ in parts) / square
    for _ in range(200):
        new = max(float(np.sum(curvature / (curvature + precision))), 1e-3) / square
        if abs(new - precision) < 1e-6 * precision:
            break
        precision = new
    return precision

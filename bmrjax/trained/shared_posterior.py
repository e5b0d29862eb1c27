"""The posterior of all rows of a layer at once, where all have lost the same inputs."""

import functools

import numpy as np
from jaxtyping import Bool, Float, Int

from bmrjax.trained.quadratic import Quadratic, whitened_spectrum

# Rows of a layer differ by the strength of the curvature at their output only. Their covariances are taken at
# this many strengths at most, and each row's at the one next to its own.
CURVATURE_LEVELS = 8


class SharedPosterior:
    """Posterior of the rows of one group of a layer, given that some inputs have no weights.

    Args:
        quadratic: The loss of the group.
        keep: Which inputs stay, the bias included.
    """

    def __init__(self, quadratic: Quadratic, keep: Bool[np.ndarray, " inputs"]):
        self.quadratic: Quadratic = quadratic
        self.where: np.ndarray = np.flatnonzero(keep)
        self.strengths: np.ndarray = quadratic.scale * np.asarray(
            quadratic.moments.outputs[quadratic.group], np.float64
        )
        inputs = quadratic.moments.inputs[quadratic.group][np.ix_(self.where, self.where)]
        self._values, self._vectors = whitened_spectrum(
            np.asarray(inputs), quadratic.prior_precisions[self.where]
        )

    @functools.cached_property
    def mean(self) -> Float[np.ndarray, "outputs kept"]:
        """Where the minimum of each row is."""
        q, where = self.quadratic, self.where
        pull = self.strengths[:, None] * q.moments.targets[q.group, where].T
        pull = pull + q.prior_precisions[where] * q.start[:, where]
        scale = 1 / (np.outer(self.strengths, self._values) + 1)
        return ((pull @ self._vectors) * scale) @ self._vectors.T

    @functools.cached_property
    def levels(self) -> list[tuple[float, Int[np.ndarray, " rows"]]]:
        """Strengths, and the rows that belong to each."""
        strengths = np.maximum(self.strengths, 1e-6 * max(self.strengths.max(), 1e-30))
        low, high = np.log(strengths.min()), np.log(strengths.max())
        if high - low < 1e-9:
            return [(float(self.strengths[0]), np.arange(len(strengths)))]
        place = np.floor((np.log(strengths) - low) / (high - low) * CURVATURE_LEVELS).astype(int)
        place = np.minimum(place, CURVATURE_LEVELS - 1)
        return [
            (
                float(np.exp(np.log(strengths[place == level]).mean())),
                np.flatnonzero(place == level),
            )
            for level in np.unique(place)
        ]

    def covariance(
        self, strength: float, some: Int[np.ndarray, " some"]
    ) -> Float[np.ndarray, "some some"]:
        """Return the covariance of some kept inputs, by their place among these, at one strength."""
        vectors = self._vectors[some]
        return (vectors / (strength * self._values + 1)) @ vectors.T

    def loss(self, change: Float[np.ndarray, "outputs kept"]) -> float:
        """Return what a change of the weights costs, to second order, without the prior; in nats."""
        q = self.quadratic
        inputs = q.moments.inputs[q.group][np.ix_(self.where, self.where)]
        return float(0.5 * self.strengths @ np.sum((change @ inputs) * change, 1))

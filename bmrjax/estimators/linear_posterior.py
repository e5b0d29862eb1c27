"""Linear regression with normal priors and known noise, from one singular value decomposition."""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize_scalar

# Bounds of the standard deviation of the noise, in units of the target's.
LEAST_NOISE, MOST_NOISE = 1e-4, 3.0


class LinearPosterior:
    """The posterior of a linear regression with independent normal priors, for any scale of the noise.

    Everything follows from the singular values of the columns in units of their prior, at a cost of
    O(rows n²). None of it squares these values, so columns that follow from others lose no digits.

    Args:
        design: Columns.
        target: Target, with a standard deviation of about one.
        prior_scale: Standard deviation of the prior of each coefficient.
    """

    def __init__(
        self,
        design: Float[np.ndarray, "rows n"],
        target: Float[np.ndarray, " rows"],
        prior_scale: Float[np.ndarray, " n"],
    ):
        self.design, self.target, self.prior_scale = design, target, prior_scale

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Singular values and right vectors of all n directions; the target along, and beyond, the left ones.

        With fewer rows than columns the last singular values are zero.
        """
        rows, size = self.design.shape
        left, few, right = np.linalg.svd(self.design * self.prior_scale, full_matrices=rows < size)
        singular, along = np.zeros(size), np.zeros(size)
        singular[: len(few)], along[: len(few)] = few, left[:, : len(few)].T @ self.target
        return singular, right, along, max(float(self.target @ self.target - along @ along), 0.0)

    def of_columns(self, kept: Bool[np.ndarray, " n"]) -> "LinearPosterior":
        """Return the regression on some of the columns."""
        return LinearPosterior(self.design[:, kept], self.target, self.prior_scale[kept])

    def posterior(
        self, noise: float
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"], Float[np.ndarray, "n n"]]:
        """Return mean, covariance and precision of the coefficients.

        Args:
            noise: Standard deviation of the noise.
        """
        singular, right, along, _ = self._parts
        total = singular**2 + noise**2
        half = self.prior_scale[:, None] * right.T * (noise / np.sqrt(total))
        precision = self.design.T @ self.design / noise**2 + np.diag(self.prior_scale**-2.0)
        loc = self.prior_scale * (right.T @ (along * singular / total))
        return loc, half @ half.T, 0.5 * (precision + precision.T)

    def log_evidence(self, noise: float) -> float:
        """Return ln of the density of the target, with the coefficients marginalised, in nats.

        Args:
            noise: Standard deviation of the noise.
        """
        singular, _, along, rest = self._parts
        rows = len(self.target)
        # A direction in which the columns do not vary contributes ln(noise²), as the others beyond them do.
        total = singular**2 + noise**2
        log_det = np.log(total).sum() + 2 * (rows - len(total)) * np.log(noise)
        quadratic = (along**2 / total).sum() + rest / noise**2
        return -0.5 * float(log_det + quadratic + rows * np.log(2 * np.pi))

    def noise(self) -> float:
        """Return the standard deviation of the noise that maximises the evidence, between its bounds."""
        found = minimize_scalar(
            lambda log_noise: -self.log_evidence(float(np.exp(log_noise))),
            bounds=(np.log(LEAST_NOISE), np.log(MOST_NOISE)),
            method="bounded",
        )
        return float(np.exp(found.x))

    def least_noise(self, ratio: float) -> float:
        """Return the least noise at which no direction is known 1 / ratio² times as well as another.

        It is zero if the columns alone ensure that. The first column, the constant one, does not count.

        Args:
            ratio: Of two standard deviations of the posterior, in units of the prior.
        """
        singular = np.linalg.svd(self.design[:, 1:] * self.prior_scale[1:], compute_uv=False)
        is_full = len(singular) == self.design.shape[1] - 1 and singular[-1] > ratio * singular[0]
        return 0.0 if is_full else ratio * float(singular[0])

"""Laplace's approximation of logistic and softmax regression, on the host in double precision."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax


def class_probabilities(scores: Float[np.ndarray, "rows outputs"]) -> np.ndarray:
    """Return the probability of each class, (rows, classes), from log odds or from scores."""
    if scores.shape[1] == 1:
        second = expit(scores[:, 0])
        return np.stack([1 - second, second], 1)
    return softmax(scores, axis=1)


@dataclass(frozen=True)
class Logistic:
    """The posterior of a logistic or softmax regression, whose coefficients are laid out output by output.

    Attributes:
        design: Columns, the first one of ones.
        index: Class of each row; 0 and 1 with one output, from 0 on with several.
        prior_scale: Standard deviation of the prior of each coefficient.
        outputs: One for two classes, else the number of classes.
    """

    design: Float[np.ndarray, "rows n"]
    index: Int[np.ndarray, " rows"]
    prior_scale: Float[np.ndarray, " n"]
    outputs: int

    @property
    def _precision(self) -> np.ndarray:
        return np.tile(self.prior_scale**-2.0, self.outputs)

    def of_columns(self, kept: Bool[np.ndarray, " n"]) -> "Logistic":
        """Return the regression on some of the columns."""
        return Logistic(self.design[:, kept], self.index, self.prior_scale[kept], self.outputs)

    def loss(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus ln of likelihood and prior, up to a constant, and its gradient."""
        scores = self.design @ flat.reshape(self.outputs, -1).T
        if self.outputs == 1:
            sign = 2 * self.index - 1
            log_likelihood = log_expit(sign * scores[:, 0]).sum()
            fitted, truth = expit(scores), self.index[:, None]
        else:
            log_likelihood = log_softmax(scores, axis=1)[np.arange(len(scores)), self.index].sum()
            fitted, truth = softmax(scores, axis=1), self.index[:, None] == np.arange(self.outputs)
        gradient = ((fitted - truth).T @ self.design).ravel() + self._precision * flat
        return 0.5 * float(self._precision @ flat**2) - float(log_likelihood), gradient

    def hessian(self, flat: np.ndarray) -> np.ndarray:
        """Return the matrix of its second derivatives."""
        design, width = self.design, self.design.shape[1]
        scores = design @ flat.reshape(self.outputs, width).T
        fitted = expit(scores) if self.outputs == 1 else softmax(scores, axis=1)
        found = np.diag(self._precision)
        for i in range(self.outputs):
            for j in range(self.outputs):
                weight = fitted[:, i] * ((i == j) - fitted[:, j])
                block = (design * weight[:, None]).T @ design
                found[i * width : (i + 1) * width, j * width : (j + 1) * width] += block
        return found

    def mode(self) -> Float[np.ndarray, " outputs*n"]:
        """Return where the posterior is largest."""
        start = np.zeros(self.outputs * self.design.shape[1])
        mode = minimize(
            self.loss, start, jac=True, hess=self.hessian, method="trust-exact", tol=1e-8
        ).x
        for _ in range(3):  # the last digits
            mode = mode - np.linalg.solve(self.hessian(mode), self.loss(mode)[1])
        return mode

    def normal_at(
        self, flat: np.ndarray
    ) -> tuple[Float[np.ndarray, " outputs*n"], Float[np.ndarray, "outputs*n outputs*n"]]:
        """Return mean and covariance of the normal with the posterior's first derivatives at a point.

        At the mode that is Laplace's approximation.
        """
        hessian = self.hessian(flat)
        covariance = np.linalg.inv(hessian)
        loc = flat - np.linalg.solve(hessian, self.loss(flat)[1])
        return loc, 0.5 * (covariance + covariance.T)

    def log_evidence(self, mode: np.ndarray) -> float:
        """Return Laplace's approximation of ln of the evidence, given the mode."""
        log_det = float(np.linalg.slogdet(self.hessian(mode))[1])
        return 0.5 * float(np.log(self._precision).sum()) - 0.5 * log_det - self.loss(mode)[0]

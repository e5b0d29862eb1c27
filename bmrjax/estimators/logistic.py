"""Laplace's approximation of logistic and softmax regression, on the host in double precision."""

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax


def class_probabilities(scores: Float[np.ndarray, "rows outputs"]) -> np.ndarray:
    """Return the probability of each class, (rows, classes), from log odds or from scores."""
    if scores.shape[1] == 1:
        second = expit(scores[:, 0])
        return np.stack([1 - second, second], 1)
    return softmax(scores, axis=1)


def laplace_approximation(
    design: Float[np.ndarray, "rows n"],
    index: Int[np.ndarray, " rows"],
    prior_scale: Float[np.ndarray, " n"],
    outputs: int,
) -> tuple[Float[np.ndarray, " outputs*n"], Float[np.ndarray, "outputs*n outputs*n"]]:
    """Return mode and covariance of the coefficients, output after output.

    Args:
        design: Columns, the first one of ones.
        index: Class of each row; 0 and 1 with one output, from 0 on with several.
        prior_scale: Standard deviation of the prior of each coefficient.
        outputs: One for two classes, else the number of classes.
    """
    rows, width = design.shape
    truth = index[:, None] if outputs == 1 else index[:, None] == np.arange(outputs)
    precision = np.tile(prior_scale**-2.0, outputs)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        coef = flat.reshape(outputs, width)
        scores = design @ coef.T
        if outputs == 1:
            sign = 2 * index - 1
            log_likelihood = log_expit(sign * scores[:, 0]).sum()
            fitted = expit(scores)
        else:
            log_likelihood = log_softmax(scores, axis=1)[np.arange(rows), index].sum()
            fitted = softmax(scores, axis=1)
        gradient = ((fitted - truth).T @ design).ravel() + precision * flat
        return 0.5 * float(precision @ flat**2) - float(log_likelihood), gradient

    def hessian(flat: np.ndarray) -> np.ndarray:
        scores = design @ flat.reshape(outputs, width).T
        fitted = expit(scores) if outputs == 1 else softmax(scores, axis=1)
        found = np.diag(precision)
        for i in range(outputs):
            for j in range(outputs):
                weight = fitted[:, i] * ((i == j) - fitted[:, j])
                block = (design * weight[:, None]).T @ design
                found[i * width : (i + 1) * width, j * width : (j + 1) * width] += block
        return found

    start = np.zeros(outputs * width)
    mode = minimize(loss, start, jac=True, hess=hessian, method="trust-exact", tol=1e-8).x
    for _ in range(3):  # the last digits
        mode = mode - np.linalg.solve(hessian(mode), loss(mode)[1])
    covariance = np.linalg.inv(hessian(mode))
    return mode, 0.5 * (covariance + covariance.T)

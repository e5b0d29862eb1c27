"""Sums of a function over the eigenvalues of a large symmetric matrix, by stochastic Lanczos quadrature."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Columns = Callable[[Float[np.ndarray, "n probes"]], Float[np.ndarray, "n probes"]]


@dataclass(frozen=True)
class SpectralSum:
    """A sum over eigenvalues; see `spectral_sum`.

    Attributes:
        value: The estimate.
        standard_error: Over the probes; zero where all eigenvalues were computed.
        least: The smallest eigenvalue that was met.
        clipped: Fraction of the spectrum, by weight, that lay below the floor.
    """

    value: float
    standard_error: float
    least: float
    clipped: float


def spectral_sum(
    product: Columns,
    size: int,
    function: Callable[[np.ndarray], np.ndarray],
    *,
    rng: np.random.Generator,
    num_probes: int,
    num_steps: int,
    floor: float,
    exact_up_to: int,
) -> SpectralSum:
    """Return tr f(M) of a symmetric matrix that is known by its products.

    Args:
        product: Returns M times each of some columns.
        size: Rows of M.
        function: f, of an array of eigenvalues.
        rng: Draws the probes.
        num_probes: Random vectors of ±1. The standard error falls with the root of their number.
        num_steps: Lanczos steps; each is a product with all probes.
        floor: Smaller eigenvalues are taken to be this.
        exact_up_to: Matrices up to this size are built, and all eigenvalues computed.

    References:
        Ubaru, Chen and Saad (2017), Fast estimation of tr(f(A)) via stochastic Lanczos quadrature.
    """
    if size <= exact_up_to:
        matrix = np.asarray(product(np.eye(size)), np.float64)
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
        clipped = float(np.mean(values < floor))
        total = float(np.sum(function(np.maximum(values, floor))))
        return SpectralSum(total, 0.0, float(values.min()), clipped)
    probes = rng.choice([-1.0, 1.0], (size, num_probes)) / size**0.5
    sums, least, below = [], np.inf, []
    for diagonal, beside in zip(*_lanczos(product, probes, min(num_steps, size)), strict=True):
        values, vectors = np.linalg.eigh(
            np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        )
        weights = vectors[0] ** 2
        sums.append(size * float(weights @ function(np.maximum(values, floor))))
        below.append(float(weights[values < floor].sum()))
        least = min(least, float(values.min()))
    error = float(np.std(sums, ddof=1) / len(sums) ** 0.5) if len(sums) > 1 else float("nan")
    return SpectralSum(float(np.mean(sums)), error, least, float(np.mean(below)))


def _lanczos(
    product: Columns, start: np.ndarray, num_steps: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the diagonals and subdiagonals of the tridiagonal matrices, one a column of `start`."""
    size, count = start.shape
    basis = np.zeros((num_steps, size, count))
    alpha, beta = np.zeros((num_steps, count)), np.zeros((num_steps, count))
    vector, lengths = start, np.full(count, num_steps)
    for step in range(num_steps):
        basis[step] = vector
        found = np.asarray(product(vector), np.float64)
        alpha[step] = np.sum(vector * found, axis=0)
        # All earlier vectors are taken out, twice: rounding would let them come back.
        for _ in range(2):
            inner = np.einsum("snc,nc->sc", basis[: step + 1], found)
            found = found - np.einsum("snc,sc->nc", basis[: step + 1], inner)
        beta[step] = np.linalg.norm(found, axis=0)
        over = beta[step] <= 1e-6 * np.maximum(np.abs(alpha[0]), 1e-30)
        lengths = np.where(over & (lengths == num_steps), step + 1, lengths)
        if step + 1 == num_steps or np.all(lengths <= step + 1):
            break
        vector = np.where(over, 0.0, found / np.where(over, 1.0, beta[step]))
    return (
        [alpha[:n, i] for i, n in enumerate(lengths)],
        [beta[: n - 1, i] for i, n in enumerate(lengths)],
    )

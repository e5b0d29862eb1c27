"""Exact inclusion probabilities of a linear regression with unknown noise, over all submodels."""

import numpy as np

from bmrjax.fitted.model_prior import model_prior

# Distance of the nodes for the noise, in units of the standard deviation of its logarithm; nodes are added
# at both ends until they have so much less than the most probable one, in nats.
_SPACING, _REACH = 0.75, 9.0


def log_evidences(
    x: np.ndarray, y: np.ndarray, noise: float, prior_scale: float = 1.0
) -> np.ndarray:
    """Return ln of the evidence of all submodels for a known noise, by sums of squares and products.

    Columns are decided one after the other, for all choices of those before at once; a column that comes in
    is eliminated from the others.

    Args:
        x: Columns, (rows, columns).
        y: Targets.
        noise: Standard deviation.
        prior_scale: Standard deviation of the coefficients.

    Returns:
        By number of the submodel, of which bit j says whether column j is in, (2^columns,).
    """
    rows, count = x.shape
    matrix = np.zeros((1, count + 1, count + 1))
    matrix[0, :-1, :-1] = (prior_scale / noise) ** 2 * (x.T @ x) + np.eye(count)
    matrix[0, :-1, -1] = matrix[0, -1, :-1] = prior_scale / noise**2 * (x.T @ y)
    value = np.array([-0.5 * float(y @ y) / noise**2 - rows * np.log(noise)])
    for _ in range(count):
        pivot, beside, rest = matrix[:, 0, 0], matrix[:, 0, 1:], matrix[:, 1:, 1:]
        with_it = value + 0.5 * (beside[:, -1] ** 2 / pivot - np.log(pivot))
        along = beside / pivot[:, None]
        matrix = np.concatenate([rest, rest - along[:, :, None] * beside[:, None, :]])
        value = np.concatenate([value, with_it])
    return value


def enumerate_linear(
    x: np.ndarray, y: np.ndarray, expected: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return inclusion probabilities, and the most probable submodel, under the program of the table.

    Coefficients are N(0, 1), the noise HalfNormal(1), which is integrated on a lattice of its logarithm.

    Args:
        x: Columns, (rows, columns).
        y: Targets.
        expected: As in `reduce_fit`.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    rows, count = x.shape
    numbers = np.arange(2**count)
    size = np.bitwise_count(numbers.astype(np.uint32))
    by_size = np.tri(count + 1, count, -1, dtype=bool)
    log_prior = model_prior(expected, count).log_prob(by_size)[size]
    step = _SPACING / np.sqrt(2 * rows)
    centre, total, most = _noise(x, y), np.full(2**count, -np.inf), -np.inf
    for side in (range(1000), range(-1, -1000, -1)):
        for k in side:
            log_noise = centre + step * k
            noise = float(np.exp(log_noise))
            own = log_evidences(x, y, noise) + log_prior + log_noise - 0.5 * noise**2
            total = np.logaddexp(total, own)
            here = float(np.logaddexp.reduce(own))
            most = max(most, here)
            if here < most - _REACH:
                break
    weight = np.exp(total - total.max())
    best = int(np.argmax(weight))
    inclusion = [float(weight[numbers >> j & 1 == 1].sum() / weight.sum()) for j in range(count)]
    return np.array(inclusion), best >> np.arange(count) & 1 == 1


def _noise(x: np.ndarray, y: np.ndarray) -> float:
    """Return ln of the noise at the mode of the evidence of the full model and of what it keeps."""
    grid = np.linspace(np.log(0.2), np.log(3.0), 200)
    inside = np.ones(x.shape[1], bool)
    mode = 0.0
    for _ in range(3):
        own = x[:, inside]
        left, singular, _ = np.linalg.svd(own, full_matrices=True)
        values = np.concatenate([singular**2, np.zeros(len(y) - len(singular))])
        total = values + np.exp(2 * grid)[:, None]
        density = -0.5 * (np.log(total) + (left.T @ y) ** 2 / total).sum(1) + grid
        mode = float(grid[np.argmax(density)])
        covariance = np.linalg.inv(x.T @ x / np.exp(2 * mode) + np.eye(x.shape[1]))
        loc = covariance @ x.T @ y / np.exp(2 * mode)
        inside = loc**2 > 4 * np.diag(covariance)
        if not inside.any():
            break
    return mode

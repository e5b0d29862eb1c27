"""The figures of “Mean field” and “Verification”: linear regressions, for which everything is known exactly.

python docs/figures/mean_field.py

The numbers are in ``mean_field.json``, with those that the page states of 54 data sets.
"""

import itertools
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, GREEN, GREY, ORANGE, save, write_numbers


def evidence(x: np.ndarray, y: np.ndarray, noise: float) -> float:
    """Return ln p(y) of a linear regression with standard normal coefficients."""
    covariance = x @ x.T + noise**2 * np.eye(len(y))
    _, determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return float(-0.5 * (determinant + y @ np.linalg.solve(covariance, y)))


def mean_field(x: np.ndarray, y: np.ndarray, noise: float) -> float:
    """Return the least free energy of independent normals, in nats: that of the exact one plus a gap."""
    precision = x.T @ x / noise**2 + np.eye(x.shape[1])
    gap = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    return -evidence(x, y, noise) + float(gap)


def data(
    correlation: float, columns: int = 8, effect: float = 0.8, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated columns, the first half with effects of either sign, and a target of 100 rows."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(100, 1))
    own = rng.normal(size=(100, columns))
    x = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    number = np.arange(columns)
    beta = np.where(number < columns // 2, effect * np.where(number % 2, -1, 1), 0.0)
    return x, x @ beta + rng.normal(size=100)


def path(x: np.ndarray, y: np.ndarray) -> tuple[list[float], list[float]]:
    """Return exact and mean-field free energies as columns are removed, those of the least evidence first."""
    left = list(range(x.shape[1]))
    exact, factorised = [], []
    while True:
        exact.append(-evidence(x[:, left], y, 1.0))
        factorised.append(mean_field(x[:, left], y, 1.0))
        if len(left) == 1:
            return exact, factorised
        scores = [evidence(x[:, [j for j in left if j != i]], y, 1.0) for i in left]
        del left[int(np.argmax(scores))]


def count() -> dict[str, int]:
    """Count, over 54 data sets, where mean field ends with fewer columns than the exact evidence."""
    found = {"fewer": 0, "as many": 0, "more": 0}
    for columns, correlation, effect, seed in itertools.product(
        (8, 12, 16), (0.8, 0.9, 0.95), (0.3, 0.5, 0.8), (0, 1)
    ):
        exact, factorised = (np.argmin(v) for v in path(*data(correlation, columns, effect, seed)))
        kind = "as many" if exact == factorised else "fewer" if factorised > exact else "more"
        found[kind] += 1
    return found


def ellipses(ax: plt.Axes) -> None:
    """Draw an exact posterior of two correlated columns, and the mean-field one."""
    precision = np.array([[1.0, 0.9], [0.9, 1.0]]) / 0.19
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for covariance, colour, label in (
        (np.linalg.inv(precision), GREY, "exact"),
        (np.diag(1 / np.diag(precision)), ORANGE, "mean field"),
    ):
        edge = 2 * np.linalg.cholesky(covariance) @ circle
        ax.plot(*edge, color=colour, label=label)
    ax.set(aspect="equal", xlabel="first coefficient", title="second coefficient")
    ax.legend(loc="upper right", fontsize=8)


def gap(ax: plt.Axes) -> dict[str, float]:
    """Draw by how much the mean-field free energy exceeds the exact one."""
    correlations, largest = np.linspace(0, 0.95, 20), {}
    for columns, colour in ((4, BLUE), (8, GREEN), (16, ORANGE)):
        found = []
        for correlation in correlations:
            x, y = data(float(correlation), columns)
            found.append(mean_field(x, y, 1.0) + evidence(x, y, 1.0))
        ax.plot(correlations, found, color=colour, label=f"{columns} columns")
        largest[f"{columns} columns, nats at a correlation of 0.95"] = found[-1]
    ax.set(xlabel="correlation of the columns", title="mean-field free energy too high by, nats")
    ax.legend(loc="upper left", fontsize=8)
    return largest


def removal(folder: Path | None = None) -> dict[str, int]:
    """Draw free energies as columns are removed: the mean-field one falls too far."""
    x, y = data(0.95)
    figure, ax = plt.subplots(figsize=(5.5, 3.0), layout="constrained")
    exact, factorised = path(x, y)
    number = np.arange(x.shape[1], 0, -1)
    ax.plot(number, factorised, "-o", color=ORANGE, label="mean field")
    ax.plot(number, exact, "-o", color=BLUE, label="exact: −ln evidence")
    left = {}
    for name, values, colour in (("mean field", factorised, ORANGE), ("exact", exact, BLUE)):
        best = int(np.argmin(values))
        left[f"columns left, {name}"] = int(number[best])
        ax.plot(number[best], values[best], "o", color=colour, markersize=11, fillstyle="none")
    ax.invert_xaxis()
    ax.set(xlabel="columns left, of which 4 have an effect", title="free energy, nats")
    ax.legend()
    save(figure, "removal", folder)
    return left | {f"data sets, {kind}": times for kind, times in count().items()}


def main(folder: Path | None = None) -> None:
    """Draw all."""
    figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.0), layout="constrained")
    ellipses(axes[0])
    found = {"mean_field": gap(axes[1])}
    save(figure, "mean_field", folder)
    found["removal"] = removal(folder)
    write_numbers((folder or Path(__file__).parent) / "mean_field.json", found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

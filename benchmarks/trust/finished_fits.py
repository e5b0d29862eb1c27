"""Accuracy, false discoveries and speed of `reduce_fit` on conjugate linear models.

    python -m benchmarks.trust.finished_fits

1. Up to 12 candidates (3, 6, 9 and 12; ten data sets each): the largest difference of an inclusion
   probability from enumeration of all submodels by their marginal likelihoods, computed row-wise, without
   the posterior, with even prior odds.
2. False discoveries: 200 data sets of 100 rows and 20 columns, neighbours correlated at 0.5, with a number of
   effects drawn from the prior (each column has one with probability 0.2) and coefficients from N(0, 0.5²).
   Columns are selected by inclusion probability, the most probable first, as long as the mean of one minus
   these probabilities is at most 0.1 (Müller et al. 2004). Reported: the mean share of false ones among
   those that are selected, its standard error, and the share of the true ones that is found.
3. Speed: 50 coefficients from 4,000 draws, 500 from 20,000, in CPU seconds of one process.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

NOISE = 1.0


def posterior(x: np.ndarray, y: np.ndarray, prior_scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the coefficients of a linear model with noise of deviation one."""
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(x.shape[1]) / prior_scale**2)
    return covariance @ x.T @ y / NOISE**2, covariance


def columns(rows: int, count: int, correlation: float, rng: Any) -> np.ndarray:
    """Return rows of a stationary AR(1) process over the columns."""
    x = rng.standard_normal((rows, count))
    for column in range(1, count):
        fresh = np.sqrt(1 - correlation**2) * x[:, column]
        x[:, column] = correlation * x[:, column - 1] + fresh
    return x


def enumerated(x: np.ndarray, y: np.ndarray, prior_scale: float) -> np.ndarray:
    """Return inclusion probabilities from the marginal likelihoods of all submodels."""
    rows = len(y)
    masks = np.array(list(itertools.product([True, False], repeat=x.shape[1])))
    evidence = []
    for mask in masks:
        own = x[:, mask]
        covariance = NOISE**2 * np.eye(rows) + prior_scale**2 * own @ own.T
        factor = np.linalg.cholesky(covariance)
        half = np.linalg.solve(factor, y)
        evidence.append(-np.log(np.diag(factor)).sum() - 0.5 * half @ half)
    weight = np.exp(np.array(evidence) - max(evidence))
    return weight @ masks / weight.sum()


def reduced(x: np.ndarray, y: np.ndarray, prior_scale: float, **options: Any) -> Any:
    """Return the reduction of the exact posterior."""
    import bmrjax as bmr

    loc, covariance = posterior(x, y, prior_scale)
    prior = bmr.reduction.Normal(0.0, prior_scale)  # type: ignore[arg-type]
    return bmr.reduce_fit(loc=loc, covariance=covariance, prior=prior, **options)


def accuracy(seeds: int) -> dict[str, float]:
    """Return the largest error of an inclusion probability by number of candidates."""
    worst = {}
    for count in (3, 6, 9, 12):
        errors = []
        for seed in range(seeds):
            rng = np.random.default_rng([count, seed])
            x = columns(30, count, 0.7, rng)
            beta = rng.normal(0, 0.5, count) * (rng.random(count) < 0.4)
            y = x @ beta + NOISE * rng.standard_normal(30)
            found = reduced(x, y, 0.8, expected=count / 2).inclusion_prob["z"]
            errors.append(float(np.abs(found - enumerated(x, y, 0.8)).max()))
        worst[str(count)] = max(errors)
    return worst


def discoveries(seeds: int) -> dict[str, float]:
    """Return the false discovery rate at nominal 0.1 and the power."""
    false, power, selected_in_all = [], [], 0
    for seed in range(seeds):
        rng = np.random.default_rng([7, seed])
        x = columns(100, 20, 0.5, rng)
        is_true = rng.random(20) < 0.2
        y = x @ (rng.normal(0, 0.5, 20) * is_true) + NOISE * rng.standard_normal(100)
        prob = reduced(x, y, 0.5, expected=4, seed=seed).inclusion_prob["z"]
        order = np.argsort(-prob)
        share = np.cumsum(1 - prob[order]) / np.arange(1, 21)
        selected = order[: int(np.sum(share <= 0.1))]
        selected_in_all += len(selected)
        false.append(float(np.mean(~is_true[selected])) if len(selected) else 0.0)
        if is_true.any():
            power.append(float(np.mean(np.isin(np.flatnonzero(is_true), selected))))
    return {
        "nominal": 0.1,
        "rate": float(np.mean(false)),
        "standard_error": float(np.std(false) / np.sqrt(len(false))),
        "power": float(np.mean(power)),
        "selected": selected_in_all,
    }


def speed(count: int, draws: int) -> dict[str, float]:
    """Return the CPU seconds of a reduction of draws, without a program."""
    import bmrjax as bmr

    rng = np.random.default_rng(count)
    x = columns(4 * count, count, 0.5, rng)
    beta = np.zeros(count)
    beta[:: max(count // 10, 1)] = 1.0
    loc, covariance = posterior(x, x @ beta + rng.standard_normal(len(x)), 1.0)
    given = {"beta": rng.multivariate_normal(loc, covariance, draws)}
    start, wall = time.process_time(), time.perf_counter()
    prior = {"beta": bmr.reduction.Normal(0.0, 1.0)}  # type: ignore[arg-type]
    found = bmr.reduce_fit(given, prior=prior)
    facts = {"cpu_seconds": time.process_time() - start, "seconds": time.perf_counter() - wall}
    wrong = int((found.chosen["beta"] != (beta != 0)).sum())
    return {"coefficients": count, "draws": draws, "wrongly_chosen": wrong, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "trust")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    record = {
        "accuracy": accuracy(options.seeds),
        "discoveries": discoveries(options.simulations),
        "speed": [speed(50, 4000), speed(500, 20_000)],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "finished_fits.json").write_text(json.dumps(record, indent=1) + "\n")
    found = record["discoveries"]
    lines = ["# Selection by `reduce_fit`", "", "| what | figure |", "|---|---|"]
    for count, error in record["accuracy"].items():
        lines.append(f"| largest error of a probability, {count} candidates | {error:.1e} |")
    lines.append(
        f"| false discovery rate at nominal 0.1 | {found['rate']:.3f} ± {found['standard_error']:.3f} |"
    )
    lines.append(f"| true effects found | {found['power']:.2f} |")
    for own in record["speed"]:
        lines.append(
            f"| {own['coefficients']} coefficients from {own['draws']:,} draws | "
            f"{own['cpu_seconds']:.1f} CPU s, {own['wrongly_chosen']} wrongly chosen |"
        )
    text = "\n".join(lines) + "\n"
    (options.out / "finished_fits.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

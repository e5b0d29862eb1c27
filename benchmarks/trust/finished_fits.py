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
3. Speed: 50 coefficients from 4,000 draws, twice since the first call imports and compiles, and 500 from
   4,000 and 20,000, in CPU seconds of one process; then with the program, where the noise scale is latent,
   from exact draws of its posterior, a first and a second call.

``--parts`` measures some of these again and keeps the others; without a name it writes the table only.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.rows import environment

NOISE = 1.0
PARTS = ("accuracy", "speed", "programs", "default prior", "prior that was drawn from")
# Coefficients, rows and draws of programs with a noise scale.
PROGRAMS = [(50, 200, 4000), (50, 40, 4000), (100, 50, 4000), (500, 1000, 4000), (500, 200, 4000)]


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


def discoveries(seeds: int, expected: float | None) -> dict[str, float | None]:
    """Return the false discovery rate at nominal 0.1 and the power."""
    false, claimed, power, selected_in_all = [], [], [], 0
    for seed in range(seeds):
        rng = np.random.default_rng([7, seed])
        x = columns(100, 20, 0.5, rng)
        is_true = rng.random(20) < 0.2
        y = x @ (rng.normal(0, 0.5, 20) * is_true) + NOISE * rng.standard_normal(100)
        prob = reduced(x, y, 0.5, expected=expected, seed=seed).inclusion_prob["z"]
        order = np.argsort(-prob)
        share = np.cumsum(1 - prob[order]) / np.arange(1, 21)
        count = int(np.sum(share <= 0.1))
        selected = order[:count]
        selected_in_all += count
        false.append(float(np.mean(~is_true[selected])) if count else 0.0)
        claimed.append(float(share[count - 1]) if count else 0.0)
        if is_true.any():
            power.append(float(np.mean(np.isin(np.flatnonzero(is_true), selected))))
    return {
        "nominal": 0.1,
        "simulations": seeds,
        "expected": expected,
        "rate": float(np.mean(false)),
        "standard_error": float(np.std(false) / np.sqrt(len(false))),
        "claimed": float(np.mean(claimed)),
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


def exact_draws(
    x: np.ndarray, y: np.ndarray, draws: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw from the posterior of N(0, 1) coefficients and HalfNormal(1) noise, noise first, on a grid."""
    log_noise = np.linspace(np.log(0.02), np.log(4.0), 400)
    left, singular, right = np.linalg.svd(x, full_matrices=True)
    along = (left.T @ y) ** 2
    values = np.concatenate([singular**2, np.zeros(len(y) - len(singular))])
    total = values + np.exp(2 * log_noise)[:, None]
    log_density = -0.5 * (np.log(total) + along / total).sum(1)
    log_density += log_noise - 0.5 * np.exp(2 * log_noise)
    weight = np.exp(log_density - log_density.max())
    chosen = rng.choice(len(log_noise), draws, p=weight / weight.sum())
    noise = np.exp(log_noise[chosen] + (log_noise[1] - log_noise[0]) * (rng.random(draws) - 0.5))
    own = np.zeros(x.shape[1])
    own[: len(singular)] = singular
    variance = 1 / (1 + own**2 / noise[:, None] ** 2)
    score = np.zeros(x.shape[1])
    score[: len(singular)] = singular * (left.T @ y)[: len(singular)]
    rotated = variance * score / noise[:, None] ** 2
    rotated += np.sqrt(variance) * rng.standard_normal((draws, x.shape[1]))
    return {"beta": rotated @ right, "noise": noise}


def speed_of_program(count: int, rows: int, draws: int) -> dict[str, Any]:
    """Return the CPU seconds of a reduction of draws of a program, by call.

    With fewer rows than coefficients each submodel is integrated over its own noise scale.
    """
    import numpyro
    import numpyro.distributions as dist

    import bmrjax as bmr

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([count]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    rng = np.random.default_rng([count, rows])
    x = columns(rows, count, 0.5, rng)
    beta = np.zeros(count)
    beta[:: count // 5] = 2.0
    y = x @ beta + rng.standard_normal(rows)
    given = exact_draws(x, y, draws, rng)
    data = (x.astype(np.float32), y.astype(np.float32))
    seconds, wall, found = [], [], None
    for _ in range(2):
        start, clock = time.process_time(), time.perf_counter()
        found = bmr.reduce_fit(given, model=model, data=data)
        seconds.append(time.process_time() - start)
        wall.append(time.perf_counter() - clock)
    assert found is not None
    return {
        "coefficients": count,
        "rows": rows,
        "draws": draws,
        "integrated": len(found._nodes) > 1,
        "wrongly_chosen": int((found.chosen["beta"] != (beta != 0)).sum()),
        "first_cpu_seconds": seconds[0],
        "cpu_seconds": seconds[1],
        "first_seconds": wall[0],
        "seconds": wall[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "trust")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "finished_fits.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    for part in options.parts:
        record[part] = {
            "accuracy": lambda: accuracy(options.seeds),
            "default prior": lambda: discoveries(options.simulations, None),
            "prior that was drawn from": lambda: discoveries(options.simulations, 4),
            "speed": lambda: [
                speed(50, 4000),
                speed(50, 4000),
                speed(500, 4000),
                speed(500, 20_000),
            ],
            "programs": lambda: [speed_of_program(*what) for what in PROGRAMS],
        }[part]()
        record.setdefault("environments", {})[part] = environment()
        path.write_text(json.dumps(record, indent=1) + "\n")
    lines = ["# Selection by `reduce_fit`", "", "| what | figure |", "|---|---|"]
    for count, error in record["accuracy"].items():
        lines.append(f"| largest error of a probability, {count} candidates | {error:.1e} |")
    for which in ("default prior", "prior that was drawn from"):
        found = record[which]
        lines += [
            f"| false discovery rate at nominal 0.1, {which}, {found['simulations']} simulations | "
            f"{found['rate']:.3f} ± {found['standard_error']:.3f} (expected {found['claimed']:.3f}) |",
            f"| true effects found, {which} | {found['power']:.2f} |",
        ]
    for own in record["speed"]:
        lines.append(
            f"| {own['coefficients']} coefficients from {own['draws']:,} draws | "
            f"{own['cpu_seconds']:.1f} CPU s, {own['wrongly_chosen']} wrongly chosen |"
        )
    for own in record["programs"]:
        how = "each submodel over its own noise scale" if own["integrated"] else "one joint normal"
        lines.append(
            f"| program, {own['coefficients']} coefficients, {own['rows']} rows, {own['draws']:,} draws, "
            f"{how} | "
            f"{own['cpu_seconds']:.1f} CPU s ({own['first_cpu_seconds']:.1f} with compilation), "
            f"{own['wrongly_chosen']} wrongly chosen |"
        )
    text = "\n".join(lines) + "\n"
    (options.out / "finished_fits.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

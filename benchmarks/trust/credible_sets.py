"""Credible sets of collinear columns: how often the sets of `reduce_fit` hold a true effect.

Each data set has 12 columns in six pairs, the two columns of a pair correlated at 0.95 or exact copies, and
three effects in different pairs, drawn from the prior. The posterior of a linear model is exact; that of a
logistic one is Laplace's approximation. A set covers if one of its members is a column with an effect: of two
copies, only the one that carries it in the simulation counts.

    python -m benchmarks.trust.credible_sets --sets 200
"""

import json
import math
import warnings

import numpy as np

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import environment
from bmrjax.files import write_atomically

COLUMNS, PAIRS, EFFECTS = 12, 6, 3
NOISE, PRIOR = 1.0, 1.0
CORRELATIONS = {"0.95": 0.95, "copies": 1.0}
ROWS = {"linear": 100, "logistic": 300}


def simulate(kind: str, correlation: float, rng: np.random.Generator):
    """Return columns, targets and which columns have an effect."""
    rows = ROWS[kind]
    first = rng.normal(size=(rows, PAIRS))
    second = correlation * first + math.sqrt(1 - correlation**2) * rng.normal(size=(rows, PAIRS))
    x = np.stack([first, second], 2).reshape(rows, COLUMNS)
    effect = np.zeros(COLUMNS)
    pairs = rng.choice(PAIRS, EFFECTS, replace=False)
    effect[2 * pairs + rng.integers(0, 2, EFFECTS)] = PRIOR * rng.normal(size=EFFECTS)
    linear = x @ effect
    if kind == "linear":
        return x, linear + NOISE * rng.normal(size=rows), effect != 0
    return x, (rng.random(rows) < 1 / (1 + np.exp(-linear))).astype(float), effect != 0


def posterior(kind: str, x: np.ndarray, y: np.ndarray):
    """Return mean and covariance: exact, or by Laplace's approximation."""
    prior = np.eye(COLUMNS) / PRIOR**2
    if kind == "linear":
        covariance = np.linalg.inv(x.T @ x / NOISE**2 + prior)
        return covariance @ x.T @ y / NOISE**2, covariance
    at = np.zeros(COLUMNS)
    for _ in range(50):
        prob = 1 / (1 + np.exp(-x @ at))
        precision = (x * (prob * (1 - prob))[:, None]).T @ x + prior
        step = np.linalg.solve(precision, x.T @ (y - prob) - at / PRIOR**2)
        at = at + step
        if np.abs(step).max() < 1e-10:
            break
    return at, np.linalg.inv(precision)


def one(
    kind: str, correlation: float, seed: int, coverage: float
) -> tuple[list[dict], dict[str, int]]:
    """Return what the sets of one data set are."""
    rng = np.random.default_rng(seed)
    x, y, true = simulate(kind, correlation, rng)
    loc, covariance = posterior(kind, x, y)
    found = bmr.reduce_fit(
        loc=loc,
        covariance=covariance,
        prior=bmr.reduction.Normal(0.0, PRIOR),
        names=[str(i) for i in range(COLUMNS)],
        expected=EFFECTS,
        seed=seed,
    )
    rows = []
    for members in found.credible_sets(coverage):
        at = [int(name) for name in members.names]
        rows.append({"size": len(at), "prob": members.prob, "covers": bool(true[at].any())})
    # What a choice without sets would say: the columns of the most probable submodel.
    chosen = np.flatnonzero(found.chosen["z"])
    held = {int(name) for members in found.credible_sets(coverage) for name in members.names}
    return rows, {
        "chosen": len(chosen),
        "chosen_true": int(true[chosen].sum()),
        "effects_in_sets": int(sum(true[i] for i in held)),
    }


def summarise(kind: str, name: str, count: int, coverage: float) -> dict:
    """Return coverage, power and size over the data sets of one kind."""
    sets, choices = [], []
    for seed in range(count):
        rows, choice = one(kind, CORRELATIONS[name], 1000 + seed, coverage)
        sets += rows
        choices.append(choice)
    covered = np.array([row["covers"] for row in sets])
    chosen = sum(choice["chosen"] for choice in choices)
    return {
        "likelihood": kind,
        "correlation": name,
        "nominal": coverage,
        "data_sets": count,
        "sets": len(sets),
        "coverage": float(covered.mean()),
        "standard_error": float(covered.std() / math.sqrt(len(covered))),
        "mean_claimed": float(np.mean([row["prob"] for row in sets])),
        "mean_size": float(np.mean([row["size"] for row in sets])),
        "sets_of_one": float(np.mean([row["size"] == 1 for row in sets])),
        "power": sum(c["effects_in_sets"] for c in choices) / (EFFECTS * count),
        "precision_of_chosen_columns": sum(c["chosen_true"] for c in choices) / max(chosen, 1),
    }


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False)
    parser.add_argument("--sets", type=int, default=200, help="data sets of each kind")
    args = options.parse(parser)
    warnings.simplefilter("error", bmr.FitWarning)
    found = []
    for kind in ROWS:
        for name in CORRELATIONS:
            for coverage in (0.9, 0.95):
                found.append(summarise(kind, name, args.sets, coverage))
                print(json.dumps(found[-1]), flush=True)
    seeds = f"1000 to {1000 + args.sets - 1}"
    whole = {**environment(), "seeds": seeds, "rows": ROWS, "studies": found}
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "credible_sets.json", json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""How many effects does `reduce_fit` expect where columns are correlated, and what of it is the prior's?

    python -m benchmarks.trust.number_of_effects

Data sets of `selection` with 100 columns, 50 rows and five effects, on development seeds (from 1000 on), with
exact draws of the full model's posterior. `reduce_fit` runs with its default prior, by which every number
of effects from none to half of the columns is as probable before the data, and with ``expected=5``, which is
what was simulated. Reported, beside scikit-learn's `LassoCV`: the sum of the inclusion probabilities, how
many columns are selected (with a probability above one half, or not zero), F1, the share of the selected ones
that is a true column or its neighbour, and the mean squared error of predictions of new rows without their
noise, by the averaged mean.
"""

import time
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LassoCV

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, group, means, table
from benchmarks.trust.finished_fits import exact_draws
from benchmarks.trust.selection import SIZES, make, regression, score

COLUMNS, ROWS, DRAWS, FIRST = 100, 50, 4000, 1000
CORRELATIONS = (0.0, 0.95)
PRIORS = {"default": None, "expected=5": len(SIZES)}
DIGITS = {"effects": 1, "kept": 1, "f1": 2, "near": 2, "error": 2}


def judge(
    kept: np.ndarray, loc: np.ndarray, beta: np.ndarray, correlation: float
) -> dict[str, float]:
    """Return how good a selection and the predictions of a mean are."""
    near = np.convolve(beta != 0, np.ones(3), mode="same") > 0
    at = np.arange(len(beta))
    covariance = correlation ** np.abs(at[:, None] - at)
    off = loc - beta
    return {
        **score(kept, beta),
        "near": float(near[kept].mean()) if kept.any() else 1.0,
        "error": float(off @ covariance @ off),
    }


def study(correlation: float, seed: int) -> list[dict[str, Any]]:
    """Return a row per method."""
    x, y, beta = make(COLUMNS, "linear", ROWS, correlation, seed)
    wide = x.astype(np.float64), y.astype(np.float64)
    given = exact_draws(*wide, DRAWS, np.random.default_rng(seed))
    what = {"correlation": correlation, "seed": seed}
    rows = []
    for name, expected in PRIORS.items():
        start = time.process_time()
        found = bmr.reduce_fit(
            given, model=regression(COLUMNS, "linear"), data=(x, y), expected=expected
        )
        prob = found.inclusion_prob["beta"]
        rows.append(
            {
                **what,
                "method": f"reduce_fit, {name}",
                "effects": float(prob.sum()),
                **judge(found.median["beta"], found.mean["beta"], beta, correlation),
                "cpu_seconds": time.process_time() - start,
            }
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loc = LassoCV(cv=5, random_state=0).fit(x, y).coef_
    return [*rows, {**what, "method": "LassoCV", **judge(loc != 0, loc, beta, correlation)}]


def write_table(rows: Rows) -> None:
    """Write ``number_of_effects.md``."""
    lines = [
        [f"{correlation:g}", method, str(len(some)), *means(some, **DIGITS)]
        for (correlation, method), some in group(rows.rows, "correlation method").items()
    ]
    header = "correlation | by | data sets | effects expected | selected | F1"
    text = table(header + " | selected ones at or beside an effect | error of predictions", lines)
    text += (
        f"\n{COLUMNS} columns, {ROWS} rows, five effects, development seeds from {FIRST} on. Mean and "
        "standard error over data sets. The noise has a variance of one.\n"
    )
    rows.write_table(text, "number_of_effects.md")


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "trust", seeds=6, data=False, report=True)
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "number_of_effects.json", shared=True)
    for seed in () if args.report else range(FIRST, FIRST + args.seeds):
        for correlation in CORRELATIONS:
            if not rows.has(correlation=correlation, seed=seed):
                for row in study(correlation, seed):
                    rows.add(row)
                    print(row, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

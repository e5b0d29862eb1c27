"""Three rules for credible sets at 90 %, on the linear data sets of `credible_sets`: which can cover in 90 %?

Whole sets are those of `reduce_fit`: as few members as reach 90 %. Nearest sets lose their last member
where the probability without it is nearer to 90 %. Randomised sets lose it at random, so often that the
probability is 90 % on average; a set of one is then empty at times, and has no effect in it.

    python -m benchmarks.trust.set_rules --sets 100
"""

import warnings
from typing import Any

import numpy as np

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, table
from benchmarks.trust.credible_sets import (
    COLUMNS,
    CORRELATIONS,
    EFFECTS,
    PRIOR,
    posterior,
    simulate,
)

LEVEL = 0.9


def compare(name: str, count: int) -> dict[str, Any]:
    """Return coverage by each rule, over the data sets of one correlation."""
    coin, sets = np.random.default_rng(0), []
    for seed in range(count):
        rng = np.random.default_rng(1000 + seed)
        x, y, true = simulate("linear", CORRELATIONS[name], rng)
        loc, covariance = posterior("linear", x, y)
        found = bmr.reduce_fit(
            loc=loc,
            covariance=covariance,
            prior=bmr.reduction.Normal(0.0, PRIOR),  # type: ignore[arg-type]
            names=[str(i) for i in range(COLUMNS)],
            expected=EFFECTS,
            seed=seed,
        )
        weight, submodels = found._terms()
        for one in found.credible_sets(LEVEL):
            members = [int(member) for member in one.names]
            fewer = members[:-1]
            less = float(weight @ submodels[:, fewer].any(1))
            is_nearer = bool(fewer) and LEVEL - less < one.prob - LEVEL
            is_kept = coin.random() < (LEVEL - less) / (one.prob - less)
            sets.append(
                {
                    "claimed": one.prob,
                    "one": len(members) == 1,
                    "whole": bool(true[members].any()),
                    "nearest": bool(true[fewer if is_nearer else members].any()),
                    "nearest_claimed": less if is_nearer else one.prob,
                    "randomised": bool(true[members if is_kept else fewer].any()),
                }
            )

    def mean(key: str) -> float:
        return float(np.mean([one[key] for one in sets]))

    certain = [one["one"] and one["claimed"] > 0.95 for one in sets]
    return {
        "correlation": name,
        "data_sets": count,
        "sets": len(sets),
        "whole": mean("whole"),
        "claimed": mean("claimed"),
        "nearest": mean("nearest"),
        "nearest_claimed": mean("nearest_claimed"),
        "randomised": mean("randomised"),
        "one_member_above_95": float(np.mean(certain)),
    }


def write_table(rows: Rows) -> None:
    """Write ``set_rules.md``."""
    keys = ("whole", "claimed", "nearest", "nearest_claimed", "randomised", "one_member_above_95")
    lines = [
        [row["correlation"], f"{row['sets']}", *(f"{row[key]:.3f}" for key in keys)]
        for row in rows.rows
    ]
    header = (
        "correlation in a pair | sets | whole: coverage | claimed | nearest: coverage | claimed"
    )
    text = table(header + " | randomised: coverage | sets of one above 0.95", lines)
    text += (
        "\nAt nominal 0.9. A set of one member with a probability above 0.95 cannot cover less without being "
        "empty at times.\n"
    )
    rows.write_table(text, "set_rules.md")


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False, report=True)
    parser.add_argument("--sets", type=int, default=100, help="data sets of each kind")
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "set_rules.json", shared=True)
    for name in () if args.report else CORRELATIONS:
        if not rows.has(correlation=name):
            rows.add(compare(name, args.sets))
            print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

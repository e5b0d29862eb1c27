"""Credible sets at 90 % that have many members: how much above 90 % do they cover, and could they be smaller?

Sets of one certain column cover in nearly all cases whatever the level, so a level can show in large sets
only. Each data set has 12 columns in two blocks of six, neighbours correlated at 0.95, 100 rows, noise of
standard deviation one, and an effect in each block, drawn from its prior, N(0, 0.4²); two effects are
expected. All 4,096 submodels are computed, with the exact posterior. Reported by the size of the sets: the
share that has an effect in it, the probability that they claim, and how many could be smaller: whether any
smaller selection out of the same block would reach 90 %. SuSiE, by sushie, on the same data sets, with two
effects and otherwise as in `susie_sets`.

    python -m benchmarks.trust.fine_sets --sets 400 --peer-python PYTHON

PYTHON is an interpreter with `pip install sushie`; without, only `reduce_fit` is run.
"""

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, table
from benchmarks.trust.susie_sets import sets_of_peer

COLUMNS, BLOCK, ROWS, CORRELATION, PRIOR, EFFECTS = 12, 6, 100, 0.95, 0.4, 2
LEVEL = 0.9
SIZES = {"1": (1, 1), "2": (2, 2), "3 and more": (3, BLOCK), "all": (1, COLUMNS)}


def simulate(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return columns, target and which columns have an effect."""
    rng = np.random.default_rng([11, seed])
    x = rng.standard_normal((ROWS, COLUMNS))
    for column in range(COLUMNS):
        if column % BLOCK:
            fresh = math.sqrt(1 - CORRELATION**2) * x[:, column]
            x[:, column] = CORRELATION * x[:, column - 1] + fresh
    effect = np.zeros(COLUMNS)
    effect[rng.integers(0, BLOCK, 2) + [0, BLOCK]] = PRIOR * rng.standard_normal(2)
    return x, x @ effect + rng.standard_normal(ROWS), effect != 0


def own_sets(x: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    """Return members and claimed probability of the sets of `reduce_fit`, and the fewest that would do."""
    covariance = np.linalg.inv(x.T @ x + np.eye(COLUMNS) / PRIOR**2)
    found = bmr.reduce_fit(
        loc=covariance @ x.T @ y,
        covariance=covariance,
        prior=bmr.reduction.Normal(0.0, PRIOR),  # type: ignore[arg-type]
        names=[str(i) for i in range(COLUMNS)],
        expected=EFFECTS,
    )
    weight, submodels = found._terms()
    sets = []
    for one in found.credible_sets(LEVEL):
        members = [int(name) for name in one.names]
        block = range(members[0] // BLOCK * BLOCK, members[0] // BLOCK * BLOCK + BLOCK)
        fewest = next(
            size
            for size in range(1, len(members) + 1)
            if size == len(members)
            or any(
                weight @ submodels[:, list(some)].any(1) >= LEVEL
                for some in itertools.combinations(block, size)
            )
        )
        sets.append({"members": members, "claimed": one.prob, "fewest": fewest})
    return sets


def rows_of(method: str, count: int, by_data: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return coverage by size, over all data sets."""
    sets = []
    for seed, found in enumerate(by_data):
        true = simulate(seed)[2]
        sets += [one | {"covers": bool(true[one["members"]].any())} for one in found]
    rows = []
    for name, (least, most) in SIZES.items():
        some = [one for one in sets if least <= len(one["members"]) <= most]
        covers = np.array([one["covers"] for one in some])
        row = {"method": method, "size": name, "data_sets": count, "sets": len(some)}
        if some:
            row |= {
                "coverage": float(covers.mean()),
                "standard_error": float(covers.std() / math.sqrt(len(some))),
                "claimed": float(np.mean([one["claimed"] for one in some])),
                "members": float(np.mean([len(one["members"]) for one in some])),
            }
            if "fewest" in some[0]:
                smaller = [one["fewest"] < len(one["members"]) for one in some]
                row["could_be_smaller"] = float(np.mean(smaller))
        rows.append(row)
    return rows


def write_table(rows: Rows) -> None:
    """Write ``fine_sets.md``."""
    lines = []
    for row in rows.rows:
        if not row["sets"]:
            continue
        smaller = f"{row['could_be_smaller']:.3f}" if "could_be_smaller" in row else "–"
        lines.append(
            [
                row["method"],
                row["size"],
                f"{row['sets']}",
                f"{row['coverage']:.3f} ± {row['standard_error']:.3f}",
                f"{row['claimed']:.3f}",
                f"{row['members']:.2f}",
                smaller,
            ]
        )
    header = "by | members | sets | coverage | claimed, on average | members, on average"
    text = table(header + " | could be smaller", lines)
    if rows.rows:
        text += f"\nAt nominal {LEVEL}, {rows.rows[0]['data_sets']} data sets.\n"
    rows.write_table(text, "fine_sets.md")


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False, report=True)
    parser.add_argument("--sets", type=int, default=400, help="data sets")
    parser.add_argument("--peer-python", type=Path, help="interpreter that has sushie")
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "fine_sets.json", shared=True)
    data = [] if args.report else [simulate(seed) for seed in range(args.sets)]
    if data and not rows.has(method="reduce_fit"):
        for row in rows_of("reduce_fit", args.sets, [own_sets(x, y) for x, y, _ in data]):
            rows.add(row)
            print(row, flush=True)
    if data and args.peer_python and not rows.has(method="SuSiE"):
        by_data = sets_of_peer(
            args.peer_python, [x for x, _, _ in data], [y for _, y, _ in data], EFFECTS
        )
        named = [
            [{"members": members, "claimed": claimed} for members, claimed in found[str(LEVEL)]]
            for found in by_data
        ]
        for row in rows_of("SuSiE", args.sets, named):
            rows.add(row)
            print(row, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

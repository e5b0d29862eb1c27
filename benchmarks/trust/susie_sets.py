"""Credible sets of SuSiE, by sushie, on the linear data sets of `credible_sets`.

    python -m benchmarks.trust.susie_sets --peer-python PYTHON --sets 200

PYTHON is an interpreter with `pip install sushie`. SuSiE has three effects, as the simulation has, and its
defaults otherwise: variances by EM, and no sets with members that are correlated by less than 0.5. A set
covers if one of its members is a column with an effect: of two copies, only the one that carries it in the
simulation.
"""

import json
import math
import subprocess
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import options
from benchmarks.common.rows import Rows, table
from benchmarks.trust.credible_sets import CORRELATIONS, EFFECTS, simulate

LEVELS = (0.9, 0.95)


def sets_of_peer(python: Path, x: list, y: list, effects: int) -> list[dict[str, list]]:
    """Return the members and claimed probabilities of the sets, by data set and level."""
    worker = find_spec("benchmarks.trust.susie_worker")
    assert worker is not None
    assert worker.origin is not None
    with TemporaryDirectory() as folder:
        data, sets = Path(folder) / "data.npz", Path(folder) / "sets.json"
        np.savez(data, x=np.stack(x), y=np.stack(y), levels=np.array(LEVELS), effects=effects)
        subprocess.run([str(python), worker.origin, str(data), str(sets)], check=True)
        return json.loads(sets.read_text())


def summarise(name: str, count: int, python: Path) -> list[dict[str, Any]]:
    """Return coverage, power and size at each level, over the data sets of one correlation."""
    made = [
        simulate("linear", CORRELATIONS[name], np.random.default_rng(1000 + seed))
        for seed in range(count)
    ]
    x, y, true = (list(part) for part in zip(*made, strict=True))
    found = sets_of_peer(python, x, y, EFFECTS)
    rows = []
    for level in LEVELS:
        sets = [(own, t) for by, t in zip(found, true, strict=True) for own in by[str(level)]]
        covers = np.array([bool(t[members].any()) for (members, _), t in sets])
        held = sum(
            int(t[sorted({i for members, _ in by[str(level)] for i in members})].sum())
            for by, t in zip(found, true, strict=True)
        )
        rows.append(
            {
                "method": "SuSiE",
                "correlation": name,
                "nominal": level,
                "data_sets": count,
                "sets": len(sets),
                "coverage": float(covers.mean()),
                "standard_error": float(covers.std() / math.sqrt(len(covers))),
                "mean_claimed": float(np.mean([claimed for (_, claimed), _ in sets])),
                "mean_size": float(np.mean([len(members) for (members, _), _ in sets])),
                "sets_of_one": float(np.mean([len(members) == 1 for (members, _), _ in sets])),
                "power": held / (EFFECTS * count),
            }
        )
    return rows


def write_table(rows: Rows) -> None:
    """Write ``susie_sets.md``, with the committed rows of `reduce_fit` on the same data sets."""
    ours = json.loads((options.RESULTS / "trust" / "credible_sets.json").read_text())["studies"]
    both = [row | {"method": "reduce_fit"} for row in ours if row["likelihood"] == "linear"]
    lines = [
        [
            row["method"],
            row["correlation"],
            f"{row['nominal']}",
            f"{row['sets']}",
            f"{row['coverage']:.3f} ± {row['standard_error']:.3f}",
            f"{row['mean_claimed']:.3f}",
            f"{row['mean_size']:.2f}",
            f"{row['sets_of_one']:.2f}",
            f"{row['power']:.2f}",
        ]
        for row in [*both, *rows.rows]
    ]
    header = "by | correlation in a pair | nominal | sets | coverage | claimed, on average | size"
    text = table(header + " | sets of one | effects in sets", lines)
    rows.write_table(text, "susie_sets.md")


def main() -> None:
    """Run the comparison and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False, report=True)
    parser.add_argument("--sets", type=int, default=200, help="data sets of each kind")
    parser.add_argument("--peer-python", type=Path, help="interpreter that has sushie")
    args = options.parse(parser)
    rows = Rows(args.out, "susie_sets.json", shared=True)
    for name in () if args.report else CORRELATIONS:
        if not rows.has(correlation=name):
            for row in summarise(name, args.sets, args.peer_python):
                rows.add(row)
                print(row, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

"""From how many rows per column is one joint normal of the draws enough for `reduce_fit`?

    python -m benchmarks.trust.rows_per_element

Linear regressions of 20 columns with 50 to 600 rows, made as in `selection`, on seeds from 1000 on, which
its table does not use; neighbouring columns are correlated by 0, 0.7, 0.95, 0.7 and 0.95 on the five data
sets of a size. `reduce_fit` receives 2,000 draws of NUTS and integrates each submodel over its own noise
scale (``refit=True``), or not (``refit=False``). Reported: the largest difference of an inclusion
probability from enumeration of all 1,048,576 submodels with the noise integrated, over the data sets and as
their mean. A stopped run goes on where it was.
"""

import warnings
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, group, table
from benchmarks.trust.enumeration import enumerate_linear
from benchmarks.trust.selection import make, regression

COLUMNS, ROWS, FIRST = 20, (50, 200, 400, 600), 1000
CORRELATIONS = (0.0, 0.7, 0.95, 0.7, 0.95)


def study(rows: int, correlation: float, seed: int) -> dict[str, Any]:
    """Return the errors of both ways on one data set."""
    x, y, _ = make(COLUMNS, "linear", rows, correlation, seed)
    exact = enumerate_linear(x, y)[0]
    program = regression(COLUMNS, "linear")
    mcmc = MCMC(NUTS(program), num_warmup=500, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(seed), x, y)
    found = {refit: bmr.reduce_fit(mcmc, data=(x, y), refit=refit) for refit in (False, True)}
    error = {k: float(np.abs(f.inclusion_prob["beta"] - exact).max()) for k, f in found.items()}
    return {
        "rows": rows,
        "correlation": correlation,
        "seed": seed,
        "joint_normal": error[False],
        "own_noise": error[True],
        "pareto_k": found[False].pareto_k,
    }


def write_table(rows: Rows) -> None:
    """Write ``rows_per_element.md``."""
    lines = []
    for count, found in group(rows.rows, "rows").items():
        cells = []
        for way in ("joint_normal", "own_noise"):
            errors = [row[way] for row in found]
            cells.append(f"{max(errors):.3f} ({np.mean(errors):.3f})")
        lines.append([f"{count}", f"{count / COLUMNS:g}", f"{len(found)}", *cells])
    header = (
        "rows | rows per column | sets | one joint normal | each submodel over its own noise scale"
    )
    text = "Largest error of an inclusion probability; in brackets the mean over the data sets.\n\n"
    rows.write_table(text + table(header, lines), "rows_per_element.md")


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False, report=True)
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "rows_per_element.json", shared=True)
    for count in () if args.report else ROWS:
        for number, correlation in enumerate(CORRELATIONS):
            if not rows.has(rows=count, seed=FIRST + number):
                rows.add(study(count, correlation, FIRST + number))
                print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

"""Which variables do `sparsify` and `reduce_fit` select when nothing is set, and which does the lasso select?

    python benchmarks/trust/selection.py

Designs: rows of a stationary AR(1) process over the columns, of unit variance and correlation `rho`
between neighbours. Five columns matter; which ones is drawn, and so are the signs of their coefficients,
whose magnitudes are those of the README's regression (0.8 to 2.5). Linear targets have noise of standard
deviation 1, logistic ones are Bernoulli. Every method sees the same data sets, five per cell (seeds 0 to 4).
Settings were chosen on other seeds, from 1000 on (``--offset 1000``).

Methods: `sparsify` with nothing but a key; the same with ``criteria.Shrinkage()``; the same with
``guide=AutoMeanField(program)``; `reduce_fit` on 2,000 draws of NUTS, after 500 of warm-up, of which
elements with an inclusion probability above one half count; `LassoCV`, or `LogisticRegressionCV` with an L1
penalty, of scikit-learn, of which the non-zero coefficients count. The program is the README's: N(0, 1) on
the coefficients and HalfNormal(1) on the noise.

The README's own regression (100 coefficients, 200 rows, five of them true) is repeated on twenty data sets.
A stopped run goes on where it was.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import records

SIZES, NOISE = (1.5, 2.0, 0.8, 1.0, 2.5), 1.0
CELLS = [(20, "linear", 50), (20, "linear", 200), (20, "logistic", 200)]
CELLS += [(100, "linear", 50), (100, "linear", 200)]
CORRELATIONS = (0.0, 0.7, 0.95)
README = {3: 1.5, 17: -2.0, 42: 0.8, 60: -1.0, 99: 2.5}
LASSO = "lasso"
NUTS = "NUTS, reduce_fit"
METHODS = ("default", "Shrinkage", "AutoMeanField", NUTS, LASSO)


def make(columns: int, kind: str, rows: int, correlation: float, seed: int) -> tuple[Any, Any, Any]:
    """Return inputs, targets and true coefficients of a data set."""
    import numpy as np

    cell = [columns, rows, kind == "logistic", round(100 * correlation), seed]
    rng = np.random.default_rng([int(number) for number in cell])
    x = rng.standard_normal((rows, columns))
    for column in range(1, columns):
        fresh = np.sqrt(1 - correlation**2) * x[:, column]
        x[:, column] = correlation * x[:, column - 1] + fresh
    beta = np.zeros(columns)
    where = rng.choice(columns, len(SIZES), replace=False)
    beta[where] = np.asarray(SIZES) * rng.choice([-1.0, 1.0], len(SIZES))
    if kind == "logistic":
        y = (rng.random(rows) < 1 / (1 + np.exp(-x @ beta))).astype(np.int32)
    else:
        y = (x @ beta + NOISE * rng.standard_normal(rows)).astype(np.float32)
    return x.astype(np.float32), y, beta


def make_readme(seed: int) -> tuple[Any, Any, Any]:
    """Return a data set of the README's regression; seed 0 is the README's own."""
    import jax
    import numpy as np

    x = jax.random.normal(jax.random.key(2 * seed), (200, 100))
    beta = np.zeros(100)
    beta[list(README)] = list(README.values())
    noise = jax.random.normal(jax.random.key(2 * seed + 1), (200,))
    y = np.asarray(x) @ beta.astype(np.float32) + 0.5 * np.asarray(noise)
    return np.asarray(x), y, beta


def regression(columns: int, kind: str) -> Callable:
    """Return the program of a regression."""
    import numpyro
    import numpyro.distributions as dist

    def linear(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([columns]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    def logistic(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([columns]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return logistic if kind == "logistic" else linear


def select(method: str, kind: str, x: Any, y: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return what a method selects, and facts about the fit."""
    import jax
    import numpy as np

    import bmrjax as bmr

    if method == LASSO:
        return select_by_lasso(kind, x, y), {}
    program = regression(x.shape[1], kind)
    if method == NUTS:
        return select_after_nuts(program, x, y, seed)
    options: dict[str, Any] = {
        "default": {},
        "Shrinkage": {"criterion": bmr.criteria.Shrinkage()},
        "AutoMeanField": {"guide": bmr.infer.AutoMeanField(program)},
    }[method]
    result = bmr.sparsify(program, (x, y), key=jax.random.key(seed), progress=False, **options)
    facts = {"vfe": result.vfe, "epochs": len(result.history)}
    return np.asarray(result.keep["beta"]), facts


def select_after_nuts(program: Callable, x: Any, y: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the elements that are more probably in than out, from draws of the whole program."""
    import jax
    from numpyro.infer import MCMC, NUTS

    import bmrjax as bmr

    mcmc = MCMC(NUTS(program), num_warmup=500, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(seed), x, y)
    jax.block_until_ready(mcmc.get_samples())
    begin = time.perf_counter()
    found = bmr.reduce_fit(mcmc, data=(x, y))
    facts = {"reduce_seconds": time.perf_counter() - begin, "pareto_k": found.pareto_k}
    return found.inclusion_prob["beta"] > 0.5, facts


def select_by_lasso(kind: str, x: Any, y: Any) -> Any:
    """Return the non-zero coefficients of a cross-validated L1-penalised regression."""
    import numpy as np
    from sklearn.linear_model import LassoCV, LogisticRegressionCV

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # about convergence, and about settings that will be renamed
        if kind == "logistic":
            fit = LogisticRegressionCV(
                Cs=20,
                cv=5,
                penalty="l1",
                solver="liblinear",
                scoring="neg_log_loss",
                random_state=0,
            ).fit(x, y)
        else:
            fit = LassoCV(cv=5, random_state=0).fit(x, y)
    return np.ravel(fit.coef_) != 0


def score(keep: Any, beta: Any) -> dict[str, float]:
    """Return precision, recall and F1 of a selection, and whether it is exactly right."""
    true = beta != 0
    hits, kept = int((keep & true).sum()), int(keep.sum())
    precision = hits / kept if kept else 0.0
    recall = hits / int(true.sum())
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * hits / (kept + int(true.sum())),
        "kept": kept,
        "exact": float((keep == true).all()),
    }


def add(rows: records.Rows, what: dict[str, Any], method: str, data: tuple) -> None:
    """Run a method on a data set and record what it selects."""
    x, y, beta = data
    begin = time.perf_counter()
    keep, facts = select(method, what["kind"], x, y, what["seed"])
    seconds = time.perf_counter() - begin
    row = {**what, "method": method, **score(keep, beta), "seconds": seconds, **facts}
    rows.add({**row, "environment": records.environment()})
    print({name: row[name] for name in row if name != "environment"}, flush=True)


def write_table(rows: records.Rows) -> None:
    """Write the table: means over the data sets of a cell."""
    import numpy as np

    def mean(found: list[dict[str, Any]], name: str) -> float:
        return float(np.mean([row[name] for row in found]))

    def lines(found: list[dict[str, Any]], head: list[str]) -> list[list[str]]:
        grouped = records.group(found, lambda row: row["method"])
        return [
            [
                *head,
                method,
                str(len(grouped[method])),
                *(f"{mean(grouped[method], name):.2f}" for name in ("precision", "recall", "f1")),
                f"{mean(grouped[method], 'kept'):.1f}",
                f"{mean(grouped[method], 'exact'):.2f}",
                f"{mean(grouped[method], 'seconds'):.1f}",
            ]
            for method in METHODS
            if method in grouped
        ]

    header = ["method", "sets", "precision", "recall", "F1", "kept", "exactly right", "seconds"]
    study = [row for row in rows.rows if row["kind"] != "README"]
    cells = records.group(study, lambda row: (row["columns"], row["kind"], row["rows"]))
    whole, parts = [], []
    for (columns, kind, size), found in cells.items():
        head = [str(columns), kind, str(size)]
        whole += lines(found, head)
        for correlation, some in records.group(found, lambda row: row["correlation"]).items():
            parts += lines(some, [*head, f"{correlation:g}"])
    names = ["columns", "kind", "rows"]
    text = "Means over all correlations:\n\n" + records.table([*names, *header], whole)
    text += "\nBy correlation:\n\n" + records.table([*names, "correlation", *header], parts)
    readme = [row for row in rows.rows if row["kind"] == "README"]
    if readme:
        text += "\nThe README's regression, with nothing but a key:\n\n"
        text += records.table(header, lines(readme, []))
    rows.path.with_suffix(".md").write_text(text)


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/trust"))
    parser.add_argument("--sets", type=int, default=5, help="data sets per cell and correlation")
    parser.add_argument("--readme-sets", type=int, default=20)
    parser.add_argument("--offset", type=int, default=0, help="first seed")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--cells", type=int, nargs="+", default=list(range(len(CELLS))))
    arguments = parser.parse_args()
    rows = records.Rows(arguments.out, "selection.json")
    seeds = range(arguments.offset, arguments.offset + arguments.sets)
    for seed in range(arguments.offset, arguments.offset + arguments.readme_sets):
        what: dict[str, Any] = {"kind": "README", "seed": seed}
        if not rows.has(**what, method="default"):
            add(rows, what, "default", make_readme(seed))
    for columns, kind, size in (CELLS[i] for i in arguments.cells):
        for seed in seeds:
            for correlation in CORRELATIONS:
                what = {"columns": columns, "kind": kind, "rows": size}
                what |= {"correlation": correlation, "seed": seed}
                data = make(columns, kind, size, correlation, seed)
                for method in arguments.methods:
                    if not rows.has(**what, method=method):
                        add(rows, what, method, data)
    write_table(rows)


if __name__ == "__main__":
    main()

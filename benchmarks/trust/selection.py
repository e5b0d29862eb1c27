"""Which variables do `sparsify` and `reduce_fit` select when nothing is set, and which does the lasso select?

    python -m benchmarks.trust.selection

Designs: rows of a stationary AR(1) process over the columns, of unit variance and correlation `rho`
between neighbours. Five columns matter; which ones is drawn, and so are the signs of their coefficients,
whose magnitudes are those of the README's regression (0.8 to 2.5). Linear targets have noise of standard
deviation 1, logistic ones are Bernoulli. Every method sees the same data sets, five per cell (seeds 0 to 4).
Settings were chosen on other seeds, from 1000 on (``--offset 1000``).

Methods: `sparsify` with nothing but a key; ``by magnitude``, with rounds that remove the smallest means first
(only on request); the same as the first with ``criteria.Shrinkage()``, and with
``guide=AutoMeanField(program)``; `reduce_fit` on 2,000 draws of NUTS, after 500 of warm-up, of which
elements with an inclusion probability above one half count; `LassoCV`, or `LogisticRegressionCV` with an L1
penalty, of scikit-learn, whose non-zero coefficients count. ``enumeration``, for linear targets and 20
columns: inclusion probabilities over all 1,048,576 submodels, above one half, under the prior of
`reduce_fit`. ``even odds`` is `reduce_fit` with an even prior for each column, which was its default once.
The program is the README's: N(0, 1) on the coefficients and HalfNormal(1) on the noise.

The README's own regression (100 coefficients, 200 rows, five of them true) is repeated on twenty data sets.
A stopped run goes on where it was.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from sklearn.linear_model import LassoCV, LogisticRegressionCV

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, environment, group, table
from benchmarks.trust.enumeration import enumerate_linear

SIZES, NOISE = (1.5, 2.0, 0.8, 1.0, 2.5), 1.0
CELLS = [(20, "linear", 50), (20, "linear", 200), (20, "logistic", 200)]
CELLS += [(100, "linear", 50), (100, "linear", 200)]
CORRELATIONS = (0.0, 0.7, 0.95)
README = {3: 1.5, 17: -2.0, 42: 0.8, 60: -1.0, 99: 2.5}
LASSO = "lasso"
SAMPLED, EVEN, EXACT = "NUTS, reduce_fit", "NUTS, even odds", "enumeration"
DIGITS = {"precision": 2, "recall": 2, "f1": 2, "kept": 1, "exact": 2, "seconds": 1}
MAGNITUDE = "by magnitude"
METHODS = ("default", MAGNITUDE, "Shrinkage", "AutoMeanField", SAMPLED, EVEN, EXACT, LASSO)


def make(columns: int, kind: str, rows: int, correlation: float, seed: int) -> tuple[Any, Any, Any]:
    """Return inputs, targets and true coefficients of a data set."""
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
    """Return a data set of the README's regression; seed 1 is the README's own."""
    x = jax.random.normal(jax.random.key(2 * seed), (200, 100))
    beta = np.zeros(100)
    beta[list(README)] = list(README.values())
    noise = jax.random.normal(jax.random.key(2 * seed + 1), (200,))
    y = np.asarray(x) @ beta.astype(np.float32) + 0.5 * np.asarray(noise)
    return np.asarray(x), y, beta


def regression(columns: int, kind: str) -> Callable:
    """Return the program of a regression."""

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
    if method == LASSO:
        return select_by_lasso(kind, x, y), {}
    if method == EXACT:
        return enumerate_linear(x, y)[0] > 0.5, {}
    program = regression(x.shape[1], kind)
    if method in (SAMPLED, EVEN):
        expected = x.shape[1] / 2 if method == EVEN else None
        return select_after_nuts(program, x, y, seed, expected)
    options: dict[str, Any] = {
        "default": {},
        MAGNITUDE: {
            "schedule": bmr.schedules.Verified(order=bmr.criteria.smallest_magnitude_first)
        },
        "Shrinkage": {"criterion": bmr.criteria.Shrinkage()},
        "AutoMeanField": {"guide": bmr.infer.AutoMeanField(program)},
    }[method]
    result = bmr.sparsify(program, (x, y), key=jax.random.key(seed), progress=False, **options)
    facts = {"vfe": result.vfe, "epochs": len(result.history)}
    return np.asarray(result.keep["beta"]), facts


def select_after_nuts(
    program: Callable, x: Any, y: Any, seed: int, expected: float | None
) -> tuple[Any, dict[str, Any]]:
    """Return the elements that are more probably in than out, from draws of the whole program."""
    mcmc = MCMC(NUTS(program), num_warmup=500, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(seed), x, y)
    jax.block_until_ready(mcmc.get_samples())
    begin = time.perf_counter()
    found = bmr.reduce_fit(mcmc, data=(x, y), expected=expected)
    facts = {"reduce_seconds": time.perf_counter() - begin, "pareto_k": found.pareto_k}
    return found.inclusion_prob["beta"] > 0.5, facts


def select_by_lasso(kind: str, x: Any, y: Any) -> Any:
    """Return the non-zero coefficients of a cross-validated L1-penalised regression."""
    fit: Any = LassoCV(cv=5, random_state=0)
    if kind == "logistic":
        by_likelihood: dict[str, Any] = {
            "penalty": "l1",
            "solver": "liblinear",
            "scoring": "neg_log_loss",
        }
        fit = LogisticRegressionCV(Cs=20, cv=5, random_state=0, **by_likelihood)
    with warnings.catch_warnings():
        # About convergence, and about settings that will be renamed.
        warnings.simplefilter("ignore")
        return np.ravel(fit.fit(x, y).coef_) != 0


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


def add(rows: Rows, what: dict[str, Any], method: str, data: tuple) -> None:
    """Run a method on a data set and record what it selects."""
    x, y, beta = data
    begin = time.perf_counter()
    keep, facts = select(method, what["kind"], x, y, what["seed"])
    seconds = time.perf_counter() - begin
    row = {**what, "method": method, **score(keep, beta), "seconds": seconds, **facts}
    rows.add({**row, "environment": environment()})
    print(row, flush=True)


def _lines(found: list[dict[str, Any]], head: list[str]) -> list[list[str]]:
    grouped = group(found, "method")
    lines = []
    for method in (method for method in METHODS if method in grouped):
        some = grouped[method]
        average = {name: float(np.mean([row[name] for row in some])) for name in DIGITS}
        cells = [f"{average[name]:.{digits}f}" for name, digits in DIGITS.items()]
        lines.append([*head, method, str(len(some)), *cells])
    return lines


def _differences(study: list[dict[str, Any]]) -> list[list[str]]:
    """Return differences between methods by cell, each with its standard error."""
    lines = []
    for cell, found in group(study, "columns kind rows").items():
        for correlation in ("all", *CORRELATIONS):
            f1: dict[str, dict[tuple, float]] = {}
            for row in found:
                if correlation in ("all", row["correlation"]):
                    of_method = f1.setdefault(row["method"], {})
                    of_method[row["correlation"], row["seed"]] = row["f1"]
            ours = f1.get(SAMPLED, {})
            for method in ("default", EXACT, LASSO):
                both = sorted(ours.keys() & f1.get(method, {}).keys())
                if len(both) > 1:
                    less = np.array([ours[key] - f1[method][key] for key in both])
                    error = less.std(ddof=1) / np.sqrt(len(less))
                    which = correlation if correlation == "all" else f"{correlation:g}"
                    difference = f"{less.mean():+.3f} ± {error:.3f}"
                    lines.append([*map(str, cell), which, method, str(len(both)), difference])
    return lines


def write_table(rows: Rows) -> None:
    """Write the table: means over the data sets of a cell."""
    header = "method | sets | precision | recall | F1 | kept | exactly right | seconds"
    study = [row for row in rows.rows if row["kind"] != "README"]
    whole, parts = [], []
    for cell, found in group(study, "columns kind rows").items():
        head = [str(value) for value in cell]
        whole += _lines(found, head)
        for correlation, some in group(found, "correlation").items():
            parts += _lines(some, [*head, f"{correlation:g}"])
    names = "columns | kind | rows"
    text = "Means over all correlations:\n\n" + table(f"{names} | {header}", whole)
    text += "\nBy correlation:\n\n" + table(f"{names} | correlation | {header}", parts)
    text += (
        "\nF1 of `reduce_fit` after NUTS less that of others, on the data sets that both have:\n\n"
    )
    text += table(f"{names} | correlation | less | sets | difference", _differences(study))
    readme = rows.where(kind="README")
    if readme:
        text += "\nThe README's regression, with nothing but a key:\n\n"
        text += table(header, _lines(readme, []))
    rows.write_table(text, "selection.md")


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False, report=True)
    parser.add_argument("--sets", type=int, default=5, help="data sets per cell and correlation")
    parser.add_argument("--readme-sets", type=int, default=20)
    parser.add_argument("--offset", type=int, default=0, help="first seed")
    parser.add_argument(
        "--methods", nargs="+", default=[m for m in METHODS if m != MAGNITUDE], choices=METHODS
    )
    parser.add_argument("--cells", type=int, nargs="+", default=list(range(len(CELLS))))
    args = options.parse(parser)
    rows = Rows(args.out, "selection.json")
    readme = range(args.offset, args.offset + args.readme_sets)
    for seed in readme if not args.report else ():
        what: dict[str, Any] = {"kind": "README", "seed": seed}
        if not rows.has(**what, method="default"):
            add(rows, what, "default", make_readme(seed))
    cells = [CELLS[i] for i in args.cells] if not args.report else []
    for columns, kind, size in cells:
        for seed in range(args.offset, args.offset + args.sets):
            for correlation in CORRELATIONS:
                what = {"columns": columns, "kind": kind, "rows": size}
                what |= {"correlation": correlation, "seed": seed}
                data = make(columns, kind, size, correlation, seed)
                for method in args.methods:
                    if method == EXACT and (kind != "linear" or columns > 20):
                        continue
                    if not rows.has(**what, method=method):
                        add(rows, what, method, data)
    write_table(rows)


if __name__ == "__main__":
    main()

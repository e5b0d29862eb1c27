"""Are the intervals of sparse regressions right, and what do they select?

    python -m benchmarks.papers.shrinkage_regression --sets 20

Every data set has 200 rows, 100 independent standard normal columns, and noise of standard
deviation 0.5. It draws which 5 columns matter, and their coefficients from N(0, 1) conditional on
|value| > 0.3. All methods see the same sets and put HalfNormal(1) on the noise. The variational
fits take 6000 full-batch steps of the default optimiser; the reductions use the default schedule.

What counts as selected: for reductions and the direct spike-and-slab, what the masks keep; for
the horseshoes and the plain normal prior, a central 95 % interval that leaves out zero. Intervals
are central quantiles of posterior draws; what was removed has the interval [0, 0], so a true
coefficient that a method misses is not covered, and a true zero that it removes is.

The oracle knows which columns matter and how large the noise is: its posterior is exact, and
nothing can be narrower and calibrated. Stopped runs go on where they were; ``--quick`` runs two sets.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, Predictive

from benchmarks.common import options
from benchmarks.common.rows import Rows, environment, group, means, table
from bmrjax import criteria, priors, sparsify
from bmrjax.infer import AutoMeanField, AutoMultivariate

ROWS, COLUMNS, RELEVANT, NOISE, SMALLEST = 200, 100, 5, 0.5, 0.3
EPOCHS, STEPS = 60, 100
WARMUP, SAMPLES, DRAWS = 500, 1000, 2000
SAMPLED = "horseshoe, NUTS"
ORACLE = "oracle"


def make(seed: int) -> tuple[Any, Any, Any]:
    """Return inputs, targets and true coefficients of data set `seed`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, COLUMNS))
    beta = np.zeros(COLUMNS)
    for column in rng.choice(COLUMNS, RELEVANT, replace=False):
        while abs(beta[column]) <= SMALLEST:
            beta[column] = rng.standard_normal()
    y = x @ beta + NOISE * rng.standard_normal(ROWS)
    return x.astype(np.float32), y.astype(np.float32), beta


def regression(prior: Any) -> Callable:
    """Return the program of a linear regression with `prior` on the coefficients."""

    def program(x, y=None):
        beta = numpyro.deterministic("coefficients", prior.sample("beta", (x.shape[1],)))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    return program


# The scale for which the horseshoe expects the true number of coefficients.
SCALE = priors.RegularizedHorseshoePrior.expected_scale(RELEVANT, COLUMNS, ROWS, noise=NOISE)
HORSESHOE, NORMAL = priors.RegularizedHorseshoePrior(SCALE), priors.NormalPrior(1.0)
# Prior, guide and criterion of each variational method.
METHODS: dict[str, tuple[Any, type, Any]] = {
    "normal prior, SVI": (NORMAL, AutoMeanField, None),
    "horseshoe, SVI": (HORSESHOE, AutoMeanField, None),
    "spike-and-slab, SVI": (priors.SpikeAndSlabPrior(), AutoMeanField, criteria.Inclusion()),
    "BMR, spike-and-slab": (NORMAL, AutoMeanField, criteria.SpikeAndSlab()),
    "BMR, spike-and-slab, full covariance": (NORMAL, AutoMultivariate, criteria.SpikeAndSlab()),
    "BMR, horseshoe": (NORMAL, AutoMeanField, criteria.RegularizedHorseshoe(SCALE)),
}


def fit_variational(name: str, seed: int, x: Any, y: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return draws of the coefficients, what was selected (or None), and facts about the fit."""
    prior, guide, criterion = METHODS[name]
    program = regression(prior)
    result = sparsify(
        program,
        (x, y),
        key=jax.random.key(seed),
        guide=guide(program),
        batch_size=None,
        steps_per_epoch=STEPS,
        num_epochs=EPOCHS,
        criterion=criterion,
        progress=False,
    )
    drawn = result.sample(jax.random.key(1000 + seed), DRAWS)
    predictive = Predictive(program, posterior_samples=drawn)
    found = predictive(jax.random.key(2000 + seed), x)["coefficients"]
    vfe = result.free_energy(
        jax.random.key(3000 + seed), (x, y), num_samples=100, batch_size=len(x)
    )
    facts = {
        "seconds": result.timing["seconds"],
        "compile_seconds": result.timing["compile_seconds"],
        "vfe": vfe,
        "noise": float(drawn["noise"].mean()),
        "skipped_steps": result.num_skipped,
    }
    return found, np.asarray(result.keep["beta"]) if result.keep else None, facts


def fit_nuts(seed: int, x: Any, y: Any) -> tuple[Any, None, dict[str, Any]]:
    """Return the same of one chain of NUTS under the horseshoe."""
    program = regression(HORSESHOE)
    kernel = NUTS(program, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=SAMPLES, progress_bar=False)
    begin = time.perf_counter()
    mcmc.run(jax.random.key(seed), x, y)
    found = jax.block_until_ready(mcmc.get_samples())
    seconds = time.perf_counter() - begin
    chains = mcmc.get_samples(group_by_chain=True)
    facts = {
        "seconds": seconds,
        "divergences": int(mcmc.get_extra_fields()["diverging"].sum()),
        "smallest_ess": float(effective_sample_size(chains["coefficients"]).min()),
        "noise": float(found["noise"].mean()),
    }
    return found["coefficients"], None, facts


def solve_oracle(seed: int, x: Any, y: Any, beta: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return draws from the exact posterior given the true support and the true noise."""
    keep = beta != 0
    used = x[:, keep].astype(float)
    covariance = np.linalg.inv(used.T @ used / NOISE**2 + np.eye(keep.sum()))
    loc = covariance @ used.T @ y / NOISE**2
    draws = np.zeros((DRAWS, COLUMNS))
    draws[:, keep] = np.random.default_rng(seed).multivariate_normal(loc, covariance, DRAWS)
    return draws, keep, {}


def score(draws: Any, keep: Any, beta: Any) -> dict[str, float]:
    """Return selection, error, coverage and width of one fit."""
    draws = np.asarray(draws, np.float64)
    if keep is None:
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        keep = (low > 0) | (high < 0)
    true = beta != 0
    row = {
        "exact_support": float((keep == true).all()),
        "missed": int((true & ~keep).sum()),
        "false_positives": int((keep & ~true).sum()),
        "rmse": float(np.sqrt(np.mean((draws.mean(0) - beta) ** 2))),
        "sd_nonzero": float(draws.std(0)[true].mean()),
    }
    for level in (50, 90):
        tail = 0.5 * (1 - level / 100)
        low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
        covered = (low <= beta) & (beta <= high)
        row[f"coverage_{level}_nonzero"] = float(covered[true].mean())
        row[f"coverage_{level}_all"] = float(covered.mean())
        row[f"width_{level}_nonzero"] = float((high - low)[true].mean())
        row[f"width_{level}_all"] = float((high - low).mean())
    return row


def write_table(rows: Rows) -> None:
    """Write ``table.md``: means and standard errors over data sets."""
    header = "method | sets | exactly right | missed, of 5 | false positives, of 95 | RMSE"
    header += " | 50 %, true nonzero | 90 %, true nonzero | 50 %, all | 90 %, all"
    header += " | 90 % width, true nonzero | 90 % width, all | divergences | seconds per fit"
    digits = {"exact_support": 2, "missed": 2, "false_positives": 2, "rmse": 4}
    digits |= {f"coverage_{level}_{of}": 3 for of in ("nonzero", "all") for level in (50, 90)}
    digits |= {"width_90_nonzero": 3, "width_90_all": 4, "divergences": 1, "seconds": 1}
    grouped = group(rows.rows, "method")
    order = [name for name in (ORACLE, SAMPLED, *METHODS) if name in grouped]
    lines = [[name, str(len(grouped[name])), *means(grouped[name], **digits)] for name in order]
    text = table(header, lines) + "".join(f"\n{note}\n" for note in notes(grouped))
    rows.write_table(text)


def notes(grouped: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a sentence for each method that fails or is badly calibrated."""
    found = []
    for name, rows in grouped.items():
        empty = sum(r["missed"] == RELEVANT for r in rows)
        if empty:
            found.append(
                f"{name}: {empty} of {len(rows)} fits ended with every coefficient shrunk to zero."
            )
        for of in ("nonzero", "all"):
            covered = sum(r[f"coverage_90_{of}"] for r in rows) / len(rows)
            if covered < 0.85:
                what = "true nonzero" if of == "nonzero" else "all"
                found.append(
                    f"{name}: badly calibrated; its 90 % intervals cover {covered:.0%} of {what} "
                    "coefficients."
                )
    return found


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(
        __doc__, "shrinkage_regression", seeds=None, data=False, quick="two sets, NUTS on one"
    )
    parser.add_argument("--sets", type=int, default=40)
    parser.add_argument("--nuts-sets", type=int, default=5, help="sets on which NUTS runs")
    args = options.parse(parser)
    sets, nuts_sets = (2, 1) if args.quick else (args.sets, args.nuts_sets)
    rows = Rows(args.out)
    for seed in range(sets):
        x, y, beta = make(seed)
        for name in [ORACLE, *METHODS, *([SAMPLED] if seed < nuts_sets else [])]:
            if rows.has(method=name, seed=seed):
                continue
            if name == ORACLE:
                draws, keep, facts = solve_oracle(seed, x, y, beta)
            elif name == SAMPLED:
                draws, keep, facts = fit_nuts(seed, x, y)
            else:
                draws, keep, facts = fit_variational(name, seed, x, y)
            row = {"method": name, "seed": seed, **score(draws, keep, beta), **facts}
            row["smallest_true"] = float(abs(beta[beta != 0]).min())
            rows.add({**row, **environment()})
            shown = ("missed", "false_positives", "rmse", "coverage_90_nonzero")
            print(f"set {seed}, {name}:", *(f"{n} {row[n]:.4g}" for n in shown), flush=True)
        write_table(rows)


if __name__ == "__main__":
    main()

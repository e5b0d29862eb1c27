"""Does `reduce_fit` say so where the posterior is not normal enough for its inclusion probabilities?

Logistic and Poisson regressions with five candidates, of which three matter, and 15 to 200 rows; 20 data
sets of each kind. The evidence of each of the 32 submodels comes from importance sampling with a
multivariate t distribution around its mode (10,000 draws, in double precision, without JAX); 2,000 draws of
the full model's posterior, resampled from the same, go into `reduce_fit`. A fit is off if an inclusion
probability differs from the exact one by more than 0.05. Reported: how many of those that are off have a
finding that says so, how many of the others have one, and the largest error of
`predicted_inclusion_prob`, of `inclusion_prob` (which is by measured evidence where that is needed), and
after `verify=True`; and the errors of the averaged means and standard deviations by predicted evidence
(`verify=False`) and by measured one (`verify=True`), in standard deviations of the exact average over
submodels.

    python -m benchmarks.trust.normal_check
"""

import itertools
import math
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import gammaln, log_expit, logsumexp

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, table

CELLS = [("logistic", 25), ("logistic", 50), ("logistic", 100), ("logistic", 200)]
CELLS += [("poisson", 15), ("poisson", 50)]
PRIOR_SCALE, DRAWS, RESAMPLED, DEGREES = 1.5, 10_000, 2000, 5.0
OFF = 0.05
# Findings that say that probabilities are not to be relied on.
CODES = ("not-normal", "not-exact", "skewed", "elsewhere", "evidence-off")


def make(kind: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns and target of a data set."""
    rng = np.random.default_rng([seed, rows, kind == "poisson"])
    x = rng.normal(size=(rows, 5))
    eta = x @ np.array([1.2, -0.7, 0.4, 0.0, 0.0])
    if kind == "logistic":
        return x, (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(np.int32)
    return x, rng.poisson(np.exp(0.6 * eta)).astype(np.int32)


def log_joint(kind: str, x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return ln of the joint density of draws, (draws, n) to (draws,)."""
    eta = beta @ x.T
    if kind == "logistic":
        likelihood = log_expit((2 * y - 1) * eta).sum(1)
    else:
        likelihood = (y * eta - np.exp(np.minimum(eta, 50))).sum(1) - gammaln(y + 1.0).sum()
    log_prior = (
        -0.5 * (beta / PRIOR_SCALE) ** 2 - math.log(PRIOR_SCALE) - 0.5 * math.log(2 * math.pi)
    )
    return likelihood + log_prior.sum(1)


def curvature(kind: str, x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> tuple[Any, Any]:
    """Return gradient and Hessian of the negative log joint density."""
    eta = x @ beta
    fitted = 1 / (1 + np.exp(-eta)) if kind == "logistic" else np.exp(eta)
    weight = fitted * (1 - fitted) if kind == "logistic" else fitted
    precision = np.eye(len(beta)) / PRIOR_SCALE**2
    return x.T @ (fitted - y) + precision @ beta, (x * weight[:, None]).T @ x + precision


def exact(
    kind: str, x: np.ndarray, y: np.ndarray, rng: Any
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Return ln of the evidence of a submodel, its standard error, draws and moments of its posterior.

    The moments are the mean of each coefficient and that of its square.
    """
    size = x.shape[1]
    if not size:
        evidence = float(log_joint(kind, x, y, np.zeros((1, 0)))[0])
        return evidence, 0.0, np.zeros((1, 0)), np.zeros((2, 0))
    beta = np.zeros(size)
    for _ in range(50):
        gradient, hessian = curvature(kind, x, y, beta)
        step = np.linalg.solve(hessian, gradient)
        beta = beta - step * min(1.0, 1.0 / max(np.abs(step).max(), 1e-9))
    factor = np.linalg.cholesky(np.linalg.inv(curvature(kind, x, y, beta)[1]))
    noise = rng.standard_normal((DRAWS, size)) / np.sqrt(
        rng.chisquare(DEGREES, (DRAWS, 1)) / DEGREES
    )
    draws = beta + noise @ factor.T
    log_t = gammaln(0.5 * (DEGREES + size)) - gammaln(0.5 * DEGREES)
    log_t -= 0.5 * size * math.log(DEGREES * math.pi) + np.log(np.diag(factor)).sum()
    log_t = log_t - 0.5 * (DEGREES + size) * np.log1p((noise**2).sum(1) / DEGREES)
    log_weight = log_joint(kind, x, y, draws) - log_t
    log_evidence = float(logsumexp(log_weight)) - math.log(DRAWS)
    weight = np.exp(log_weight - log_evidence)
    share = weight / weight.sum()
    chosen = rng.choice(DRAWS, RESAMPLED, p=share)
    moments = np.stack([share @ draws, share @ draws**2])
    return log_evidence, float(weight.std()) / math.sqrt(DRAWS), draws[chosen], moments


def logistic(x: Any, y: Any) -> None:
    """Logistic regression."""
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([5]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def poisson(x: Any, y: Any) -> None:
    """Poisson regression."""
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([5]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)


PROGRAMS = {"logistic": logistic, "poisson": poisson}


def study(kind: str, rows: int, seed: int) -> dict[str, Any]:
    """Return errors and findings of one data set."""
    x, y = make(kind, rows, seed)
    rng = np.random.default_rng(seed)
    masks = np.array(list(itertools.product([True, False], repeat=5)))
    found = [exact(kind, x[:, mask], y, rng) for mask in masks]
    evidence = np.array([one[0] for one in found])
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    truth = weight @ masks
    moments = np.zeros((len(masks), 2, 5))
    for submodel, mask, one in zip(moments, masks, found, strict=True):
        submodel[:, mask] = one[3]
    mean, square = np.einsum("s,skn->kn", weight, moments)
    sd = np.sqrt(square - mean**2)

    def of_average(reduction: bmr.FitReduction) -> dict[str, float]:
        own, spread = reduction.mean["beta"], reduction.sd["beta"]
        return {
            "mean": float(np.abs((own - mean) / sd).max()),
            "sd": float(np.abs(spread / sd - 1).max()),
            "best": float(weight[(masks == reduction.chosen["beta"]).all(1)][0] / weight.max()),
        }

    draws, data = {"beta": found[0][2]}, (x.astype(np.float32), y)
    # Enumeration has even prior odds for each of the five candidates.
    settings: dict[str, Any] = {"model": PROGRAMS[kind], "data": data, "expected": 2.5}
    plain = bmr.reduce_fit(draws, **settings)
    checked = bmr.reduce_fit(draws, **settings, verify=True)
    predicted = bmr.reduce_fit(draws, **settings, verify=False)
    assert checked.is_measured
    codes = [finding.code for finding in plain.findings]
    return {
        "kind": kind,
        "rows": rows,
        "seed": seed,
        "error": float(np.abs(plain.predicted_inclusion_prob["beta"] - truth).max()),
        "error_reported": float(np.abs(plain.inclusion_prob["beta"] - truth).max()),
        "error_verified": float(np.abs(checked.inclusion_prob["beta"] - truth).max()),
        "evidence_error": max(one[1] for one in found),
        "predicted": of_average(predicted),
        "measured": of_average(checked),
        "pareto_k": plain.pareto_k,
        "findings": codes,
    }


def write_table(rows: Rows) -> None:
    """Write ``normal_check.md``."""
    lines = []
    for kind, count in [*CELLS, ("all", 0)]:
        own = [r for r in rows.rows if kind == "all" or (r["kind"], r["rows"]) == (kind, count)]
        if not own:
            continue
        off = [r for r in own if r["error"] > OFF]
        others = [r for r in own if r["error"] <= OFF]
        said, more = (
            sum(bool(set(r["findings"]) & set(CODES)) for r in part) for part in (off, others)
        )
        reported = [r["error_reported"] for r in own if "error_reported" in r]
        not_normal = sum("not-normal" in r["findings"] for r in others)
        lines.append(
            [
                "all" if kind == "all" else f"{kind}, {count} rows",
                f"{said} of {len(off)}",
                f"{more} of {len(others)}",
                f"{not_normal}",
                f"{max(r['error'] for r in own):.3f}",
                f"{max(reported):.3f} ({len(reported)})" if reported else "–",
                f"{max(r['error_verified'] for r in own):.3f}",
            ]
        )
    header = (
        "data | off, and said so | not off, with a finding | of these by Pareto k | largest error"
    )
    text = table(header + " | of what is reported | with verify=True", lines)
    text += (
        f"\nAn inclusion probability is off if it is more than {OFF} from that of enumeration. A finding is "
        f"one of {', '.join(f'`{code}`' for code in CODES)}. {len(rows.rows)} data sets.\nReported is "
        "`inclusion_prob`; in brackets, by how many data sets.\n"
    )
    averages = []
    for kind, count in [*CELLS, ("all", 0)]:
        own = [r for r in rows.rows if kind == "all" or (r["kind"], r["rows"]) == (kind, count)]
        own = [r for r in own if "measured" in r]
        if own:
            name = "all" if kind == "all" else f"{kind}, {count} rows"
            averages.append([name, str(len(own)), *_errors(own)])
    if averages:
        header = (
            "data | data sets | mean, predicted | mean, measured | sd, predicted | sd, measured"
        )
        text += "\nErrors of averages, mean and largest over data sets:\n\n"
        text += table(header + " | chosen not the best, predicted | measured", averages)
        text += (
            "\nThe largest error of five coefficients: of the mean in standard deviations of the exact "
            "average, and of the standard deviation as a share of it. The chosen submodel is not the best if "
            "another is more probable by enumeration.\n"
        )
    rows.write_table(text, "normal_check.md")


def _errors(rows: list[dict[str, Any]]) -> list[str]:
    """Return errors of averages and of the chosen submodel, by predicted and by measured evidence."""
    cells = []
    for key in ("mean", "sd"):
        for evidence in ("predicted", "measured"):
            errors = [row[evidence][key] for row in rows]
            cells.append(f"{np.mean(errors):.3f}, {max(errors):.3f}")
    for evidence in ("predicted", "measured"):
        cells.append(f"{sum(row[evidence]['best'] < 1 for row in rows)}")
    return cells


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=20, data=False, report=True)
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "normal_check.json", shared=True)
    for kind, count in () if args.report else CELLS:
        for seed in range(args.seeds):
            if not rows.has(kind=kind, rows=count, seed=seed):
                rows.add(study(kind, count, seed))
                print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

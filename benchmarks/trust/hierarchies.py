"""Group studies by `peb` beside NUTS of the whole hierarchy, and two ways to the evidence of a submodel.

    python -m benchmarks.trust.hierarchies --seeds 3

Twelve subjects with linear models of three parameters, known noise and 25 rows each; the subjects'
posteriors are exact. The hierarchical program is the one that `peb` integrates (group mean and effect of
age, a standard deviation between subjects for each parameter). Reported: the largest difference of a mean
and of a standard deviation of an effect, of a mean over subjects' parameters, and of ln of a standard
deviation between subjects, all in posterior standard deviations of NUTS (two chains of 4,000 draws);
CPU seconds of both in one process, of a first and a second call; imports count for neither; and, over
all submodels of the six effects, the difference between ln of the evidence ratio by Savage and Dickey (from
the posterior of the full model alone) and by integrating each submodel anew.
"""

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, mean_and_error, table

PRIOR_SCALE = np.array([1.3, 0.6, 2.0])
NOISE, SUBJECTS, ROWS, BETWEEN = 0.7, 12, 25, 0.15
NAMES = ["gain", "decay", "delay"]


def simulate(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and targets of each subject, and the standardised age."""
    rng = np.random.default_rng([9, seed])
    age = rng.normal(size=SUBJECTS)
    age = (age - age.mean()) / age.std()
    theta = np.array([0.8, 0.0, -1.0]) + np.outer(age, [0.0, 0.5, 0.0])
    theta = theta + BETWEEN * rng.normal(size=(SUBJECTS, 3))
    x = rng.normal(size=(SUBJECTS, ROWS, 3))
    return x, np.einsum("irn,in->ir", x, theta) + NOISE * rng.normal(size=(SUBJECTS, ROWS)), age


def hierarchy(x: Any, y: Any, age: Any) -> None:
    """All subjects in one program, non-centred, under the priors of `peb`."""
    scale = jnp.asarray(PRIOR_SCALE, jnp.float32)
    mean = scale * numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    slope = scale * numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    spread = dist.Normal(jnp.log(0.25), 1.0).expand([3]).to_event(1)
    between = scale * jnp.exp(numpyro.sample("log_between", spread))
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([SUBJECTS, 3]).to_event(2))
    theta = numpyro.deterministic("theta", mean + age[:, None] * slope + between * noise)
    predicted = jnp.einsum("irn,in->ir", x, theta)
    numpyro.sample("y", dist.Normal(predicted, NOISE).to_event(2), obs=y)


def by_nuts(data: tuple, seed: int) -> tuple[dict[str, np.ndarray], float, float]:
    """Return draws, and CPU seconds with compilation and of a second run."""
    mcmc = MCMC(
        NUTS(hierarchy, target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=4000,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    seconds = []
    for run in range(2):
        start = time.process_time()
        mcmc.run(jax.random.key(2 * seed + run), *data)
        draws = {name: np.asarray(value, np.float64) for name, value in mcmc.get_samples().items()}
        seconds.append(time.process_time() - start)
    return draws, *seconds


def compare(seed: int) -> dict[str, Any]:
    """Return differences and seconds of one study."""
    x, y, age = simulate(seed)
    precision = np.einsum("irn,irm->inm", x, x) / NOISE**2 + np.diag(PRIOR_SCALE**-2.0)
    covariance = np.linalg.inv(precision)
    loc = np.einsum("inm,irm,ir->in", covariance, x, y, optimize=True) / NOISE**2
    by_peb = bmr.peb  # which imports it

    def fit() -> tuple[bmr.GroupFit, float]:
        start = time.process_time()
        study = by_peb(
            design={"age": age},
            loc=loc,
            covariance=covariance,
            prior=bmr.reduction.Normal(0.0, PRIOR_SCALE),  # type: ignore[arg-type]
            names=NAMES,
        )
        return study, time.process_time() - start

    (study, seconds), (_, again) = fit(), fit()
    found = study.reduce()
    check = found.verification
    assert check is not None
    assert found.is_measured
    draws, first, second = by_nuts(tuple(jnp.asarray(a, jnp.float32) for a in (x, y, age)), seed)
    effects = np.stack([PRIOR_SCALE * draws["mean"], PRIOR_SCALE * draws["slope"]], 1)
    ours = np.stack([study.mean["mean"], study.mean["age"]])
    ours_sd = np.stack([study.sd["mean"], study.sd["age"]])
    sd = effects.std(0)
    log_between = draws["log_between"] + np.log(PRIOR_SCALE)
    weight, nodes = study._integral.weight, study._integral.log_scale + np.log(PRIOR_SCALE)
    off = check.predicted - check.measured
    probable = check.measured > check.measured.max() - np.log(20)
    change = [
        np.abs(found.inclusion_prob[site] - found.predicted_inclusion_prob[site]).max()
        for site in found.inclusion_prob
    ]
    return {
        "seed": seed,
        "mean": float(np.abs((effects.mean(0) - ours) / sd).max()),
        "sd": float(np.abs(sd / ours_sd - 1).max()),
        "subjects": float(
            np.abs((draws["theta"].mean(0) - study.subject_loc) / draws["theta"].std(0)).max()
        ),
        "log_between": float(
            np.abs((log_between.mean(0) - weight @ nodes) / log_between.std(0)).max()
        ),
        "monte_carlo_error": float(_error(effects / sd)),
        "peb_cpu_seconds": seconds,
        "peb_again_cpu_seconds": again,
        "nuts_cpu_seconds": first,
        "nuts_again_cpu_seconds": second,
        "submodels": len(off),
        "savage_dickey_off": float(np.abs(off).max()),
        "savage_dickey_off_probable": float(np.abs(off[probable]).max()),
        "inclusion_off": float(max(change)),
    }


def _error(standard: np.ndarray) -> float:
    """Return the largest Monte Carlo standard error of a mean, in posterior standard deviations."""
    batches = np.stack([part.mean(0) for part in np.array_split(standard, 40)])
    return float((batches.std(0, ddof=1) / np.sqrt(40)).max())


def write_table(rows: Rows) -> None:
    """Write ``hierarchies.md``."""
    what = {
        "mean": "largest difference of the mean of an effect, in standard deviations",
        "sd": "of its standard deviation, relative",
        "subjects": "of the mean of a subject's parameter, in standard deviations",
        "log_between": "of ln of a standard deviation between subjects, in standard deviations",
        "monte_carlo_error": "Monte Carlo error of NUTS in these means",
        "savage_dickey_off": "Savage and Dickey less a new integral, largest of all submodels, nats",
        "savage_dickey_off_probable": "the same, submodels within a factor of 20 of the best, nats",
        "inclusion_off": "change of an inclusion probability by new integrals, largest",
    }
    lines = [[text, *(f"{row[key]:.3f}" for row in rows.rows)] for key, text in what.items()]
    ratios = [
        [row[f"nuts{k}_cpu_seconds"] / row[f"peb{k}_cpu_seconds"] for row in rows.rows]
        for k in ("", "_again")
    ]
    first, again = ([f"{ratio:.0f}" for ratio in each] for each in ratios)
    seconds = mean_and_error([row["peb_cpu_seconds"] for row in rows.rows], 2)
    warm = mean_and_error([row["peb_again_cpu_seconds"] for row in rows.rows], 2)
    text = table(["what", *(f"seed {row['seed']}" for row in rows.rows)], lines)
    text += (
        f"\n`peb` takes {seconds} CPU seconds at a first call and {warm} at a second one; NUTS of the "
        f"hierarchy {', '.join(first)} times as long at a first call, with compilation, and "
        f"{', '.join(again)} times at a second, by seed. Imports count for neither. All "
        f"{rows.rows[0]['submodels']} submodels of the six effects are measured.\n"
    )
    rows.write_table(text, "hierarchies.md")


def main() -> None:
    """Run the comparison and write what it found."""
    parser = options.parser(__doc__, "trust", data=False, report=True)
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "hierarchies.json", shared=True)
    for seed in () if args.report else range(args.seeds):
        if not rows.has(seed=seed):
            rows.add(compare(seed))
            print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

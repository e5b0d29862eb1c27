"""Sizes of submodels that predict as well as the full one, beside kulprit, in one run.

The diabetes data, standardised: a linear model of ten columns, written in Bambi with N(0, 0.5²) priors and
fitted by its NumPyro backend, or by PyMC where that does not run (the row says which). kulprit projects
this fit on submodels by forward search; `reduce_fit` receives the same draws, with the priors read from the
Bambi model, and, for `FitReduction.path`, the NumPyro program of the model. Both sizes are by kulprit's two
rules: the smallest submodel whose expected log predictive density is less than 4 nats, or at most a
standard error of its own, below that of the full model. Times are wall-clock and CPU seconds of one
process, compilation included.

    python -m benchmarks.trust.kulprit_sizes --seeds 3

It needs `pip install bambi kulprit`, beside bmrjax.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_diabetes

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, mean_and_error, table

PRIOR_SCALE = 0.5


def program(x: Any, y: Any) -> None:
    """The model that Bambi makes of the formula, with the columns in one site."""
    intercept = numpyro.sample("Intercept", dist.Normal(0.0, 1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, sigma), obs=y)


def timed(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return what a function returns, with its seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    return found, {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def fit_by_bambi(frame: Any, seed: int) -> tuple[Any, Any, str]:
    """Return the Bambi model, its fit and the backend that made it."""
    import bambi

    columns = [name for name in frame.columns if name != "y"]
    priors: dict[str, Any] = {
        name: bambi.Prior("Normal", mu=0, sigma=PRIOR_SCALE) for name in columns
    }
    priors |= {
        "Intercept": bambi.Prior("Normal", mu=0, sigma=1),
        "sigma": bambi.Prior("HalfNormal", sigma=1),
    }
    model = bambi.Model(f"y ~ {' + '.join(columns)}", frame, priors=priors, auto_scale=False)
    settings = {"draws": 1000, "tune": 500, "chains": 2, "random_seed": seed}
    log = {"idata_kwargs": {"log_likelihood": True}}
    try:
        return model, model.fit(inference_method="numpyro", **settings, **log), "numpyro"
    except Exception as error:  # whatever a backend of another package raises
        print(f"Bambi's NumPyro backend: {type(error).__name__}: {error}", flush=True)
    fit = model.fit(inference_method="pymc", cores=1, progressbar=False, **settings, **log)
    return model, fit, "pymc"


def by_kulprit(model: Any, fit: Any, seed: int) -> dict[str, Any]:
    """Return kulprit's sizes and the order in which it takes up columns."""
    from kulprit import ProjectionPredictive

    projection = ProjectionPredictive(model, fit, rng=seed)
    projection.project()
    reference = projection.reference_model.elpd
    sizes = {rule: projection.select(rule).size for rule in ("mean", "se")}
    path = [list(one.term_names) for one in projection]
    return {**sizes, "path": path, "elpd": [float(one.elpd - reference) for one in projection]}


def by_reduction(
    draws: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, names: list[str], seed: int
):
    """Return our sizes by the same rules."""
    found = bmr.reduce_fit(
        draws, model=program, data=(x, y), names=names, sites=["beta"], seed=seed
    )
    sizes = found.path(seed=seed)
    below = sizes["elpd"].iloc[-1] - sizes["elpd"]
    return {
        "mean": int(sizes["size"][below < 4].iloc[0]),
        "se": int(sizes["size"][below <= sizes["elpd_error"]].iloc[0]),
        "path": [list(one) for one in sizes["candidates"]],
        "elpd": (-below).tolist(),
        "pareto_k": float(sizes["pareto_k"].max()),
    }


def compare(seed: int) -> dict[str, Any]:
    """Return the sizes and times of one fit."""
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    frame: Any = (x - x.mean()) / x.std(ddof=0)
    names = list(frame.columns)
    frame["y"] = ((y - y.mean()) / y.std(ddof=0)).to_numpy()
    (model, fit, backend), of_fit = timed(lambda: fit_by_bambi(frame, seed))
    theirs, of_kulprit = timed(lambda: by_kulprit(model, fit, seed))

    # By the tree alone, with the priors of the Bambi model.
    from_tree = bmr.reduce_fit(fit, prior=model)
    posterior = fit.posterior
    draws = {name: np.asarray(posterior[name]).reshape(-1) for name in ("Intercept", "sigma")}
    draws["beta"] = np.stack([np.asarray(posterior[name]).reshape(-1) for name in names], 1)
    rows, target = (np.asarray(part, np.float32) for part in (frame[names], frame["y"]))
    ours, of_ours = timed(lambda: by_reduction(draws, rows, target, names, seed))
    again, of_again = timed(lambda: by_reduction(draws, rows, target, names, seed))
    assert again["mean"] == ours["mean"]
    table = from_tree.table()
    return {
        "seed": seed,
        "backend": backend,
        "fit": of_fit,
        "kulprit": theirs | of_kulprit,
        "bmrjax": ours | of_ours,
        "bmrjax_again": of_again,
        "inclusion_prob": dict(zip(table["site"], table["inclusion_prob"].round(4), strict=True)),
    }


def write_table(rows: Rows) -> None:
    """Write ``kulprit_sizes.md``."""
    lines = []
    for who in ("kulprit", "bmrjax"):
        own = [row[who] for row in rows.rows]
        lines.append(
            [
                who,
                *(", ".join(str(one[rule]) for one in own) for rule in ("mean", "se")),
                *(
                    mean_and_error([one[unit] for one in own], 1)
                    for unit in ("seconds", "cpu_seconds")
                ),
            ]
        )
    header = "who | size, 4 nats | size, one standard error | seconds | CPU seconds"
    text = table(header, lines)
    ratio = [row["kulprit"]["cpu_seconds"] / row["bmrjax"]["cpu_seconds"] for row in rows.rows]
    again = [
        row["kulprit"]["cpu_seconds"] / row["bmrjax_again"]["cpu_seconds"] for row in rows.rows
    ]
    text += (
        f"\nSizes by seed ({len(rows.rows)}), out of ten columns; fits by Bambi's backend "
        f"{rows.rows[0]['backend']}. In CPU seconds, kulprit takes {min(ratio):.1f} to {max(ratio):.1f} "
        f"times as long as `reduce_fit` and its path with compilation, {min(again):.1f} to {max(again):.1f} "
        f"times as long as a second call.\n"
    )
    rows.write_table(text, "kulprit_sizes.md")


def main() -> None:
    """Run the comparison and write what it found."""
    parser = options.parser(__doc__, "trust", data=False, report=True)
    args = options.parse(parser)
    warnings.simplefilter("ignore")
    rows = Rows(args.out, "kulprit_sizes.json", shared=True)
    for seed in () if args.report else range(args.seeds):
        if not rows.has(seed=seed):
            rows.add(compare(seed))
            print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

"""Does bmrjax fit other people's NumPyro programs as NumPyro does?

    python benchmarks/trust/programs.py            # all programs of tests/programs
    python benchmarks/trust/programs.py --nuts     # NUTS as well, within a time limit
    python benchmarks/trust/programs.py --names ar2_scan eight_schools --quick

Every program is fitted by NumPyro's `SVI` with `AutoNormal`, and by `bmrjax.sparsify` with
``criterion=None`` and its mean-field guide: full batch, the same optimiser (AdaBelief with a cosine
schedule, at the largest of three learning rates at which the former converges), the same number of
steps, several seeds. NumPyro's `Trace_ELBO` judges both, with draws of its own. A program passes if
the mean VFE over the seeds differs by at most three standard errors plus a tenth of a nat. The error
comes from the draws and from the spread over the seeds, because some programs have several optima. Where
it differs by more, bmrjax is fitted again from where NumPyro's fit starts, seed by seed, to see whether the
two starts make the difference.

In minibatches (a third of the rows), a program must either be refused by a `ValueError` that names a
site at fault, or be fitted to the same VFE, within three standard errors plus a nat.

Means are compared in units of the posterior standard deviation. Where a mean-field posterior is far
from NUTS, both fits are: this study does not judge that. Rows are kept in
``benchmarks/results/trust/programs.json``; bmrjax's part of a row is measured again when its program
is named, and all of it with ``--fresh``.
"""

import argparse
import copy
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import records  # noqa: E402

RATES = (1e-2, 3e-2, 1e-1)
EPOCH = 100
DRAWS = 2000
WARMUP, SAMPLES = 500, 1000
# What bmrjax has no part in, and is not measured again for it.
KEPT = ("steps", "seeds", "rate", "numpyro", "numpyro_posterior", "numpyro_seconds", "nuts")
TOLERANCE, MINIBATCH_TOLERANCE = 0.1, 1.0


def optimizer(rate: float, steps: int) -> Any:
    import optax

    return optax.adabelief(optax.cosine_decay_schedule(rate, steps, alpha=0.01))


def judge(program: Any, guide: Any, params: Sequence[Any], key: Any) -> dict[str, Any]:
    """Return the VFE of the whole data by NumPyro's `Trace_ELBO`, over the seeds; see `over_seeds`."""
    import jax
    import numpy as np
    from numpyro.infer import Trace_ELBO

    @jax.jit
    def measure(params, key):
        def once(key):
            return Trace_ELBO().loss(
                key, params, program.model, guide, *program.args, **program.kwargs
            )

        return jax.vmap(once)(jax.random.split(key, DRAWS))

    values = [
        np.asarray(measure(one, jax.random.fold_in(key, i)), np.float64)
        for i, one in enumerate(params)
    ]
    return over_seeds([(v.mean(), v.std() / math.sqrt(DRAWS)) for v in values])


def moments(program: Any, guide: Any, params: Any, key: Any) -> dict[str, Any]:
    """Return posterior means and standard deviations of the watched sites."""
    from numpyro.infer import Predictive

    draws = Predictive(guide, params=params, num_samples=DRAWS)(
        key, *program.args, **program.kwargs
    )
    return summarize({name: draws[name] for name in program.watch})


def summarize(draws: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {
        name: {
            "mean": np.mean(values, 0).ravel()[:12].tolist(),
            "sd": np.std(values, 0).ravel()[:12].tolist(),
        }
        for name, values in draws.items()
    }


def guide_of_numpyro(program: Any) -> Any:
    """Return `AutoNormal`, started within half of zero."""
    from numpyro.infer import init_to_uniform
    from numpyro.infer.autoguide import AutoNormal

    # Within two of zero, as by default, the first gradients of some programs are so large that AdaBelief
    # remembers them for thousands of steps.
    return AutoNormal(program.model, init_loc_fn=init_to_uniform(radius=0.5))


def start_of_numpyro(program: Any, steps: int, seed: int) -> Any:
    """Return what NumPyro's fit starts from, in the form that `sparsify` goes on from."""
    import jax
    from numpyro.infer import SVI, Trace_ELBO

    import bmrjax as bmr

    guide = guide_of_numpyro(program)
    svi = SVI(program.model, guide, optimizer(RATES[0], steps), Trace_ELBO())
    state = svi.init(jax.random.key(seed), *program.args, **program.kwargs)
    return bmr.Result(dict(svi.get_params(state)), {}, {}, number_of_rows(program))


def fit_numpyro(
    program: Any, rates: Sequence[float], steps: int, seeds: int
) -> tuple[Any, dict[float, list[Any]]]:
    """Return the guide of SVI with AutoNormal, and its parameters by learning rate and seed."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.optim import optax_to_numpyro

    # A guide of each seed, because a guide keeps where it started.
    guides = [guide_of_numpyro(program) for _ in range(seeds)]
    started, constrained = [], None
    for seed, guide in enumerate(guides):
        svi = SVI(program.model, guide, optimizer(rates[0], steps), Trace_ELBO())
        started.append(svi.init(jax.random.key(seed), *program.args, **program.kwargs))
        constrained = constrained or svi
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *started)

    def run(rate, state):
        inference = copy.copy(constrained)
        inference.optim = optax_to_numpyro(optimizer(rate, steps))

        def step(state, _):
            return inference.stable_update(state, *program.args, **program.kwargs)[0], None

        return inference.get_params(jax.lax.scan(step, state, length=steps)[0])

    over_seeds = jax.vmap(run, in_axes=(None, 0))
    fitted = jax.jit(jax.vmap(over_seeds, in_axes=(0, None)))(jnp.array(rates), states)
    return guides[0], {
        rate: [jax.tree.map(lambda leaf, at=(i, k): leaf[at], fitted) for k in range(seeds)]
        for i, rate in enumerate(rates)
    }


def fit_bmrjax(
    program: Any, rate: float, steps: int, seed: int, batch_size: int | None, start: Any = None
) -> tuple[Any, Any]:
    """Return the guide and the parameters of `sparsify` without reduction."""
    import jax

    import bmrjax as bmr

    result = bmr.sparsify(
        program.model,
        program.data,
        key=jax.random.key(seed),
        criterion=None,
        guide=bmr.infer.AutoMeanField(program.model),
        optimizer=optimizer(rate, steps),
        batch_size=batch_size,
        options=bmr.FitOptions(start=start),
        steps_per_epoch=min(EPOCH, steps),
        num_epochs=max(1, steps // EPOCH),
        progress=False,
    )
    guide: Any = getattr(result, "unpruned_guide", result.guide)
    return guide, result.params


def number_of_rows(program: Any) -> int:
    """Return the longest leading axis of the arguments; 0 without arrays."""
    import jax
    import numpy as np

    leaves = jax.tree.leaves((program.args, dict(program.kwargs)))
    return max((np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf)), default=0)


def over_seeds(measured: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the mean of the VFE over seeds, its standard error, and the best seed."""
    values = [float(value) for value, _ in measured]
    n, mean = len(values), sum(values) / len(values)
    sampling = math.sqrt(sum(error**2 for _, error in measured)) / n
    spread = 0.0
    if n > 1:
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return {
        "seeds": values,
        "mean": mean,
        "error": float(math.hypot(sampling, spread)),
        "best": min(values),
        "best_error": float(measured[values.index(min(values))][1]),
    }


def compare(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """Return the difference of two VFEs, its standard error, and whether they agree."""
    difference = ours["mean"] - theirs["mean"]
    error = math.hypot(ours["error"], theirs["error"])
    best = ours["best"] - theirs["best"]
    best_error = math.hypot(ours["best_error"], theirs["best_error"])
    # Worse is a failure; better than NumPyro's by another optimum is none.
    agree = difference <= 3 * error + tolerance and best <= 3 * best_error + tolerance
    # Unless the seeds differ, a lower VFE than NumPyro's would mean another program.
    if max(ours["error"] - ours["best_error"], theirs["error"] - theirs["best_error"]) < tolerance:
        agree = agree and abs(difference) <= 3 * error + tolerance
    return {"difference": difference, "error": error, "best": best, "agree": bool(agree)}


def distance(ours: dict[str, Any], theirs: dict[str, Any]) -> float | None:
    """Return the largest difference of two sets of means, in standard deviations of the second."""
    gaps = [
        abs(a - b) / max(sd, 1e-9)
        for name in theirs
        for a, b, sd in zip(
            ours[name]["mean"], theirs[name]["mean"], theirs[name]["sd"], strict=True
        )
    ]
    return max(gaps, default=None)


def finite_or_last(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def message_of(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def in_minibatches(program: Any, rate: float, steps: int, reference: dict[str, Any]) -> dict:
    """Fit in minibatches of a third of the rows: accepted with the same VFE, or refused by name."""
    import jax

    rows = number_of_rows(program)
    expected = "accept" if program.minibatch == "ok" else "refuse"
    row: dict[str, Any] = {"expected": expected, "batch_size": max(2, rows // 3)}
    if not rows:
        return row | {"outcome": "no rows", "agree": True}
    try:
        guide, params = fit_bmrjax(program, rate, steps, 0, row["batch_size"])
    except ValueError as error:
        names = () if expected == "accept" else program.minibatch
        named = [name for name in names if re.search(rf"\b{re.escape(name)}\b", str(error))]
        row |= {"outcome": "refused", "message": message_of(error), "named": named}
        return row | {"agree": expected == "refuse" and bool(named)}
    except Exception as error:
        return row | {"outcome": "crashed", "message": message_of(error), "agree": False}
    row["vfe"] = judge(program, guide, [params], jax.random.key(100))
    row |= compare(row["vfe"], reference, MINIBATCH_TOLERANCE)
    # An answer may be right although the program was expected to be refused.
    row["outcome"] = "accepted"
    return row


def measure_numpyro(program: Any, steps: int, seeds: int, rates: Sequence[float]) -> dict[str, Any]:
    """Return NumPyro's part of the row of one program."""
    import jax

    begun = time.perf_counter()
    row: dict[str, Any] = {"steps": steps, "seeds": seeds}
    guide, fits = fit_numpyro(program, rates, steps, seeds)
    measured = {rate: judge(program, guide, fits[rate], jax.random.key(1)) for rate in fits}
    # The largest that converged: the other fit starts elsewhere, perhaps farther away.
    lowest = min(finite_or_last(one["mean"]) for one in measured.values())
    good = {r: m for r, m in measured.items() if m["mean"] <= lowest + TOLERANCE}
    rate = max(rate for rate in good if math.isfinite(good[rate]["mean"]))
    row["rate"], row["numpyro"] = rate, measured[rate]
    chosen = fits[rate][row["numpyro"]["seeds"].index(row["numpyro"]["best"])]
    row["numpyro_posterior"] = moments(program, guide, chosen, jax.random.key(5))
    row["numpyro_seconds"] = time.perf_counter() - begun
    return row


def measure_bmrjax(program: Any, reference: dict[str, Any]) -> dict[str, Any]:
    """Return the part of bmrjax of the row of one program."""
    import jax

    begun = time.perf_counter()
    row: dict[str, Any] = {}
    steps, rate, seeds = (reference[name] for name in ("steps", "rate", "seeds"))
    try:
        fitted = [fit_bmrjax(program, rate, steps, seed, None) for seed in range(seeds)]
        guide = fitted[0][0]
        measured = judge(program, guide, [params for _, params in fitted], jax.random.key(50))
    except Exception as error:
        row["full_batch"] = {"agree": False, "message": message_of(error)}
    else:
        row["bmrjax"] = measured
        row["full_batch"] = compare(row["bmrjax"], reference["numpyro"], TOLERANCE)
        chosen = fitted[measured["seeds"].index(measured["best"])][1]
        row["bmrjax_posterior"] = moments(program, guide, chosen, jax.random.key(6))
        row["distance"] = distance(row["bmrjax_posterior"], reference["numpyro_posterior"])
        if not row["full_batch"]["agree"]:
            again = [
                fit_bmrjax(program, rate, steps, seed, None, start_of_numpyro(program, steps, seed))
                for seed in range(seeds)
            ]
            measured = judge(program, again[0][0], [p for _, p in again], jax.random.key(51))
            row["same_start"] = compare(measured, reference["numpyro"], TOLERANCE)
    row["minibatch"] = in_minibatches(program, rate, steps, reference["numpyro"])
    row["bmrjax_seconds"] = time.perf_counter() - begun
    return row


def sample_by_nuts(program: Any) -> None:
    """Print the posterior by NUTS as JSON: the work of a process that can be stopped."""
    import jax
    import numpy as np
    from numpyro.infer import MCMC, NUTS

    begun = time.perf_counter()
    mcmc = MCMC(NUTS(program.model), num_warmup=WARMUP, num_samples=SAMPLES, progress_bar=False)
    mcmc.run(jax.random.key(0), *program.args, extra_fields=("diverging",), **program.kwargs)
    draws = mcmc.get_samples()
    found = {
        "posterior": summarize({name: draws[name] for name in program.watch}),
        "divergences": int(np.sum(mcmc.get_extra_fields()["diverging"])),
        "seconds": time.perf_counter() - begun,
    }
    print("NUTS " + json.dumps(found))


def run_nuts(program: Any, limit: float) -> dict[str, Any]:
    if not program.nuts:
        return {"skipped": "learnable parameters"}
    command = [sys.executable, __file__, "--nuts-worker", program.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"skipped": f"more than {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("NUTS ")]
    if not lines:
        return {"skipped": "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(lines[-1][5:])


def with_nuts(row: dict[str, Any]) -> None:
    """Add the distances of both fits from NUTS."""
    posterior = row.get("nuts", {}).get("posterior")
    for who in ("numpyro", "bmrjax"):
        if posterior and f"{who}_posterior" in row:
            row[f"{who}_to_nuts"] = distance(row[f"{who}_posterior"], posterior)


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def outcome_of(row: dict[str, Any]) -> str:
    """Return what the full batch came to, for the table."""
    fit, again = row.get("full_batch", {}), row.get("same_start")
    if fit.get("agree"):
        return "pass"
    if again is None:
        return f"**{fit.get('message', 'differs')[:80]}**"
    outcome = f"{again['difference']:+.2f} ± {again['error']:.2f} from NumPyro's start"
    return outcome if again["agree"] else f"**{outcome}**"


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table of all programs."""
    header = ["program", "rows", "VFE, NumPyro", "VFE, bmrjax", "difference", "means differ, sd"]
    header += ["to NUTS, sd: NumPyro / bmrjax", "full batch", "minibatch"]
    lines = []
    for row in rows:
        fit, theirs, ours = row.get("full_batch", {}), row["numpyro"], row.get("bmrjax")
        batch = row.get("minibatch", {})
        said = batch.get("outcome", "–")
        if said == "accepted":
            said += f", {batch['difference']:+.2f}"
        if batch.get("named"):
            said += f", `{batch['named'][0]}`"
        if batch and not batch["agree"]:
            said += f" **(expected: {batch['expected']})**"
        nuts = row.get("nuts", {})
        to_nuts = nuts.get("skipped", "–")
        if "posterior" in nuts:
            to_nuts = f"{number(row.get('numpyro_to_nuts'))} / {number(row.get('bmrjax_to_nuts'))}"
        lines.append(
            [
                row["name"] + (f" ({row['notes']})" if row["notes"] else ""),
                str(row["rows"] or "–"),
                f"{theirs['mean']:.2f} ± {theirs['error']:.2f}",
                f"{ours['mean']:.2f} ± {ours['error']:.2f}" if ours else "–",
                f"{fit['difference']:+.2f} ± {fit['error']:.2f}" if ours else "–",
                number(row.get("distance")),
                to_nuts,
                outcome_of(row),
                said,
            ]
        )
    passed = sum(bool(row.get("full_batch", {}).get("agree")) for row in rows)
    from_there = sum(bool(row.get("same_start", {}).get("agree")) for row in rows)
    right = sum(bool(row.get("minibatch", {}).get("agree")) for row in rows)
    head = (
        "# Programs: bmrjax without reduction beside NumPyro's SVI\n\n"
        f"{len(rows)} programs. Full batch: {passed} with the same VFE, by NumPyro's `Trace_ELBO`, "
        f"and {from_there} more if started where NumPyro's fit starts: these have several optima, or "
        "a start from which the learning rate that suits NumPyro's is too small. "
        f"Minibatch: {right} refused by the name of a site, or fitted to the same VFE, as expected. "
        "VFE in nats for the whole data, mean over seeds ± standard error. Means: the largest "
        "difference over the watched sites, best seeds, in posterior standard deviations.\n\n"
    )
    return head + records.table(header, lines)


def write(rows: list[dict[str, Any]], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    found = records.environment()
    found["command"] = found["command"].replace("benchmarks/", "benchmarks/trust/")
    for name, text in {
        "programs.json": json.dumps({"environment": found, "rows": rows}, indent=1) + "\n",
        "programs.md": summary(rows),
    }.items():
        staged = directory / f"{name}.tmp"
        staged.write_text(text)
        os.replace(staged, directory / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", nargs="+", help="these programs only; measured again")
    parser.add_argument("--quick", action="store_true", help="one seed, 500 steps")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--nuts", action="store_true", help="NUTS as well")
    parser.add_argument("--nuts-seconds", type=float, default=90.0, help="limit per program")
    parser.add_argument("--fresh", action="store_true", help="fit by NumPyro again as well")
    parser.add_argument("--reference", action="store_true", help="NumPyro's fits only")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/trust")
    parser.add_argument("--nuts-worker", metavar="NAME", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    from programs import PROGRAMS

    if settings.nuts_worker:
        sample_by_nuts(PROGRAMS[settings.nuts_worker])
        return
    warnings.simplefilter("ignore")
    file = settings.out / "programs.json"
    known = (
        {row["name"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    )
    seeds, rates = (1, RATES[:1]) if settings.quick else (settings.seeds, RATES)
    for name in settings.names or PROGRAMS:
        program = PROGRAMS[name]
        steps = 500 if settings.quick else program.steps
        row = {} if settings.fresh else known.get(name, {})
        if (row.get("steps"), row.get("seeds")) != (steps, seeds):
            row = {"nuts": row["nuts"]} if "nuts" in row else {}
            try:
                row |= measure_numpyro(program, steps, seeds, rates)
            except Exception as error:
                print(f"{name}: NumPyro itself fails. {message_of(error)}", flush=True)
                continue
        if not settings.reference and (settings.names or "minibatch" not in row):
            row = {name: row[name] for name in row if name in KEPT}
            row |= measure_bmrjax(program, row)
        if settings.nuts and "nuts" not in row:
            row["nuts"] = run_nuts(program, settings.nuts_seconds)
        with_nuts(row)
        known[name] = {"name": name, "notes": program.notes, "rows": number_of_rows(program), **row}
        write([known[name] for name in PROGRAMS if name in known], settings.out)
        print(
            name,
            f"{row['numpyro']['mean']:.2f}",
            row.get("full_batch"),
            row.get("minibatch"),
            row.get("nuts", {}).get("skipped", ""),
            flush=True,
        )


if __name__ == "__main__":
    main()

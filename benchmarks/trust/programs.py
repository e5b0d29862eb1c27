"""Does bmrjax fit other people's NumPyro programs as NumPyro does?

    python -m benchmarks.trust.programs            # all programs of tests/programs
    python -m benchmarks.trust.programs --nuts     # NUTS as well, within a time limit
    python -m benchmarks.trust.programs --names ar2_scan eight_schools --quick

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
import math
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_uniform
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import optax_to_numpyro

import bmrjax as bmr
from benchmarks.common import options, processes
from benchmarks.common.rows import Rows, table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from programs import PROGRAMS  # noqa: E402

RATES = (1e-2, 3e-2, 1e-1)
EPOCH, DRAWS = 100, 2000
WARMUP, SAMPLES = 500, 1000
WHO = ("numpyro", "bmrjax")
# What bmrjax has no part in, and is not measured again for it.
KEPT = ("steps", "seeds", "rate", "numpyro", "numpyro_posterior", "numpyro_seconds", "nuts")
TOLERANCE, MINIBATCH_TOLERANCE = 0.1, 1.0


def optimizer(rate: float, steps: int) -> Any:
    return optax.adabelief(optax.cosine_decay_schedule(rate, steps, alpha=0.01))


def judge(program: Any, guide: Any, params: Sequence[Any], key: Any) -> dict[str, Any]:
    """Return the VFE of the whole data by NumPyro's `Trace_ELBO`: its mean over seeds, and its error."""

    @jax.jit
    def measure(params, key):
        def once(key):
            given = program.model, guide, *program.args
            return Trace_ELBO().loss(key, params, *given, **program.kwargs)

        return jax.vmap(once)(jax.random.split(key, DRAWS))

    draws = [
        np.asarray(measure(one, jax.random.fold_in(key, i)), np.float64)
        for i, one in enumerate(params)
    ]
    values = [float(draw.mean()) for draw in draws]
    errors = [draw.std() / math.sqrt(DRAWS) for draw in draws]
    n, mean, spread = len(values), sum(values) / len(values), 0.0
    if n > 1:
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    sampling = math.sqrt(sum(error**2 for error in errors)) / n
    return {
        "seeds": values,
        "mean": mean,
        "error": float(math.hypot(sampling, spread)),
        "best": min(values),
        "best_error": float(errors[values.index(min(values))]),
    }


def posterior(program: Any, guide: Any, params: Any, key: Any) -> dict[str, Any]:
    """Return posterior means and standard deviations of the watched sites."""
    sample = Predictive(guide, params=params, num_samples=DRAWS)
    return summarize(program, sample(key, *program.args, **program.kwargs))


def summarize(program: Any, draws: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            what: function(draws[name], 0).ravel()[:12].tolist()
            for what, function in (("mean", np.mean), ("sd", np.std))
        }
        for name in program.watch
    }


def guide_of_numpyro(program: Any) -> Any:
    """Return `AutoNormal`, started within half of zero."""
    # Within two of zero, as by default, the first gradients of some programs are so large that AdaBelief
    # remembers them for thousands of steps.
    return AutoNormal(program.model, init_loc_fn=init_to_uniform(radius=0.5))


def start_of_numpyro(program: Any, steps: int, seed: int) -> Any:
    """Return what NumPyro's fit starts from, in the form that `sparsify` goes on from."""
    guide = guide_of_numpyro(program)
    svi = SVI(program.model, guide, optimizer(RATES[0], steps), Trace_ELBO())
    state = svi.init(jax.random.key(seed), *program.args, **program.kwargs)
    return bmr.Result(dict(svi.get_params(state)), {}, {}, number_of_rows(program))


def fit_numpyro(
    program: Any, rates: Sequence[float], steps: int, seeds: int
) -> tuple[Any, dict[float, list[Any]]]:
    """Return the guide of SVI with AutoNormal, and its parameters by learning rate and seed."""
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

    each = jax.vmap(run, in_axes=(None, 0))
    fitted = jax.jit(jax.vmap(each, in_axes=(0, None)))(jnp.array(rates), states)
    return guides[0], {
        rate: [jax.tree.map(lambda leaf, at=(i, k): leaf[at], fitted) for k in range(seeds)]
        for i, rate in enumerate(rates)
    }


def fit_bmrjax(
    program: Any, rate: float, steps: int, seed: int, batch_size: int | None, start: Any = None
) -> tuple[Any, Any]:
    """Return the guide and the parameters of `sparsify` without reduction."""
    result = bmr.sparsify(
        program.model,
        program.data,
        key=jax.random.key(seed),
        criterion=None,
        guide=bmr.infer.AutoMeanField(program.model),
        optimizer=optimizer(rate, steps),
        batch_size=batch_size,
        options=bmr.FitOptions(start=start, kl_warmup=0),
        steps_per_epoch=min(EPOCH, steps),
        num_epochs=max(1, steps // EPOCH),
        progress=False,
    )
    guide: Any = getattr(result, "unpruned_guide", result.guide)
    return guide, result.params


def number_of_rows(program: Any) -> int:
    """Return the longest leading axis of the arguments; 0 without arrays."""
    leaves = jax.tree.leaves((program.args, dict(program.kwargs)))
    return max((np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf)), default=0)


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
    gaps = []
    for name, other in theirs.items():
        pairs = zip(ours[name]["mean"], other["mean"], other["sd"], strict=True)
        gaps += [abs(a - b) / max(sd, 1e-9) for a, b, sd in pairs]
    return max(gaps, default=None)


def message_of(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def in_minibatches(program: Any, rate: float, steps: int, reference: dict[str, Any]) -> dict:
    """Fit in minibatches of a third of the rows: accepted with the same VFE, or refused by name."""
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
    begun = time.perf_counter()
    row: dict[str, Any] = {"steps": steps, "seeds": seeds}
    guide, fits = fit_numpyro(program, rates, steps, seeds)
    measured = {rate: judge(program, guide, fits[rate], jax.random.key(1)) for rate in fits}
    # The largest that converged: the other fit starts elsewhere, perhaps farther away.
    finite = {r: m["mean"] for r, m in measured.items() if math.isfinite(m["mean"])}
    rate = max(r for r, mean in finite.items() if mean <= min(finite.values()) + TOLERANCE)
    row["rate"], row["numpyro"] = rate, measured[rate]
    chosen = fits[rate][row["numpyro"]["seeds"].index(row["numpyro"]["best"])]
    row["numpyro_posterior"] = posterior(program, guide, chosen, jax.random.key(5))
    row["numpyro_seconds"] = time.perf_counter() - begun
    return row


def measure_bmrjax(program: Any, reference: dict[str, Any]) -> dict[str, Any]:
    """Return the part of bmrjax of the row of one program."""
    begun = time.perf_counter()
    row: dict[str, Any] = {}
    steps, rate, seeds = (reference[name] for name in ("steps", "rate", "seeds"))
    theirs = reference["numpyro"]

    def fitted(key: int, starts: Sequence[Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        pairs = [fit_bmrjax(program, rate, steps, i, None, one) for i, one in enumerate(starts)]
        guide, params = pairs[0][0], [params for _, params in pairs]
        return guide, params, judge(program, guide, params, jax.random.key(key))

    try:
        guide, params, measured = fitted(50, [None] * seeds)
    except Exception as error:
        row["full_batch"] = {"agree": False, "message": message_of(error)}
    else:
        row["bmrjax"] = measured
        row["full_batch"] = compare(measured, theirs, TOLERANCE)
        chosen = params[measured["seeds"].index(measured["best"])]
        row["bmrjax_posterior"] = posterior(program, guide, chosen, jax.random.key(6))
        row["distance"] = distance(row["bmrjax_posterior"], reference["numpyro_posterior"])
        if not row["full_batch"]["agree"]:
            starts = [start_of_numpyro(program, steps, seed) for seed in range(seeds)]
            row["same_start"] = compare(fitted(51, starts)[-1], theirs, TOLERANCE)
    row["minibatch"] = in_minibatches(program, rate, steps, theirs)
    row["bmrjax_seconds"] = time.perf_counter() - begun
    return row


def sample_by_nuts(program: Any) -> None:
    """Print the posterior by NUTS as JSON: the work of a process that can be stopped."""
    begun = time.perf_counter()
    mcmc = MCMC(NUTS(program.model), num_warmup=WARMUP, num_samples=SAMPLES, progress_bar=False)
    mcmc.run(jax.random.key(0), *program.args, extra_fields=("diverging",), **program.kwargs)
    draws = mcmc.get_samples()
    found = {
        "posterior": summarize(program, draws),
        "divergences": int(np.sum(mcmc.get_extra_fields()["diverging"])),
        "seconds": time.perf_counter() - begun,
    }
    processes.print_row(found)


def run_nuts(program: Any, limit: float) -> dict[str, Any]:
    if not program.nuts:
        return {"skipped": "learnable parameters"}
    command = [sys.executable, "-m", "benchmarks.trust.programs", "--nuts-worker", program.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"skipped": f"more than {limit:.0f} s"}
    if done.returncode:
        return {"skipped": "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return processes.printed_row(done.stdout)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _vfe(found: dict[str, Any] | None, value: str = "mean", sign: str = "") -> str:
    return f"{found[value]:{sign}.2f} ± {found['error']:.2f}" if found else "–"


def _full_batch(row: dict[str, Any]) -> str:
    fit, again = row.get("full_batch", {}), row.get("same_start")
    if fit.get("agree"):
        return "pass"
    if again is None:
        return f"**{fit.get('message', 'differs')[:80]}**"
    outcome = f"{_vfe(again, 'difference', '+')} from NumPyro's start"
    return outcome if again["agree"] else f"**{outcome}**"


def _minibatch(batch: dict[str, Any]) -> str:
    said = batch.get("outcome", "–")
    if said == "accepted":
        said += f", {batch['difference']:+.2f}"
    if batch.get("named"):
        said += f", `{batch['named'][0]}`"
    return said if batch.get("agree", True) else f"{said} **(expected: {batch['expected']})**"


def write_table(rows: Rows) -> None:
    """Write ``programs.md``."""
    lines = []
    for row in rows.rows:
        ours, nuts = row.get("bmrjax"), row.get("nuts", {})
        to_nuts = nuts.get("skipped", "–")
        if "posterior" in nuts:
            to_nuts = " / ".join(_number(row.get(f"{who}_to_nuts")) for who in WHO)
        lines.append([
            row["name"] + (f" ({row['notes']})" if row["notes"] else ""),
            str(row["rows"] or "–"),
            _vfe(row["numpyro"]),
            _vfe(ours),
            _vfe(ours and row["full_batch"], "difference", "+"),
            _number(row.get("distance")),
            to_nuts,
            _full_batch(row),
            _minibatch(row.get("minibatch", {})),
        ])  # fmt: skip
    passed, from_there, right = (
        sum(bool(row.get(name, {}).get("agree")) for row in rows.rows)
        for name in ("full_batch", "same_start", "minibatch")
    )
    head = (
        "# Programs: bmrjax without reduction beside NumPyro's SVI\n\n"
        f"{len(rows.rows)} programs. Full batch: {passed} with the same VFE, by NumPyro's `Trace_ELBO`, "
        f"and {from_there} more if started where NumPyro's fit starts: these have several optima, or "
        "a start from which the learning rate that suits NumPyro's is too small. "
        f"Minibatch: {right} refused by the name of a site, or fitted to the same VFE, as expected. "
        "VFE in nats for the whole data, mean over seeds ± standard error. Means: the largest "
        "difference over the watched sites, best seeds, in posterior standard deviations.\n\n"
    )
    header = "program | rows | VFE, NumPyro | VFE, bmrjax | difference | means differ, sd"
    header += " | to NUTS, sd: NumPyro / bmrjax | full batch | minibatch"
    rows.write_table(head + table(header, lines), "programs.md")


def updated(name: str, known: dict[str, Any], args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the row of a program with what was missing; None where NumPyro itself fails."""
    program = PROGRAMS[name]
    seeds, rates = (1, RATES[:1]) if args.quick else (args.seeds, RATES)
    steps = 500 if args.quick else program.steps
    row = {} if args.fresh else known
    if (row.get("steps"), row.get("seeds")) != (steps, seeds):
        row = {"nuts": row["nuts"]} if "nuts" in row else {}
        try:
            row |= measure_numpyro(program, steps, seeds, rates)
        except Exception as error:
            print(f"{name}: NumPyro itself fails. {message_of(error)}", flush=True)
            return None
    if args.names or "minibatch" not in row:
        row = {key: row[key] for key in row if key in KEPT}
        row |= measure_bmrjax(program, row)
    if args.nuts and "nuts" not in row:
        row["nuts"] = run_nuts(program, args.nuts_seconds)
    found = row.get("nuts", {}).get("posterior")
    for who in WHO:
        if found and f"{who}_posterior" in row:
            row[f"{who}_to_nuts"] = distance(row[f"{who}_posterior"], found)
    return {"name": name, "notes": program.notes, "rows": number_of_rows(program), **row}


def main() -> None:
    quick = "one seed, 500 steps"
    parser = options.parser(__doc__, "trust", seeds=2, data=False, quick=quick, report=True)
    parser.add_argument("--names", nargs="+", help="these programs only; measured again")
    parser.add_argument("--nuts", action="store_true", help="NUTS as well")
    parser.add_argument("--nuts-seconds", type=float, default=90.0, help="limit per program")
    parser.add_argument("--fresh", action="store_true", help="fit by NumPyro again as well")
    parser.add_argument("--nuts-worker", metavar="NAME", help=argparse.SUPPRESS)
    args = options.parse(parser)
    if args.nuts_worker:
        sample_by_nuts(PROGRAMS[args.nuts_worker])
        return
    warnings.simplefilter("ignore")
    rows = Rows(args.out, "programs.json", shared=True)
    known = {row["name"]: row for row in rows.rows}
    for name in [] if args.report else args.names or PROGRAMS:
        row = updated(name, known.get(name, {}), args)
        if row is not None:
            known[name] = row
            rows.rows = [known[name] for name in PROGRAMS if name in known]
            rows.save()
            shown = row.get("full_batch"), row.get("minibatch"), row.get("nuts", {}).get("skipped")
            print(name, f"{row['numpyro']['mean']:.2f}", *shown, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

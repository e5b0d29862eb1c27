"""A simulated study with dynamic causal models: does the connection that differs between groups survive?

Sixteen subjects in two groups of eight. Each has a bilinear dynamic causal model of three regions, a
NumPyro program with a `scan` integrator: V1 is driven by an input, motion modulates V1 to V5 and attention
modulates SPC to V5; the signal is that of a balloon model (Stephan et al. 2007, with its parameters fixed),
one scan every two seconds, with white noise. In patients, the connection from SPC to V5 is weaker by 0.3
Hz; all others have the same mean in both groups. Each subject is fitted by itself, by Laplace's
approximation, and `bmr.peb` receives means and covariances. Candidates are the differences of nine
parameters between groups, of which one is expected; a difference survives if its measured inclusion
probability is above 0.75, where Kass and Raftery (1995) begin to speak of positive evidence.

The effect, the noise and that rule were settled with pilots and with seeds 0 to 19 in view; seeds 20 to 39
are the test, run once.

    python -m benchmarks.trust.dcm --simulations 40
"""

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import potential_energy

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, table

REGIONS = ("V1", "V5", "SPC")
EDGES = ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0))  # from, to
CONNECTIONS = tuple(f"{REGIONS[a]}->{REGIONS[b]}" for a, b in EDGES)
MODULATIONS = ("motion on V1->V5", "attention on SPC->V5")
NAMES = (*CONNECTIONS, *MODULATIONS, "input to V1")
DIFFERENT, DIFFERENCE = "SPC->V5", -0.3
PER_GROUP = 8

# Means over controls, and standard deviations between subjects, in Hz.
MEANS = np.array([0.25, 0.05, 0.15, 0.2, 0.0, 0.05, 0.15, 0.1, 0.1])
BETWEEN = np.array([0.05] * 8 + [0.02])
PRIOR_SCALE, DECAY_SCALE, NOISE = 0.5, 0.25, 0.05
SECONDS_PER_SCAN, STEPS_PER_SCAN = 2.0, 4
SURVIVES = 0.75
# Seeds before this one were looked at when the rule was settled.
FIRST_TEST = 20

# Balloon model: decay and feedback of the vasodilatory signal, Grubb's exponent, transit time, resting
# extraction and volume, and the coefficients of the signal.
KAPPA, GAMMA, ALPHA, TRANSIT, RESTING, VOLUME = 0.64, 0.32, 0.32, 2.0, 0.4, 4.0
SIGNAL = (4.3 * 40.3 * RESTING * 0.04, 25.0 * RESTING * 0.04)


def inputs(scans: int) -> np.ndarray:
    """Return visual input, motion and attention at every step, (steps, 3), in blocks of eight scans."""
    block = np.arange(scans * STEPS_PER_SCAN) // (8 * STEPS_PER_SCAN)
    visual = block % 4 != 3
    motion = visual & (block % 4 != 0)
    attention = motion & (block % 8 >= 4) | (visual & (block % 8 == 2))
    return np.stack([visual, motion, attention], 1).astype(np.float32)


def bold(connection: Any, modulation: Any, drive: Any, decay: Any, u: Any) -> Any:
    """Integrate the three regions by Heun's method, and return their signals, (scans, 3), in percent."""
    step = SECONDS_PER_SCAN / STEPS_PER_SCAN
    source, target = (jnp.array(part) for part in zip(*EDGES, strict=True))
    fixed = jnp.diag(-0.5 * jnp.exp(decay)).at[target, source].set(connection)
    by_motion = jnp.zeros((3, 3)).at[1, 0].set(modulation[0])
    by_attention = jnp.zeros((3, 3)).at[1, 2].set(modulation[1])

    def slope(state: Any, now: Any) -> Any:
        x, vasodilation, log_flow, log_volume, log_content = state
        flow, volume, content = jnp.exp(log_flow), jnp.exp(log_volume), jnp.exp(log_content)
        coupling = fixed + now[1] * by_motion + now[2] * by_attention
        outflow = volume ** (1 / ALPHA)
        extracted = (1 - (1 - RESTING) ** (1 / flow)) / RESTING
        return jnp.stack(
            [
                (coupling * x).sum(1) + now[0] * drive * jnp.eye(3)[0],
                x - KAPPA * vasodilation - GAMMA * (flow - 1),
                vasodilation / flow,
                (flow - outflow) / (TRANSIT * volume),
                (flow * extracted - outflow * content / volume) / (TRANSIT * content),
            ]
        )

    def advance(state: Any, now: Any) -> Any:
        first = slope(state, now)
        second = slope(state + step * first, now)
        return state + 0.5 * step * (first + second), None

    def scan(state: Any, during: Any) -> Any:
        state, _ = jax.lax.scan(advance, state, during)
        volume, content = jnp.exp(state[3]), jnp.exp(state[4])
        return state, VOLUME * (SIGNAL[0] * (1 - content) + SIGNAL[1] * (1 - content / volume))

    _, found = jax.lax.scan(scan, jnp.zeros((5, 3)), u.reshape(-1, STEPS_PER_SCAN, 3))
    return found


def program(u: Any, y: Any = None) -> None:
    """The dynamic causal model of one subject."""

    def weights(name: str, count: int, scale: float) -> Any:
        return numpyro.sample(name, dist.Normal(0.0, scale).expand([count]).to_event(1))

    connection = weights("connection", 6, PRIOR_SCALE)
    modulation = weights("modulation", 2, PRIOR_SCALE)
    drive = weights("drive", 1, PRIOR_SCALE)
    decay = weights("decay", 3, DECAY_SCALE)
    noise_scale = numpyro.sample("noise_scale", dist.LogNormal(-2.0, 1.0))
    mean = bold(connection, modulation, drive, decay, u)
    numpyro.sample("y", dist.Normal(mean, noise_scale).to_event(2), obs=y)


def simulate(seed: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return signals of all subjects, (subjects, scans, 3), who is a patient, and the true parameters."""
    rng = np.random.default_rng([33, seed])
    patient = np.repeat([False, True], PER_GROUP)
    theta = MEANS + BETWEEN * rng.normal(size=(len(patient), len(NAMES)))
    theta[patient, NAMES.index(DIFFERENT)] += DIFFERENCE
    decay = 0.1 * rng.normal(size=(len(patient), 3))
    clean = jax.jit(jax.vmap(lambda t, d: bold(t[:6], t[6:8], t[8:], d, jnp.asarray(u))))
    signal = np.asarray(clean(jnp.asarray(theta, jnp.float32), jnp.asarray(decay, jnp.float32)))
    assert np.isfinite(signal).all(), "an unstable subject"
    return signal + NOISE * rng.normal(size=signal.shape), patient, theta


START = {
    "connection": jnp.zeros(6),
    "modulation": jnp.zeros(2),
    "drive": jnp.full(1, 0.1),
    "decay": jnp.zeros(3),
    "noise_scale": jnp.full((), -1.5),
}
JUDGED = ("connection", "modulation", "drive")


@jax.jit
def laplace(u: Any, y: Any) -> tuple[Any, Any, Any]:
    """Return mode and covariance of each subject's unconstrained parameters, and its last Newton decrement.

    Levenberg and Marquardt's damped Newton steps on the program's potential energy.
    """
    start, unpack = ravel_pytree(START)

    def fit(signal: Any) -> tuple[Any, Any, Any]:
        def potential(z: Any) -> Any:
            return potential_energy(program, (u, signal), {}, unpack(z))

        def gradient(z: Any) -> Any:
            value, slope = jax.value_and_grad(potential)(z)
            return slope, (value, slope)

        def derivatives(z: Any) -> Any:
            # Value, gradient and Hessian as one program, which is compiled once.
            hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(z)
            return value, slope, hessian

        def decrement(slope: Any, values: Any, vectors: Any) -> Any:
            return ((vectors.T @ slope) ** 2 / values).sum()

        def improve(carry: Any) -> Any:
            z, at, damping, left, step = carry
            values, vectors = at[2]
            move = vectors @ ((vectors.T @ at[1]) / (values * (1 + damping)))
            value, slope, hessian = derivatives(z - move)
            values, vectors = jnp.linalg.eigh(hessian)
            there = (value, slope, (jnp.maximum(jnp.abs(values), 1.0), vectors))
            better = value < at[0]
            damping = jnp.where(better, 0.2 * damping, 5 * damping + 0.1)
            left = jnp.where(better, decrement(slope, *there[2]), left)
            new, old = (z - move, there), (z, at)
            kept = jax.tree.map(lambda one, other: jnp.where(better, one, other), new, old)
            return *kept, damping, left, step + 1

        # The first proposal is the start itself, which is better than no value at all.
        size = len(start)
        nothing = (jnp.inf, jnp.zeros(size), (jnp.ones(size), jnp.eye(size)))
        z, (_, _, (values, vectors)), _, left, _ = jax.lax.while_loop(
            lambda carry: (carry[3] > 1e-4) & (carry[4] < 60),
            improve,
            (start, nothing, jnp.asarray(1.0), jnp.asarray(jnp.inf), 0),
        )
        return z, (vectors / values) @ vectors.T, left

    return jax.vmap(fit)(y)


def judged(mode: Any, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments of the connections, modulations and the input, in the order of `NAMES`."""
    where = ravel_pytree(START)[1](jnp.arange(mode.shape[1], dtype=jnp.float32))
    at = np.concatenate([np.asarray(where[name]) for name in JUDGED]).astype(int)
    return np.asarray(mode, np.float64)[:, at], np.asarray(covariance, np.float64)[:, at][:, :, at]


def study(seed: int, scans: int, *, verify: bool = True) -> dict[str, Any]:
    """Return which differences survive in one simulation."""
    u = inputs(scans)
    y, patient, theta = simulate(seed, u)
    start = time.process_time()
    mode, covariance, left = jax.block_until_ready(
        laplace(jnp.asarray(u), jnp.asarray(y, jnp.float32))
    )
    loc, spread = judged(mode, covariance)
    fitted = time.process_time()
    group = bmr.peb(
        design={"group": np.where(patient, "patient", "control")},
        loc=loc,
        covariance=spread,
        prior=bmr.reduction.Normal(0.0, PRIOR_SCALE),  # type: ignore[arg-type]
        names=list(NAMES),
    )
    found = group.reduce(forced=["mean"], expected=1, verify=verify)
    site = "group[patient]"
    prob = found.inclusion_prob[site]
    survives = {name for name, own in zip(NAMES, prob, strict=True) if own > SURVIVES}
    # The most probable submodel by the normal posterior of the effects; `chosen` is by measured evidence.
    models: Any = found.models()
    before = models.loc[models["prob"].idxmax()]
    chosen = {name for name in NAMES if before[f"{site}[{name}]"]}
    deviation = (loc - theta) / np.sqrt(np.einsum("inn->in", spread))
    return {
        "seed": seed,
        "recovered": DIFFERENT in survives,
        "false": sorted(survives - {DIFFERENT}),
        "chosen_recovered": DIFFERENT in chosen,
        "chosen_false": sorted(chosen - {DIFFERENT}),
        "prob": dict(zip(NAMES, prob.round(4).tolist(), strict=True)),
        "difference": float(group.mean[site][NAMES.index(DIFFERENT)]),
        "newton_decrement": float(np.max(left)),
        "z_score_sd": float(deviation.std()),
        "fit_cpu_seconds": fitted - start,
        "group_cpu_seconds": time.process_time() - fitted,
    }


def write_table(rows: Rows) -> None:
    """Write ``dcm.md``."""
    parts = (
        ("Seeds from 20 on, run once after the rule was settled", lambda seed: seed >= FIRST_TEST),
        ("Seeds 0 to 19, in view when it was", lambda seed: seed < FIRST_TEST),
    )
    text = ""
    for title, belongs in parts:
        found = [row for row in rows.rows if belongs(row["seed"])]
        text += f"{title}:\n\n{_table(found)}\n" if found else ""
    rows.write_table(text, "dcm.md")


def _table(found: list[dict[str, Any]]) -> str:
    count, lines = len(found), []
    for least in (0.5, SURVIVES, 0.9, 0.95):
        passed = [{name for name, p in row["prob"].items() if p > least} for row in found]
        recovered = sum(DIFFERENT in names for names in passed)
        false = sum(len(names - {DIFFERENT}) for names in passed)
        lines.append(
            [f"a measured probability above {least}", f"{recovered} of {count}", f"{false}"]
        )
    recovered = sum(row["chosen_recovered"] for row in found)
    false = sum(len(row["chosen_false"]) for row in found)
    where = "its place in the most probable submodel, before evidence is measured"
    lines.append([where, f"{recovered} of {count}", f"{false}"])
    text = table(
        f"a difference survives if it has | the right one | others, of {count * (len(NAMES) - 1)}",
        lines,
    )
    differences = [row["difference"] for row in found]
    spread = np.std(differences, ddof=1) if count > 1 else 0.0
    return text + (
        f"\nThe difference is {DIFFERENCE} Hz, estimated as {np.mean(differences):.3f} ± {spread:.3f} "
        f"(standard deviation over simulations). Errors of the subjects' parameters are "
        f"{np.mean([r['z_score_sd'] for r in found]):.2f} standard deviations of Laplace's approximation. "
        f"CPU seconds per simulation: {np.median([r['fit_cpu_seconds'] for r in found]):.1f} for the sixteen "
        f"fits, {np.median([r['group_cpu_seconds'] for r in found]):.0f} for the second level with 64 "
        f"submodels measured.\n"
    )


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=None, data=False, report=True)
    parser.add_argument("--simulations", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first simulation")
    parser.add_argument("--scans", type=int, default=160)
    args = options.parse(parser)
    warnings.simplefilter("ignore", bmr.FitWarning)
    rows = Rows(args.out, "dcm.json", shared=True)
    for seed in () if args.report else range(args.first, args.first + args.simulations):
        if not rows.has(seed=seed):
            rows.add(study(seed, args.scans))
            print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

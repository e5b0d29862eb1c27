"""Training steps under masks, and of the same fit once `compact_fit` has taken the removed units out.

    taskset -c 1 python -m benchmarks.costs.compact_fit

A perceptron 784-400-400-10 with normal weights is trained for some steps on random images, batches of 128.
Then a part of the units of each hidden layer, drawn at random, is masked, and both fits train on, in turns of
100 steps. A time is the median of the turns, by the clock. "Taken out in" is what `compact_fit` takes, and
"compiled in" what compiling the smaller step takes, both of the first seed: later ones find compiled programs
in the process. Both are paid each time that a fit is compacted. The last column but one compares the networks
at the posterior mean before and after, on 256 images.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, environment, group, mean_and_error, table

WIDTH, BATCH, STEPS = 400, 128, 100
FRACTIONS = (0.5, 0.75, 0.9)
ESTIMATORS = ("global", "local")


def images(seed, rows=12_800):
    """Return random images with labels that depend on them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 784)).astype(np.float32)
    return x, np.argmax(x @ rng.standard_normal((784, 10)), 1).astype(np.int32)


def begun(seed, estimator, fraction):
    """Return a fit, and its state with masks."""
    network = bmr.zoo.MLP(784, (WIDTH, WIDTH), 10, key=jax.random.key(seed))
    units = bmr.structure.unit_groups(network, jnp.ones(784))
    fit = bmr.Fit(
        bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0)),
        images(seed),
        criterion=bmr.criteria.Shrinkage(groups=units),
        batch_size=BATCH,
        options=bmr.FitOptions(estimator=estimator),
    )
    keys = jax.random.split(jax.random.key(seed + 1))
    state, _ = fit.epoch(fit.init(keys[0]), keys[1], num_steps=STEPS)
    rng, gone = np.random.default_rng(seed), np.zeros(units.count, bool)
    for kind in units.kinds:
        gone[rng.permutation(kind.groups)[: round(fraction * len(kind.groups))]] = True
    keep = {name: mask & ~gone[np.asarray(units.ids[name])] for name, mask in state.keep.items()}
    return fit, bmr.FitState(state.svi, keep, state.memory)


def turn(fit, state, key):
    """Return the state after a turn, and the milliseconds of a step."""
    begin = time.perf_counter()
    state, info = jax.block_until_ready(fit.epoch(state, key, num_steps=STEPS))
    assert np.isfinite(info.losses).all()
    return state, 1e3 * (time.perf_counter() - begin) / STEPS


def outputs(fit, state, x):
    network = fit.result(state).network(x[:2])["net"]
    return jax.vmap(network)(x)


def measure(seed, estimator, fraction, repeats):
    """Return the row of a fit."""
    fit, state = begun(seed, estimator, fraction)
    begin = time.perf_counter()
    small = bmr.compact_fit(fit, state)
    compact_seconds = time.perf_counter() - begin
    x = jnp.asarray(images(seed)[0][:256])
    before, after = outputs(fit, state, x), outputs(small.fit, small.state, x)
    sides = {"masked": (fit, state), "compact": (small.fit, small.state)}
    times = {name: [] for name in sides}
    for i in range(repeats + 1):
        for name, (its, now) in sides.items():
            now, took = turn(its, now, jax.random.key(i))
            sides[name] = its, now
            if i:  # the first compiles
                times[name].append(took)
    masked, compacted = (statistics.median(times[name]) for name in sides)
    report = small.networks["net"]
    return {
        "estimator": estimator,
        "fraction": fraction,
        "seed": seed,
        "parameters": [report.before.parameters, report.after.parameters],
        "masked_ms": masked,
        "compact_ms": compacted,
        "ratio": masked / compacted,
        "turns": times,
        "compact_seconds": compact_seconds,
        "compile_seconds": small.fit.engine.compile_seconds,
        "difference": float(jnp.abs(before - after).max()),
        **environment(),
    }


def line(rows):
    """Return the line of a setting in the table."""

    def over(key, digits):
        return mean_and_error([row[key] for row in rows], digits)

    first = rows[0]
    return [
        first["estimator"],
        f"{first['fraction']:.0%}",
        " → ".join(f"{n:,}" for n in first["parameters"]),
        over("masked_ms", 2),
        over("compact_ms", 2),
        f"{over('ratio', 1)}×",
        f"{first['compact_seconds']:.1f}",
        f"{first['compile_seconds']:.1f}",
        f"{max(row['difference'] for row in rows):.0e}",
        str(len(rows)),
    ]


def write_table(rows: Rows) -> None:
    """Write the table of the rows."""
    grouped = group(rows.rows, lambda row: (row["estimator"], row["fraction"]))
    header = "estimator | units removed | parameters | ms per step, masked | compacted | ratio"
    header += " | taken out in, s | compiled in, s | largest difference | seeds"
    rows.write_table(table(header, [line(found) for found in grouped.values()]))


def main() -> None:
    """Measure the fits and write the table."""
    parser = options.parser(__doc__, "compact_fit", data=False, quick="one fit, few turns")
    parser.add_argument("--repeats", type=int, default=11)
    args = options.parse(parser)
    rows = Rows(args.out)
    for seed in range(1 if args.quick else args.seeds):
        for estimator in ESTIMATORS[:1] if args.quick else ESTIMATORS:
            for fraction in (0.75,) if args.quick else FRACTIONS:
                what = {"estimator": estimator, "fraction": fraction, "seed": seed}
                if not rows.has(**what):
                    row = measure(seed, estimator, fraction, 3 if args.quick else args.repeats)
                    rows.add(row)
                    print(*line([row]), sep=" | ", flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

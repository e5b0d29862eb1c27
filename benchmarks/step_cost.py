"""What a mean-field SVI step costs, against a deterministic step of the same network in the same run.

    python benchmarks/step_cost.py --out benchmarks/results/step_cost

Random data: only time is measured. Both sides run in their fastest form (one fused loop, or a
compiled step that is dispatched), in turn, with donated state.
"""

import argparse
import resource
import statistics
import time
from pathlib import Path

import records

STEPS = {"lenet5": 20, "mlp 5x400": 100}


def networks():
    """Return name to (network, one input's shape)."""
    import jax

    import bmrjax as bmr

    key = jax.random.key(0)
    return {
        "lenet5": (bmr.zoo.LeNet5(key=key), (1, 28, 28)),
        "mlp 5x400": (bmr.zoo.MLP(784, [400] * 5, 10, key=key), (1, 28, 28)),
    }


def deterministic(network, data, batch_size, mode):
    """Return a function that takes n AdaBelief steps on the cross entropy."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    from bmrjax.infer.loop import Loop

    params, static = eqx.partition(network, eqx.is_inexact_array)
    optimizer = optax.adabelief(1e-3)

    def loss(params, x, y):
        logits = jax.vmap(eqx.combine(params, static))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, i, data):
        params, state = carry
        rows = (i * batch_size) % (len(data[0]) - batch_size)
        x, y = (jax.lax.dynamic_slice_in_dim(a, rows, batch_size) for a in data)
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state)
        return optax.apply_updates(params, updates), state

    loop = Loop(step, mode)
    box = [jax.tree.map(jnp.array, (params, optimizer.init(params)))]

    def run(n):
        box[0] = jax.block_until_ready(loop(box[0], n, data))

    return run


def mean_field(network, data, batch_size, mode):
    """Return a function that takes n steps of the engine, and the engine with its state."""
    import jax
    import optax
    from numpyro.infer import TraceMeanField_ELBO

    import bmrjax as bmr
    from bmrjax.infer import AutoMeanField, Engine
    from bmrjax.programs import classifier

    model = classifier(network, bmr.priors.Flat())
    guide = AutoMeanField(model)
    engine = Engine(
        model,
        guide,
        optimizer=optax.adabelief(1e-2),
        loss=TraceMeanField_ELBO(),
        num_data=len(data[0]),
        batch_size=batch_size,
        loop=mode,
    )
    batch = tuple(a[:batch_size] for a in data)
    state = engine.init(jax.random.key(0), batch)
    found = engine.site_posteriors(state, batch)
    keep = {name: jax.numpy.ones(q.loc.shape, bool) for name, q in found.posterior.items()}
    box = [state]

    def run(n):
        state, info = engine.epoch(box[0], keep, data, jax.random.key(1), num_steps=n)
        jax.block_until_ready(info.losses)
        box[0] = state

    return run, engine, box, keep, batch


def interleaved(runs, n, repeats):
    """Return name to milliseconds a step, each repeat of all in turn."""
    for run in runs.values():
        run(n)
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            run(n)
            times[name].append(1e3 * (time.perf_counter() - begin) / n)
    return times


def reduction_ms(engine, state, keep, batch, repeats):
    """Return the milliseconds of each reduction: posteriors, criterion, cap."""
    import jax
    import jax.numpy as jnp

    import bmrjax as bmr
    from bmrjax.criteria.reduce_once import jit_reduce

    criterion = bmr.criteria.SpikeAndSlab()
    found = engine.site_posteriors(state, batch)
    reduce = jit_reduce(criterion, bmr.criteria.smallest_magnitude_first)
    memory = criterion.init(found.posterior)
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        found = engine.site_posteriors(state, batch)
        args = found, keep, memory, jnp.float32(0.5)
        jax.block_until_ready(reduce(*args).keep)
        times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def main() -> None:
    """Measure both networks and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/step_cost"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    import jax

    repeats = 3 if args.quick else args.repeats
    rows = records.Rows(args.out)
    rows.rows = []
    for name, (network, shape) in networks().items():
        key = jax.random.key(0)
        data = (
            jax.random.normal(key, (4096, *shape)),
            jax.random.randint(key, (4096,), 0, 10),
        )
        runs, fits = {}, {}
        for mode in ("fused", "dispatch"):
            runs[f"deterministic, {mode}"] = deterministic(network, data, 128, mode)
            fits[mode] = mean_field(network, data, 128, mode)
            runs[f"mean-field, {mode}"] = fits[mode][0]
        times = interleaved(runs, STEPS[name], repeats)
        median = {k: statistics.median(v) for k, v in times.items()}
        best = {
            side: min((k for k in median if k.startswith(side)), key=median.__getitem__)
            for side in ("deterministic", "mean-field")
        }
        _, engine, box, keep, batch = fits["fused"]
        reducing = statistics.median(reduction_ms(engine, box[0], keep, batch, repeats))
        pairs = zip(times[best["mean-field"]], times[best["deterministic"]], strict=True)
        ratios = sorted(a / b for a, b in pairs)
        rows.add(
            {
                "network": name,
                "batch_size": 128,
                "milliseconds_a_step": times,
                "best": best,
                "ratio_median": statistics.median(ratios),
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
                "reduction_ms": reducing,
                "reduction_share_of_500_steps": reducing / (500 * median[best["mean-field"]]),
                "compile_seconds": engine.compile_seconds,
                "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                **records.environment(),
            }
        )
    lines = [
        [
            row["network"],
            *(
                f"{statistics.median(row['milliseconds_a_step'][row['best'][side]]):.1f} "
                f"({row['best'][side].split(', ')[1]})"
                for side in ("deterministic", "mean-field")
            ),
            f"{row['ratio_median']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})",
            f"{row['reduction_ms']:.1f}",
            f"{row['reduction_share_of_500_steps']:.2%}",
        ]
        for row in rows.rows
    ]
    header = [
        "network, batch 128",
        "deterministic step, ms",
        "mean-field step, ms",
        "ratio (range)",
        "reduction, ms",
        "share of 500 steps",
    ]
    (args.out / "table.md").write_text(records.table(header, lines))


if __name__ == "__main__":
    main()

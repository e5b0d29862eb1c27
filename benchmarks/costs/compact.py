"""What `compact` makes of networks that lost nine tenths of their units, against the same networks before.

    taskset -c 1 python -m benchmarks.costs.compact

The units are those that `structure.unit_groups` finds: neurons, filters, channels with their normalisation,
attention heads. Nine tenths of those of each layer, drawn at random, get weights of zero, at least one
stays. Weights are initial ones, with noise on all vectors and running statistics, so that no layer
passes its input on as it is: only sizes, exactness and time are measured.

Time is that of XLA, which takes longest on a CPU for a few wide convolutions on few pixels: most of the
VGG's goes into its last three, of 512 channels on 2×2 pixels, so it gains more than its operations say.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bmrjax as bmr
from benchmarks.common import networks, options
from benchmarks.common.rows import Rows, environment, group, mean_and_error, table

FRACTION = 0.9
# The batches that time is measured on; of 256 where that takes less than seconds a call.
BATCHES = {
    "LeNet-500-300": (1, 256),
    "LeNet-5": (1, 256),
    "LeNet-5-Caffe": (1, 256),
    "VGG": (1, 32),
    "ViT": (1, 32),
    "ResNet-18": (1, 32),
    "ResNet-50": (1, 8),
}
QUICK = ("LeNet-500-300", "LeNet-5", "LeNet-5-Caffe")
SHAPES = {"LeNet-500-300": (784,), "LeNet-5": (1, 28, 28), "LeNet-5-Caffe": (1, 28, 28)}
COLOUR = (3, 32, 32)


def removed(groups, rng):
    """Return a mask of the groups that go, and how many units there are and stay."""
    ids = {name: np.asarray(found) for name, found in groups.ids.items()}
    sizes = np.bincount(np.concatenate([found.ravel() for found in ids.values()]))
    gone, seen = np.zeros(len(sizes), bool), sizes < 2  # a weight on its own is no unit
    total = stay = 0
    for found in ids.values():
        layer = np.unique(found)
        layer = layer[~seen[layer]]
        seen[layer] = True
        if len(layer):
            keep = max(1, round((1 - FRACTION) * len(layer)))
            gone[rng.permutation(layer)[keep:]] = True
            total, stay = total + len(layer), stay + keep
    return gone, total, stay


def masked(network, groups, gone, rng):
    """Return the network with noise on its vectors, and zeros for the units that go."""

    def noisy(a):
        return np.asarray(a) + 0.1 * np.abs(rng.standard_normal(a.shape))

    def change(path, leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        found = noisy(leaf) if leaf.ndim < 2 or leaf.size == leaf.shape[0] else np.asarray(leaf)
        name = "net." + jax.tree_util.keystr(path, simple=True, separator=".")
        return jnp.asarray(np.where(gone[np.asarray(groups.ids[name])], 0, found), leaf.dtype)

    if not isinstance(network, tuple):
        return jax.tree_util.tree_map_with_path(change, network)
    module, state = network
    state = jax.tree.map(
        lambda a: jnp.asarray(noisy(a), a.dtype) if eqx.is_inexact_array(a) else a, state
    )
    return jax.tree_util.tree_map_with_path(change, module), state


def difference(before, after, shape):
    """Return the largest difference of an output on eight random inputs, relative to the largest."""

    def outputs(network, x):
        if isinstance(network, tuple):
            return jax.vmap(lambda v: eqx.nn.inference_mode(network[0])(v, network[1])[0])(x)
        return jax.vmap(eqx.nn.inference_mode(network))(x)

    x = jax.random.normal(jax.random.key(7), (8, *shape))
    a, b = (eqx.filter_jit(outputs)(network, x) for network in (before, after))
    return float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(a).max(), 1))


def measure(name, seed, repeats):
    """Return the row of a network."""
    rng = np.random.default_rng(seed)
    shape = SHAPES.get(name, COLOUR)
    network = networks.build(name, seed, **({"in_channels": 3} if name == "ViT" else {}))
    groups = bmr.structure.unit_groups(network, jnp.ones(shape))
    gone, units, stay = removed(groups, rng)
    network = masked(network, groups, gone, rng)
    begin, work = time.perf_counter(), time.process_time()
    found = bmr.compact(network, jnp.ones(shape), drop_inputs=True)
    seconds, work = time.perf_counter() - begin, time.process_time() - work
    times = found.latency(batch_sizes=BATCHES[name], repeats=repeats)
    return {
        "network": name,
        "seed": seed,
        "units": units,
        "units_kept": stay,
        "before": vars(found.before),
        "after": vars(found.after),
        "error": difference(network, found.network, shape),
        "latency_ms": [{**vars(row), "speedup": row.speedup} for row in times],
        "repeats": repeats,
        "compact_seconds": seconds,
        "compact_cpu_seconds": work,
        **environment(),
    }


def line(name, rows):
    """Return the line of a network in the table."""

    def over(value, digits):
        return mean_and_error([value(row) for row in rows], digits)

    first = rows[0]
    cells = [name, f"{first['units']:,} → {first['units_kept']:,}"]
    for what, unit, digits in (("parameters", 1e6, 3), ("flops", 1e6, 2), ("bytes", 2**10, 0)):
        before, after = (first[side][what] / unit for side in ("before", "after"))
        ratio = over(lambda row, what=what: row["before"][what] / row["after"][what], 1)
        cells.append(f"{before:,.{digits}f} → {after:,.{digits}f} ({ratio}×)")
    for size, *times in zip(BATCHES[name], *(row["latency_ms"] for row in rows), strict=True):
        values = [
            mean_and_error([t[what] for t in times], digits)
            for what, digits in (("before", 2), ("after", 2), ("speedup", 1))
        ]
        cells.append(f"{size}: {values[0]} → {values[1]} ({values[2]}×)")
    cells.append(f"{max(row['error'] for row in rows):.0e}")
    cells.append(f"{over(lambda row: row['compact_cpu_seconds'], 0)}")
    return [*cells, str(len(rows))]


def write_table(rows: Rows) -> None:
    grouped = group(rows.rows, "network")
    lines = [line(name, grouped[name]) for name in BATCHES if name in grouped]
    header = "network | units | parameters, millions | MFLOPs per data point | KiB | ms for a batch"
    header += " | ms for a larger batch | error | compact, CPU s | seeds"
    rows.write_table(table(header, lines))


def main() -> None:
    """Measure the networks and write the table."""
    parser = options.parser(__doc__, "compact", data=False, quick="the small networks, once")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--nets", nargs="+", default=None, choices=BATCHES)
    parser.add_argument("--machine", default="", help="what to say of the machine in each row")
    args = options.parse(parser)
    rows = Rows(args.out)
    for seed in range(1 if args.quick else args.seeds):
        for name in args.nets or (QUICK if args.quick else BATCHES):
            if not rows.has(network=name, seed=seed):
                row = measure(name, seed, 3 if args.quick else args.repeats)
                rows.add({**row, "machine": args.machine})
                print(*line(name, [row]), sep=" | ", flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()

"""One network in many files: layouts, coders and quantisers, in bytes and in accuracy of what is decoded.

    python -m benchmarks.costs.codec --data-root DIR --machine "2 cores"

The networks come from `bmrjax sparsify` on MNIST, with 5,000 of the training data kept out: the point of the
path with the best free energy, and the point that predicts the data kept out best; and, for more accuracy,
from `retrained`. The rate of rate-distortion is the largest of a list up to which the negative log
likelihood of the data kept out rises by a hundredth at most; test data decide no rate. Finished runs in
--runs are not run again.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import compression, options, processes
from benchmarks.common.rows import Rows, environment, group, means, table
from benchmarks.costs.retrained import retrained
from bmrjax import codec, compact, data, zoo
from bmrjax.cli.run_documents import read_results
from bmrjax.cli.run_sparsify import split_off
from bmrjax.cli.saved_run import loaded_run
from bmrjax.run.point import best
from bmrjax.structure import named_arrays

LINE = (
    "sparsify --data mnist --net mlp --hidden 300 100 --method bmr --num-epochs 100 --steps-per-epoch 500 "
    "--batch-size 128 --wait 15 --refit 2 --cooldown 25 --fraction 0.25 --mask-prior --validation 0.0833 "
    "--kl-warmup-epochs 0"
)
QUICK = (
    "sparsify --data digits --net mlp --hidden 100 100 --method bmr --num-epochs 30 --steps-per-epoch 50 "
    "--refit 2 --fraction 0.25 --mask-prior --validation 0.15 --kl-warmup-epochs 0"
)
# Federici, Ullrich and Welling (2017), Table 2.
PUBLISHED = (
    ("the paper: VD", 131, 0.9805),
    ("the paper: VD and soft weight sharing", 161, 0.9824),
)
KMEANS, GAPS = {"quantiser": codec.KMeans(64)}, {"layout": codec.Gaps()}
PAPER = {**KMEANS, "layout": codec.CSR(5), "coder": "huffman"}
# Name to the options of `encode`, and whether the network is compacted.
METHODS: dict[str, tuple[dict[str, Any], bool]] = {
    "k-means, CSR, Huffman (the paper's file)": (PAPER, False),
    "k-means, CSR, range": ({**PAPER, "coder": "range"}, False),
    "k-means, gaps, Huffman": ({**PAPER, **GAPS}, False),
    "k-means, gaps, range": ({**KMEANS, **GAPS}, False),
    "k-means, gaps, ANS": ({**KMEANS, **GAPS, "coder": "ans"}, False),
    "k-means, bitmap, range": ({**KMEANS, "layout": codec.Bitmap()}, False),
    "k-means, smallest, range": (KMEANS, False),
    "k-means of 16, smallest, range": ({"quantiser": codec.KMeans(16)}, False),
    "uniform, smallest, range": ({"quantiser": codec.Uniform(0.05)}, False),
    "rate-distortion": ({"quantiser": codec.RateDistortion}, False),
    "rate-distortion, compact": ({"quantiser": codec.RateDistortion}, True),
    "relative-entropy, compact": ({"quantiser": codec.RelativeEntropy()}, True),
}


def networks(folder: Path, root: Path | None, *, further: bool) -> Iterator[tuple]:
    """Yield networks: name, network, scales, data kept out, test data, an example input."""
    settings, result = loaded_run(folder, read_results(folder))
    found = data.load_dataset(settings.data, data_root=root)
    _, validation = split_off(found.train, settings)
    example = found.test[0][:2]
    points = {"best free energy": result.at(best(result.path)), "most predictive": result}
    for name, point in points.items():
        scales = codec.posterior_scales(point, example)
        yield name, point.network(example)["net"], scales, validation, found.test, example[0]
    if further:
        number = folder.name.rpartition("-")[2]
        network, scales, kept_out = retrained(folder.with_name(f"retrained-{number}"), found)
        yield "trained further", network, scales, kept_out, found.test, example[0]


def rows_of(found: tuple, seed: int, rows: Rows) -> None:
    """Measure what is missing of a network."""
    name, whole, scales, validation, test, example = found
    if all(rows.has(network=name, seed=seed, method=m) for m in ["in memory", *METHODS]):
        return
    small = compact(whole, example, drop_inputs=True)
    arrays = [np.asarray(a) for a in named_arrays(whole).values()]
    kept, numbers = sum(np.count_nonzero(a) for a in arrays), sum(a.size for a in arrays)
    about = {"network": name, "seed": seed, "kept": int(kept), **environment()}
    splits = {"validation": validation, "test": test}
    before = compression.split_scores(whole, **splits)
    if not rows.has(network=name, seed=seed, method="in memory"):
        plain = {"bytes": 4 * numbers, "ratio": 1.0, "entries": int(kept)}
        rows.add({**about, "method": "in memory", **plain, **before})

    def nll(network: Any) -> float:
        return compression.split_scores(network, validation=validation)["validation_nll"]

    for method, (given, compacted) in METHODS.items():
        if rows.has(network=name, seed=seed, method=method):
            continue
        network, encoding, rate = small if compacted else whole, dict(given), None
        if encoding["quantiser"] is codec.RateDistortion:
            most = (1 + compression.LOSS) * before["validation_nll"]
            rate = compression.chosen_rate(network, scales, nll, most)
            encoding["quantiser"] = codec.RateDistortion(rate)
        if not isinstance(encoding["quantiser"], codec.KMeans | codec.Uniform):
            encoding["posterior_scale"] = scales
        decoded, row = compression.measure(network, encoding)
        measured = compression.split_scores(decoded, **splits)
        rows.add({**about, "method": method, "rate": rate, **row, **measured})
        print(name, method, row["bytes"], measured["test_accuracy"], flush=True)


def pruned(network: Any, density: float, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return a network with random weights removed, and posterior scales."""

    def change(leaf: Any) -> Any:
        if getattr(leaf, "ndim", 0) < 2:
            return leaf
        return jnp.asarray(leaf * (rng.random(leaf.shape) < density))

    network = jax.tree.map(change, network)
    arrays = named_arrays(network).items()
    return network, {n: abs(rng.normal(0, 0.003, a.shape)) + 0.001 for n, a in arrays}


def speed_of(name: str, repeats: int) -> dict[str, Any]:
    """Return the row of how long a network of random weights takes."""
    build, density = {
        "LeNet-5": (lambda key: zoo.LeNet5(key=key), 0.1),
        "10 million weights": (lambda key: zoo.MLP(784, (3000, 2550), 10, key=key), 0.05),
    }[name]
    network, scales = pruned(build(jax.random.key(0)), density, np.random.default_rng(0))
    timings = {}
    for what, encoding in {
        "rate-distortion": {"posterior_scale": scales},
        "k-means, CSR, Huffman": {**PAPER, "layout": codec.CSR(8)},
    }.items():
        each = [compression.measure(network, encoding)[1] for _ in range(1 + repeats)][1:]
        sizes = {key: each[0][key] for key in ("bytes", "original")}
        seconds = ("encode_seconds", "decode_seconds")
        sizes |= {key: statistics.median(row[key] for row in each) for key in seconds}
        timings[what] = sizes
    return {"speed": name, "density": density, "repeats": repeats, "timings": timings}


def write_table(rows: Rows) -> None:
    """Write ``table.md``: the files of each network, and the times."""
    lines, timed = [], []
    files = [row for row in rows.rows if "network" in row]
    for (network, method), found in group(files, "network method").items():
        (kept,) = means(found, kept=0)
        rates = ", ".join(str(row["rate"]) for row in found if row.get("rate"))
        cells = means(found, bytes=0, ratio=0, test_accuracy=4, test_nll=4)
        lines.append([f"{network}, {kept} weights", method, *cells, rates or "–"])
    lines += [[name, "–", "–", str(r), f"{a:.4f}", "–", "–"] for name, r, a in PUBLISHED]
    for row in (row for row in rows.rows if "speed" in row):
        for what, each in row["timings"].items():
            size = f"{row['density']:.0%} of {each['original'] // 4:,} weights"
            seconds = [f"{each[key]:.2f}" for key in ("encode_seconds", "decode_seconds")]
            cells = [what, f"{each['bytes']:,}", *seconds, str(row["repeats"])]
            timed.append([f"{row['speed']}, {size}", *cells])
    header = "network | file | bytes | ratio | accuracy | NLL, nats | rate, nats per bit"
    second = "network | file | bytes | encoding, s | decoding, s | repeats"
    rows.write_table(table(header, lines) + "\n" + table(second, timed))


def main() -> None:
    """Run what is missing, measure, and write the tables."""
    parser = options.parser(
        __doc__, "codec", seeds=1, quick="one short run on digits, into runs/", jobs=True
    )
    parser.add_argument("--machine", default="", help="what to say of the machine in each row")
    args = options.parse(parser)
    name, line = ("digits", QUICK) if args.quick else ("mnist", LINE)
    seeds = range(1 if args.quick else args.seeds)
    commands = {f"{name}-{seed}": [*line.split(), "--seed", str(seed)] for seed in seeds}
    processes.run_missing(commands, args)
    rows = Rows(args.out)
    for seed, run in enumerate(commands):
        # What takes longest, once.
        further = not args.quick and not seed
        for found in networks(args.runs / run, args.data_root, further=further):
            rows_of(found, seed, rows)
    for name in ("LeNet-5", *(() if args.quick else ("10 million weights",))):
        if not rows.has(speed=name):
            rows.add({**speed_of(name, 3), "machine": args.machine, **environment()})
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()

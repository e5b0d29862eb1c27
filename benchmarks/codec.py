"""One network in many files: layouts, coders and quantisers, in bytes and in accuracy of what is decoded.

    python benchmarks/codec.py --data-root DIR --machine "2 cores"

The networks come from `bmrjax sparsify` on MNIST, with 5,000 of the training data kept out: the point of the
path with the best free energy, and the point that predicts the data kept out best; and, for more accuracy,
from `retrained.py`. The rate of rate-distortion is the largest of a list up to which the negative log
likelihood of the data kept out rises by a hundredth at most; test data decide no rate. Finished runs in
--runs are not run again.
"""

import argparse
import statistics
import time
from pathlib import Path

import cli_runs
import records

LINE = (
    "sparsify --data mnist --net mlp --hidden 300 100 --method bmr --epochs 100 --steps-per-epoch 500 "
    "--batch-size 128 --wait 15 --refit 2 --cooldown 25 --fraction 0.25 --mask-prior --validation 0.0833"
)
QUICK = (
    "sparsify --data digits --net mlp --hidden 100 100 --method bmr --epochs 30 --steps-per-epoch 50 "
    "--refit 2 --fraction 0.25 --mask-prior --validation 0.15"
)
RATES = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
LOSS = 0.01
# Federici, Ullrich and Welling (2017), Table 2.
PUBLISHED = (
    ("the paper: VD", 131, 0.9805),
    ("the paper: VD and soft weight sharing", 161, 0.9824),
)


def methods():
    """Return what is compared: name to the options of `encode`, and whether the network is compacted."""
    from bmrjax import codec

    kmeans, csr, gaps = codec.KMeans(64), codec.CSR(5), codec.Gaps()
    paper = {"quantiser": kmeans, "layout": csr, "coder": "huffman"}
    return {
        "k-means, CSR, Huffman (the paper's file)": (paper, False),
        "k-means, CSR, range": ({**paper, "coder": "range"}, False),
        "k-means, gaps, Huffman": ({**paper, "layout": gaps}, False),
        "k-means, gaps, range": ({"quantiser": kmeans, "layout": gaps}, False),
        "k-means, gaps, ANS": ({"quantiser": kmeans, "layout": gaps, "coder": "ans"}, False),
        "k-means, bitmap, range": ({"quantiser": kmeans, "layout": codec.Bitmap()}, False),
        "k-means, smallest, range": ({"quantiser": kmeans}, False),
        "k-means of 16, smallest, range": ({"quantiser": codec.KMeans(16)}, False),
        "uniform, smallest, range": ({"quantiser": codec.Uniform(0.05)}, False),
        "rate-distortion": ({"quantiser": codec.RateDistortion}, False),
        "rate-distortion, compact": ({"quantiser": codec.RateDistortion}, True),
        "relative-entropy, compact": ({"quantiser": codec.RelativeEntropy()}, True),
    }


def scores(network, data):
    """Return the accuracy of one network, and its negative log likelihood in nats per data point."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bmrjax.structure.network_arrays import equinox_batched

    run = jax.jit(equinox_batched(network))
    logits = jnp.concatenate([run(data[0][i : i + 5000]) for i in range(0, len(data[0]), 5000)])
    log_prob = jax.nn.log_softmax(logits)[np.arange(len(logits)), np.asarray(data[1])]
    right = np.asarray(logits).argmax(1) == np.asarray(data[1])
    return float(right.mean()), -float(log_prob.mean())


def timed(function):
    """Return what a function returns, and seconds."""
    begin = time.perf_counter()
    found = function()
    return found, time.perf_counter() - begin


def measure(network, options):
    """Return the bytes of a network, the decoded network, and a row."""
    from bmrjax import codec

    data, encoding = timed(lambda: codec.encode(network, **options))
    decoded, decoding = timed(lambda: codec.decode(data))
    report = codec.inspect_file(data)
    return decoded, {
        "bytes": len(data),
        "ratio": report.ratio,
        "original": report.original,
        "entries": report.entries,
        "description": report.description,
        "arrays": [vars(row) for row in report.rows],
        "encode_seconds": encoding,
        "decode_seconds": decoding,
    }


def chosen_rate(network, scales, validation, most):
    """Return the largest rate at which the decoded network is good enough on data kept out."""
    from bmrjax import codec

    good = RATES[0]
    for rate in RATES:
        quantiser = codec.RateDistortion(rate)
        decoded = codec.decode(codec.encode(network, posterior_scale=scales, quantiser=quantiser))
        if scores(decoded, validation)[1] > most:
            break
        good = rate
    return good


def networks(folder, root, *, further):
    """Yield networks: name, network, scales, data kept out, test data, an example input."""
    from bmrjax import codec, data
    from bmrjax.cli.documents import read_json
    from bmrjax.cli.run_saved import loaded_run
    from bmrjax.cli.run_sparsify import split_off
    from bmrjax.run.point import best

    options, result = loaded_run(folder, read_json(folder))
    found = data.load_dataset(options.data, data_root=root)
    _, validation = split_off(found.train, options)
    example = found.test[0][:2]
    points = {"best free energy": result.at(best(result.path)), "most predictive": result}
    for name, point in points.items():
        scales = codec.posterior_scales(point, example)
        yield name, point.network(example)["net"], scales, validation, found.test, example[0]
    if further:
        from retrained import retrained

        number = folder.name.rpartition("-")[2]
        network, scales, kept_out = retrained(folder.with_name(f"retrained-{number}"), found)
        yield "trained further", network, scales, kept_out, found.test, example[0]


def rows_of(found, seed, rows):
    """Measure what is missing of a network."""
    import numpy as np

    from bmrjax import codec, compact
    from bmrjax.structure import named_arrays

    name, whole, scales, validation, test, example = found
    if all(rows.has(network=name, seed=seed, method=m) for m in ["in memory", *methods()]):
        return
    small = compact(whole, example)
    arrays = [np.asarray(a) for a in named_arrays(whole).values()]
    kept, numbers = sum(np.count_nonzero(a) for a in arrays), sum(a.size for a in arrays)
    about = {"network": name, "seed": seed, "kept": int(kept), **records.environment()}

    def measured(network):
        pairs = {"validation": scores(network, validation), "test": scores(network, test)}
        return {
            f"{split}_{what}": value
            for split, values in pairs.items()
            for what, value in zip(("accuracy", "nll"), values, strict=True)
        }

    before = measured(whole)
    if not rows.has(network=name, seed=seed, method="in memory"):
        plain = {"bytes": 4 * numbers, "ratio": 1.0, "entries": int(kept)}
        rows.add({**about, "method": "in memory", **plain, **before})
    for method, (options, compacted) in methods().items():
        if rows.has(network=name, seed=seed, method=method):
            continue
        network, options, rate = small if compacted else whole, dict(options), None
        if options["quantiser"] is codec.RateDistortion:
            most = (1 + LOSS) * before["validation_nll"]
            rate = chosen_rate(network, scales, validation, most)
            options["quantiser"] = codec.RateDistortion(rate)
        if not isinstance(options["quantiser"], codec.KMeans | codec.Uniform):
            options["posterior_scale"] = scales
        decoded, row = measure(network, options)
        rows.add({**about, "method": method, "rate": rate, **row, **measured(decoded)})
        print(name, method, row["bytes"], rows.rows[-1]["test_accuracy"], flush=True)


def pruned(network, density, rng):
    """Return a network with random weights removed, and posterior scales."""
    import jax
    import jax.numpy as jnp

    from bmrjax.structure import named_arrays

    def change(leaf):
        if getattr(leaf, "ndim", 0) < 2:
            return leaf
        return jnp.asarray(leaf * (rng.random(leaf.shape) < density))

    network = jax.tree.map(change, network)
    scales = {
        n: abs(rng.normal(0, 0.003, a.shape)) + 0.001 for n, a in named_arrays(network).items()
    }
    return network, scales


def speed_of(name, repeats):
    """Return the row of how long a network of random weights takes."""
    import jax
    import numpy as np

    from bmrjax import codec, zoo

    build, density = {
        "LeNet-5": (lambda key: zoo.LeNet5(key=key), 0.1),
        "10 million weights": (lambda key: zoo.MLP(784, (3000, 2550), 10, key=key), 0.05),
    }[name]
    network, scales = pruned(build(jax.random.key(0)), density, np.random.default_rng(0))
    timings = {}
    for what, options in {
        "rate-distortion": {"posterior_scale": scales},
        "k-means, CSR, Huffman": {
            "quantiser": codec.KMeans(64),
            "layout": codec.CSR(8),
            "coder": "huffman",
        },
    }.items():
        each = [measure(network, options)[1] for _ in range(1 + repeats)][1:]
        timings[what] = {
            "bytes": each[0]["bytes"],
            "original": each[0]["original"],
            **{
                key: statistics.median(row[key] for row in each)
                for key in ("encode_seconds", "decode_seconds")
            },
        }
    return {"speed": name, "density": density, "repeats": repeats, "timings": timings}


def write_tables(rows, directory):
    """Write ``table.md``: the files of each network, and the times."""
    header = [
        "network",
        "file",
        "bytes",
        "ratio",
        "accuracy",
        "NLL, nats",
        "rate, nats per bit",
    ]
    lines = []
    for (network, method), found in records.group(
        [row for row in rows if "network" in row], lambda row: (row["network"], row["method"])
    ).items():
        each = {
            key: records.mean_and_error([row[key] for row in found], digits)
            for key, digits in (("bytes", 0), ("ratio", 0), ("test_accuracy", 4), ("test_nll", 4))
        }
        kept = records.mean_and_error([row["kept"] for row in found], 0)
        rates = ", ".join(str(row["rate"]) for row in found if row.get("rate"))
        lines.append([f"{network}, {kept} weights", method, *each.values(), rates or "–"])
    lines += [[name, "–", "–", str(r), f"{a:.4f}", "–", "–"] for name, r, a in PUBLISHED]
    text = records.table(header, lines)
    header = ["network", "file", "bytes", "encoding, s", "decoding, s", "repeats"]
    lines = [
        [
            f"{row['speed']}, {row['density']:.0%} of {each['original'] // 4:,} weights",
            what,
            f"{each['bytes']:,}",
            f"{each['encode_seconds']:.2f}",
            f"{each['decode_seconds']:.2f}",
            str(row["repeats"]),
        ]
        for row in rows
        if "speed" in row
        for what, each in row["timings"].items()
    ]
    (directory / "table.md").write_text(text + "\n" + records.table(header, lines))


def main() -> None:
    """Run what is missing, measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--machine", default="", help="what to say of the machine in each row")
    parser.add_argument("--quick", action="store_true", help="one short run on digits, into runs/")
    cli_runs.add_arguments(parser, "runs/codec")
    args = parser.parse_args()
    name, line = ("digits", QUICK) if args.quick else ("mnist", LINE)
    seeds = range(1 if args.quick else args.seeds)
    commands = {f"{name}-{seed}": [*line.split(), "--seed", str(seed)] for seed in seeds}
    cli_runs.run_missing(commands, args)
    out = args.out or Path("runs/codec_quick" if args.quick else "benchmarks/results/codec")
    rows = records.Rows(out)
    for seed, run in enumerate(commands):
        # What takes longest, once.
        further = not args.quick and not seed
        for found in networks(args.runs / run, args.data_root, further=further):
            rows_of(found, seed, rows)
    for name in ("LeNet-5", *(() if args.quick else ("10 million weights",))):
        if not rows.has(speed=name):
            rows.add({**speed_of(name, 3), "machine": args.machine, **records.environment()})
    write_tables(rows.rows, out)
    print((out / "table.md").read_text())


if __name__ == "__main__":
    main()

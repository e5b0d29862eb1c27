"""Bayesian compression (Federici, Ullrich and Welling 2017): files that decode, beside the published figures.

    python benchmarks/federici2017.py --data-root DIR

From one dense network per seed: variational dropout (VD), soft weight sharing (SWS), both, Bayesian model
reduction (BMR) and noise on whole units (BMRS), from which VD of LeNet-5-Caffe goes on. Each becomes two
files: the paper's chain (clusters, CSR with offsets of the best fixed width, Huffman), and ours
(rate-distortion by posterior width where there is one, the smallest layout, range coding). Bytes are those on
disk, accuracy that of the decoded network on the test set. 5,000 of the training data are kept out: they
choose the rate of rate-distortion, and the point of a BMR path: the sparsest within a standard error of the
most accurate.

Each run is a row of results.json at once, and each fit is kept in --runs; a stopped command goes on with
what is missing. ``--quick`` goes through a small network on digits in minutes and proves nothing;
``--report`` writes the table of the rows there are.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import records
import structured

import bmrjax as bmr
from bmrjax import codec, criteria, infer, nn, priors, schedules, zoo

METHODS = ("L2", "VD", "VD+SWS", "BMR", "BMRS", "SWS")
# What is fitted, numbered.
KEYS = (*METHODS, "L2 for SWS")
# Accuracy, nonzero weights in percent and compression of the paper's Table 2.
PAPER = {
    "lenet-300-100": {
        "L2": ("98.39", "100", "1"), "SWS": ("98.16", "8.6", "34"), "VD": ("98.05", "1.6", "131"),
        "VD+SWS": ("98.24", "1.5", "161"),
    },
    "lenet-5-caffe": {
        "L2": ("99.13", "100", "1"), "SWS": ("99.01", "3.6", "84"), "VD": ("99.09", "0.7", "349"),
        "VD+SWS": ("99.14", "0.5", "482"),
    },
}  # fmt: skip
# Widths that an offset may have in the paper's chain: it has 5 bits in LeNet-300-100 and 8 in LeNet-5-Caffe,
# and the narrower a compacted network, the fewer it takes.
OFFSET_BITS = range(2, 9)
RATES = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
# How much more the data kept out may cost after quantisation, in nats per data point and relative.
LOSS = 0.01
# Soft weight sharing alone: the published mixture draws in only what is small.
ALONE = {
    "factor": 0.008, "zero_weight": 0.99, "concentration": 1e6, "rate": 10.0, "start_scale": 0.25,
    "start_reach": 0.6,
}  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """How the networks of one architecture are fitted; rates are Adam's.

    Attributes:
        batch_size: Data a step.
        estimator: Of the expected log likelihood.
        dense_epochs: Of the dense network, in whose second half the learning rate falls to zero.
        weight_decay: While they last.
        vd_from: The method whose network variational dropout starts from, compacted: "L2", the dense one, or
            "BMRS", which is small, and then trained in a fraction of the time.
        vd_epochs: Of variational dropout.
        vd_kl_weight: Factor on its divergence.
        vd_rate: Learning rate.
        vd_warmup: Epochs over which the divergence comes in.
        vd_wait: Fraction of the epochs before weights go.
        sws_batch_size: Data a step of soft weight sharing, whose mixture costs as much for any batch.
        sws_epochs: Of soft weight sharing, from the dense network or after variational dropout.
        sws_speed: Factor on the published learning rates, which are for some hundred epochs.
        sws_alone: What soft weight sharing alone has in place of the published mixture: components that begin
            wide, as Ullrich et al. have them, and end narrower than theirs, since all weights collapse.
        sws_weight_decay: Of the dense network that it starts from.
        sws_alone_epochs: Its epochs.
        bmr_epochs: Of Bayesian model reduction, from the dense network.
        bmr_kl_weight: Factor on its divergence.
        noise_epochs: Of the network with noise.
        noise_kl_weight: Factor on its divergence.
        saved: What multiplies that factor, by layer: see `structured.Fit`.
    """

    batch_size: int = 128
    estimator: Any = "local"
    dense_epochs: int = 20
    weight_decay: float = 0.05
    vd_from: str = "L2"
    vd_epochs: int = 150
    vd_kl_weight: float = 1.0
    vd_rate: float = 1e-3
    vd_warmup: int = 5
    vd_wait: float = 0.4
    sws_batch_size: int = 512
    sws_epochs: int = 40
    sws_speed: float = 20.0
    sws_alone: dict[str, float] = field(default_factory=lambda: ALONE)
    sws_weight_decay: float = 0.8
    sws_alone_epochs: int = 80
    bmr_epochs: int = 75
    bmr_kl_weight: float = 0.5
    noise_epochs: int = 30
    noise_kl_weight: float = 4.0
    saved: dict[str, float] = field(default_factory=dict)


FITS = {
    "lenet-300-100": Fit(),
    "lenet-5-caffe": Fit(
        dense_epochs=6, vd_from="BMRS", vd_epochs=50, vd_kl_weight=0.7, sws_batch_size=256, sws_epochs=15,
        sws_alone={**ALONE, "factor": 0.0095, "start_scale": 0.15}, sws_alone_epochs=24,
        bmr_epochs=12, noise_epochs=20, noise_kl_weight=0.85,
        # As in `neklyudov2017.py`: the multiply-adds, in thousands, that a unit saves.
        saved={"convs.0": 94.4, "convs.1": 40.0, "linears.0": 0.5, "linears.1": 0.81},
    ),
    "digits": Fit(
        batch_size=64, dense_epochs=10, vd_epochs=20, vd_rate=3e-3, vd_warmup=3, sws_batch_size=64,
        sws_alone={"factor": 0.1},  # as published: wide components take thousands of steps to narrow
        sws_alone_epochs=10, sws_epochs=10, sws_speed=30.0, bmr_epochs=20, noise_epochs=20,
        noise_kl_weight=1.0,
    ),
}  # fmt: skip


@dataclass
class Job:
    """One architecture and seed: its data, and where its fits are kept."""

    name: str
    seed: int
    fit: Fit
    data: dict[str, Any]
    folder: Path

    def fresh(self) -> Any:
        """Return an untrained network."""
        key = jax.random.key(self.seed)
        if self.name == "lenet-5-caffe":
            return zoo.LeNet5Caffe(key=key)
        hidden, size = ((300, 100), 784) if self.name == "lenet-300-100" else ((60, 30), 64)
        return zoo.MLP(size, hidden, 10, activation=jax.nn.relu, key=key)

    @property
    def few(self) -> Any:
        """Two inputs."""
        return self.data["train"][0][:2]

    @property
    def parameters(self) -> int:
        """Numbers in the dense network."""
        return sum(a.size for a in jax.tree.leaves(self.fresh()) if hasattr(a, "size"))

    @property
    def num_steps(self) -> int:
        """Steps an epoch."""
        return len(self.data["train"][1]) // self.fit.batch_size

    def run(self, what: str, model: Any, **settings: Any) -> bmr.Result:
        """Fit, or load what was fitted before."""
        path = self.folder / what
        guide = infer.AutoMeanField(model, init_scale=math.exp(-5))
        if not path.exists():
            result = bmr.sparsify(
                model,
                self.data["train"],
                key=jax.random.key(1000 * self.seed + KEYS.index(what)),
                guide=guide,
                progress=False,
                **{"batch_size": self.fit.batch_size, **settings},
            )
            result.save(path)
        return bmr.load(path, model=model, guide=guide)

    def network(self, result: bmr.Result) -> Any:
        """Return the fitted network at the posterior mean."""
        return result.network(self.few)["net"]

    # --- the methods ----------------------------------------------------------------------

    def dense(self, what: str = "L2") -> bmr.Result:
        """Train with weight decay."""
        fit = self.fit
        return self.run(
            what,
            bmr.programs.classifier(self.fresh(), None),
            num_epochs=fit.dense_epochs,
            criterion=None,
            schedule=schedules.Every(cooldown=fit.dense_epochs // 2),
            optimizer=optax.adamw(
                1e-3, weight_decay=fit.weight_decay if what == "L2" else fit.sws_weight_decay
            ),
        )

    def dropout(self) -> bmr.Result:
        """Sparse variational dropout."""
        fit = self.fit
        _, start = self.fitted(fit.vd_from)
        if fit.vd_from != "L2":
            start = bmr.compact(start, self.data["train"][0][0]).network
        wait = round(fit.vd_wait * fit.vd_epochs)
        return self.run(
            "VD",
            bmr.programs.classifier(start, priors.LogUniformPrior()),
            num_epochs=fit.vd_epochs,
            criterion=criteria.DropoutRate(),
            options=bmr.FitOptions(
                estimator=fit.estimator,
                kl_weight=fit.vd_kl_weight,
                kl_warmup=fit.vd_warmup * self.num_steps,
            ),
            optimizer=optax.adam(fit.vd_rate),
            schedule=schedules.Every(wait=wait, cooldown=(fit.vd_epochs - wait) // 2),
        )

    def sharing(self, what: str) -> bmr.Result:
        """Soft weight sharing, after variational dropout or from the dense network."""
        fit, after = self.fit, what == "VD+SWS"
        start = self.dropout() if after else self.dense("L2 for SWS")
        epochs = fit.sws_epochs if after else fit.sws_alone_epochs
        prior = (
            priors.SoftWeightSharing()
            if after
            else priors.SoftWeightSharing(dropout=False, **fit.sws_alone)
        )
        return self.run(
            what,
            bmr.programs.classifier(self.network(start), prior),
            num_epochs=epochs,
            batch_size=fit.sws_batch_size,
            criterion=criteria.DropoutRate() if after else None,
            options=bmr.FitOptions(
                estimator=fit.estimator if after else "global", start=start if after else None
            ),
            optimizer=priors.SoftWeightSharing.optimizer(fit.sws_speed),
            schedule=schedules.Every(
                wait=fit.sws_epochs // 3, cooldown=epochs // 3
            ),  # at rest, weights come to lie on the means of their components
        )

    def reduction(self) -> bmr.Result:
        """Bayesian model reduction in verified rounds, from the dense network."""
        fit = self.fit
        result = self.run(
            "BMR",
            bmr.programs.classifier(self.network(self.dense()), priors.Flat()),
            num_epochs=fit.bmr_epochs,
            options=bmr.FitOptions(estimator=fit.estimator, kl_weight=fit.bmr_kl_weight),
            optimizer=optax.adabelief(3e-3),
            schedule=schedules.Verified(
                wait=3, refit=3, fraction=0.25, cooldown=fit.bmr_epochs // 3
            ),
        )
        return self.sparsest(result)

    def sparsest(self, result: bmr.Result) -> bmr.Result:
        """Return the sparsest point with an accuracy on data kept out within a standard error of the best."""
        points = [result.at(i) for i in range(len(result.path))]
        found = [structured.score(self.network(p), self.data["validation"]) for p in points]
        best = max(score["accuracy"] for score in found)
        error = math.sqrt(best * (100 - best) / len(self.data["validation"][1]))
        good = [
            p for p, score in zip(points, found, strict=True) if score["accuracy"] >= best - error
        ]
        return min(good, key=lambda p: p.num_kept)

    def noise(self) -> bmr.Result:
        """Noise on whole units, from the dense network."""
        fit = self.fit
        shape = structured.Fit(
            rate=1e-3, noise_rate=1e-2, kl_weight=fit.noise_kl_weight, saved=fit.saved
        )

        def where(path: str, layer: Any) -> str:
            del layer
            return "outputs" if path.startswith("convs") else "inputs"

        noisy = nn.with_noise(self.network(self.dense()), where, kl_weight=shape.weigh)
        return self.run(
            "BMRS",
            bmr.programs.classifier(noisy, None),
            num_epochs=fit.noise_epochs,
            criterion=criteria.BMRSUniform(8),
            schedule=schedules.Every(cooldown=fit.noise_epochs // 3),
            optimizer=structured.optimizer(shape),
        )

    def fitted(self, method: str) -> tuple[bmr.Result, Any]:
        """Return the result of a method, and its network."""
        if method == "BMRS":
            result = self.noise()
            return result, nn.without_noise(self.network(result))
        makers: dict[str, Callable[[], bmr.Result]] = {
            "L2": self.dense, "VD": self.dropout, "BMR": self.reduction,
            "SWS": lambda: self.sharing("SWS"), "VD+SWS": lambda: self.sharing("VD+SWS"),
        }  # fmt: skip
        result = makers[method]()
        return result, self.network(result)


def load(name: str, root: Path | None) -> dict[str, Any]:
    """Return training data, those kept out, and test data, on the device."""
    found = bmr.data.load_dataset("digits" if name == "digits" else "mnist", data_root=root)
    out = 200 if name == "digits" else 5000
    flat = name != "lenet-5-caffe"

    def on_device(split: Any) -> Any:
        x, y = split
        return jnp.asarray(x.reshape(len(x), -1) if flat else x), jnp.asarray(y)

    order = np.random.default_rng(0).permutation(len(found.train[1]))
    return {
        "train": on_device([part[order[out:]] for part in found.train]),
        "validation": on_device([part[order[:out]] for part in found.train]),
        "test": on_device(found.test),
    }


def quantisers(method: str, result: bmr.Result, few: Any) -> Any:
    """Return the paper's quantiser: the learned components, or 64 clusters."""
    if "SWS" not in method:
        return codec.KMeans(64)
    return codec.Mixture(codec.learned_mixture(result, few).means)


def collapsed(result: bmr.Result, few: Any) -> Any:
    """Return the network with each weight at the mean of its component."""
    mixture = codec.learned_mixture(result, few)
    return codec.decode(codec.encode(result, inputs=(few,), quantiser=mixture))


def chosen_rate(small: Any, scales: Any, validation: Any) -> float:
    """Return the largest rate at which the decoded network is good enough on data kept out."""
    most = (1 + LOSS) * structured.score(small.network, validation)["nll"]
    good = RATES[0]
    for rate in RATES:
        data = codec.encode(small, posterior_scale=scales, quantiser=codec.RateDistortion(rate))
        if structured.score(codec.decode(data), validation)["nll"] > most:
            break
        good = rate
    return good


def weights(network: Any) -> tuple[int, int]:
    """Return how many weights are not zero, biases aside, and how many there are."""
    leaves = jax.tree_util.tree_leaves_with_path(network)
    arrays = [a for path, a in leaves if jax.tree_util.keystr(path).endswith(".weight")]
    return sum(int(np.count_nonzero(a)) for a in arrays), sum(a.size for a in arrays)


def files(job: Job, method: str, result: bmr.Result, network: Any) -> dict[str, Any]:
    """Encode a network in the paper's way and in ours; return both rows."""
    if method == "L2":
        return {}
    example = job.data["train"][0][0]
    scales = None
    if method in ("VD", "VD+SWS", "BMR"):
        scales = codec.posterior_scales(result, job.few)
    clustered = collapsed(result, job.few) if "SWS" in method else network
    theirs = bmr.compact(clustered, example)
    paper: dict[str, Any] = {
        "quantiser": quantisers(method, result, job.few),
        "coder": "huffman",
        "posterior_scale": scales,
    }
    layouts = {bits: codec.CSR(bits) for bits in OFFSET_BITS}
    sizes = {b: len(codec.encode(theirs, layout=at, **paper)) for b, at in layouts.items()}
    width = min(sizes, key=lambda bits: sizes[bits])
    ours: dict[str, Any] = {"quantiser": paper["quantiser"]}
    small, rate = theirs, None
    if scales is not None:
        small = bmr.compact(network, example)
        rate = chosen_rate(small, scales, job.data["validation"])
        ours = {"quantiser": codec.RateDistortion(rate), "posterior_scale": scales}
    rows = {}
    chain = {**paper, "layout": layouts[width]}
    for which, to_code, options in (("paper", theirs, chain), ("ours", small, ours)):
        begin = time.perf_counter()
        data = codec.encode(to_code, **options)
        middle = time.perf_counter()
        decoded = codec.decode(data)
        end = time.perf_counter()
        report = codec.inspect_file(data)
        rows[which] = {
            "bytes": len(data),
            "ratio": 4 * job.parameters / len(data),  # the report's original may be a compacted one
            "entries": report.entries,
            "rate": rate if which == "ours" else None,
            "offset_bits": width if which == "paper" else None,
            "arrays": [vars(row) for row in report.rows],
            "description": report.description,
            "encode_seconds": middle - begin,
            "decode_seconds": end - middle,
            **{
                f"{split}_{what}": value
                for split in ("validation", "test")
                for what, value in structured.score(decoded, job.data[split]).items()
            },
        }
    return rows


def one(job: Job, method: str) -> dict[str, Any]:
    """Run one method; return its row."""
    result, network = job.fitted(method)
    before = {
        f"{split}_{what}": value
        for split in ("validation", "test")
        for what, value in structured.score(network, job.data[split]).items()
    }
    return {
        **before,
        "nonzero": 100 * weights(network)[0] / weights(job.fresh())[1],
        "seconds": result.timing["seconds"],
        "files": files(job, method, result, network),
        "fit": vars(job.fit),
    }


def write_table(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write table.md."""
    header = [
        "network", "method", "seeds", "accuracy before, %", "entries, %",
        "paper's chain: ratio", "accuracy, %", "ours: ratio", "accuracy, %", "bytes, ours",
        "the paper: ratio / accuracy / nonzero",
    ]  # fmt: skip
    lines = []
    mean = records.mean_and_error
    for (net, method), part in records.group(rows, lambda r: (r["net"], r["method"])).items():
        paper = PAPER.get(net, {}).get(method)
        published = "–" if paper is None else f"{paper[2]} / {paper[0]} / {paper[1]}"
        cells = ["–"] * 6
        if method != "L2":
            kinds = {k: [r["files"][k] for r in part] for k in ("paper", "ours")}
            cells = [
                mean([100 * r["files"]["paper"]["entries"] / r["parameters"] for r in part], 2),
                mean([f["ratio"] for f in kinds["paper"]], 0),
                mean([f["test_accuracy"] for f in kinds["paper"]], 2),
                mean([f["ratio"] for f in kinds["ours"]], 0),
                mean([f["test_accuracy"] for f in kinds["ours"]], 2),
                mean([f["bytes"] for f in kinds["ours"]], 0),
            ]  # fmt: skip
        before = mean([r["test_accuracy"] for r in part], 2)
        lines.append([net, method, str(len(part)), before, *cells, published])
    text = records.table(header, lines)
    text += (
        "\nAccuracy on the test set of the decoded network; the ratio is the float32 bytes of the dense "
        "network over the size of the file, everything in it. 55,000 training data; 5,000 choose the rate of "
        "our files and the point of BMR's path.\n"
    )
    (out / "table.md").write_text(text)


def overrides(fit: Fit, given: list[str]) -> Fit:
    """Apply ``name=value`` settings."""
    numbers = {f.name: getattr(fit, f.name) for f in fields(fit)}
    kinds = {n: type(value) for n, value in numbers.items() if not isinstance(value, dict)}
    for text in given:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise SystemExit(f"--set {text}: there are {', '.join(kinds)}.")
        if name == "vd_from" and value not in ("L2", "BMRS"):
            raise SystemExit(f"--set {text}: variational dropout starts from L2 or BMRS.")
        fit = replace(fit, **{name: kinds[name](value)})
    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--runs", type=Path, help="where fits are kept; by default runs/federici2017"
    )
    parser.add_argument("--nets", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], help="name=value of a setting of the fits")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--report", action="store_true", help="only write the table")
    args = parser.parse_args()
    kind = "federici2017_quick" if args.quick else "federici2017"
    out = args.out or (Path("runs") / kind if args.quick else Path("benchmarks/results") / kind)
    runs = args.runs or Path("runs") / kind
    found = records.Rows(out)
    nets = ["digits"] if args.quick else args.nets
    for name in nets if not args.report else []:
        data = load(name, args.data_root)
        for seed in range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)):
            fit = overrides(FITS[name], args.set)
            job = Job(name, seed, fit, data, runs / f"{name}-{seed}")
            for method in args.methods:
                what = {"net": name, "method": method, "seed": seed}
                if found.has(**what):
                    continue
                row = one(job, method)
                found.add({**what, "parameters": job.parameters, **row, **records.environment()})
                told = ", ".join(
                    f"{k} {f['ratio']:.0f}x at {f['test_accuracy']:.2f} %"
                    for k, f in row["files"].items()
                )
                print(
                    f"{name} seed {seed} {method}: {row['test_accuracy']:.2f} % before; {told}; "
                    f"{row['seconds']:.0f} s",
                    flush=True,
                )
    write_table(out, found.rows)
    print((out / "table.md").read_text())


if __name__ == "__main__":
    main()

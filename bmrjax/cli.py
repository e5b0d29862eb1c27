"""The command line. The only place that maps words to objects."""

import json
import math
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

PLOTS = ("learning_curves", "sparsity_per_layer", "path")
# What a run writes to its folder, and all that --overwrite deletes.
OURS = ("results.json", "model", "last_good", "checkpoints", "points", "run.json")
# What may differ between a run and its continuation.
FREE = ("out", "data_root", "resume", "overwrite", "progress", "samples", "epochs")
BLOCK_NETS = ("vit", "mixer", "vit-nnx")
IMAGE_NETS = ("lenet5", *BLOCK_NETS)
RATES = {"map": 1e-3, "mean-field": 5e-3, "bmr": 1e-2}


@dataclass
class Sparsify:
    """Fit a network to data and prune it while it trains.

    Example: bmrjax sparsify --data digits --net mlp --hidden 100 100 --out runs/digits
    """

    data: str
    """digits, diabetes, mnist, fashion_mnist, cifar10, or the path of a .npz or .csv file."""
    out: Path
    """Folder for results.json, the model, checkpoints and plots."""
    task: Literal["classification", "regression"] | None = None
    """For files: by default told from the targets of a .npz; a .csv is a regression."""
    num_targets: int = 1
    """For a .csv: how many of the last columns are targets."""
    net: Literal["mlp", "lenet5", "vit", "mixer", "mlp-nnx", "vit-nnx"] = "mlp"
    """Network: an Equinox module, or with -nnx a Flax NNX module. All but the mlps take images."""
    hidden: tuple[int, ...] = (400, 400, 400, 400, 400)
    """Widths of the hidden layers of an mlp."""
    depth: int | None = None
    """Blocks of a vit or mixer; 6 by default."""
    width: int | None = None
    """Features of a token of a vit or mixer, 256 by default; their hidden layers have twice as many."""
    method: Literal["bmr", "mean-field", "map"] = "bmr"
    """bmr prunes; mean-field fits the posterior only; map fits a point, with dropout."""
    epochs: int = 50
    """Epochs at most."""
    steps_per_epoch: int | None = None
    """Steps an epoch; one pass over the data by default."""
    batch_size: int = 128
    """Data a step."""
    learning_rate: float | None = None
    """Of AdaBelief; by default 1e-2 for bmr, 5e-3 for mean-field, 1e-3 for map."""
    prior_scale: float = 0.1
    """Prior standard deviation of a weight, before the learned scale of its layer."""
    schedule: Literal["verified", "every", "converged"] = "verified"
    """When to reduce: verified takes rounds back that raise the VFE; every is the published one."""
    wait: int | None = None
    """Epochs before the first reduction."""
    refit: int | None = None
    """Epochs between reductions."""
    cooldown: int | None = None
    """Last epochs without reductions, over which the learning rate falls to zero."""
    fraction: float | None = None
    """Cap on what one reduction may remove, as a fraction of what is kept."""
    validation: float | None = None
    """Keep this fraction of the training data out, and end at the point of the path that predicts it
    best. Without it, the point with the best VFE, which is sparser and on small data less accurate."""
    samples: int = 100
    """Posterior samples of the final metrics."""
    seed: int = 0
    """Of the initial weights, the minibatches and the noise."""
    data_root: Path | None = None
    """Folder with a folder a data set; by default $BMRJAX_DATA, else the Hugging Face hub."""
    resume: bool = False
    """Go on with the run in --out."""
    overwrite: bool = False
    """Delete an earlier run in --out first."""
    progress: bool = True
    """Show a progress bar."""


@dataclass
class Info:
    """Print what a run reached."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    path: bool = False
    """List the points that can be restored."""


@dataclass
class Predict:
    """Predict with a saved run: class probabilities, or means in the unit of the targets."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    data: Path
    """A .npy file, or a .npz file with an array x: raw inputs, in the unit of the training data."""
    out: Path
    """Where to write the predictions, as .npy."""
    samples: int = 100
    """Posterior samples."""
    seed: int = 0
    """Of the samples."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors are one line on stderr and exit code 2."""
    command = tyro.extras.subcommand_cli_from_dict(
        {"sparsify": Sparsify, "info": Info, "predict": Predict},
        prog="bmrjax",
        description="Bayesian model reduction for JAX and NumPyro.",
        args=arguments,
    )
    run = {Sparsify: _sparsify, Info: _info, Predict: _predict}[type(command)]
    try:
        run(command)
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        if os.environ.get("BMRJAX_DEBUG"):
            raise
        print(f"bmrjax: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("bmrjax: stopped; --resume goes on from the last checkpoint.", file=sys.stderr)
        raise SystemExit(130) from None


def _network(options: Sparsify, input_shape: tuple[int, ...], outputs: int) -> Any:
    import jax

    from bmrjax import nn

    dropout = 0.2 if options.method == "map" else 0.0
    key = jax.random.key(options.seed)
    if options.net in IMAGE_NETS and len(input_shape) != 3:
        raise ValueError(
            f"{options.net} takes images; '{options.data}' has inputs of {input_shape}."
        )
    if options.net == "lenet5":
        wide = {"conv_features": (18, 48, 360), "hidden": 256} if input_shape[0] == 3 else {}
        return nn.LeNet5(input_shape[0], outputs, dropout=dropout, key=key, **wide)
    if options.net in BLOCK_NETS:
        return _block_network(options, input_shape, outputs, dropout, key)
    in_size = math.prod(input_shape)
    if options.net == "mlp-nnx":
        from flax import nnx

        return nn.NNXMLP(
            in_size, options.hidden, outputs, dropout=dropout, rngs=nnx.Rngs(options.seed)
        )
    return nn.MLP(in_size, options.hidden, outputs, dropout=dropout, key=key)


def _block_network(
    options: Sparsify, input_shape: tuple[int, ...], outputs: int, dropout: float, key: Any
) -> Any:
    from bmrjax import nn

    size: dict[str, Any] = {"image_size": input_shape[1:]}
    if options.depth is not None:
        size["depth"] = options.depth
    if options.net == "mixer":
        # Without dropout, for a point estimate too, as published.
        if (width := options.width) is not None:
            size |= {"width": width, "token_hidden": 2 * width, "channel_hidden": 2 * width}
        return nn.MLPMixer(input_shape[0], outputs, key=key, **size)
    if (width := options.width) is not None:
        size |= {"width": width, "hidden": 2 * width}
    if options.net == "vit":
        return nn.ViT(input_shape[0], outputs, dropout=dropout, key=key, **size)
    from flax import nnx

    rngs = nnx.Rngs(options.seed)
    return nn.NNXViT(input_shape[0], outputs, dropout=dropout, rngs=rngs, **size)


def _schedule(options: Sparsify) -> Any:
    from bmrjax import schedules

    given = {
        name: value
        for name in ("wait", "refit", "cooldown", "fraction")
        if (value := getattr(options, name)) is not None
    }
    if options.schedule == "verified":
        return schedules.Verified(**given)
    if options.schedule == "every":
        if "refit" in given:
            given["every"] = given.pop("refit")
        return schedules.Every(**given)
    unknown = sorted(set(given) & {"wait", "refit"})
    if unknown:
        raise ValueError(f"--schedule converged takes no --{unknown[0]}: it watches the VFE.")
    return schedules.WhenConverged(**given)


def _programs(
    options: Sparsify, input_shape: tuple[int, ...], outputs: int, num_classes: int | None
) -> tuple:
    from numpyro.infer.autoguide import AutoDelta

    from bmrjax import init_to_network, priors, programs
    from bmrjax.infer import AutoMeanField

    network = _network(options, input_shape, outputs)
    build = programs.classifier if num_classes else programs.regression
    model = build(network, priors.Flat(scale=options.prior_scale))
    if options.method == "map":
        return model, AutoDelta(model, init_loc_fn=init_to_network)
    return model, AutoMeanField(model)


def _sparsify(options: Sparsify) -> None:
    out = options.out
    _check(options)
    import jax
    import optax

    from bmrjax import NonFiniteError, criteria, sparsify
    from bmrjax.data import load

    found = load(
        options.data,
        data_root=options.data_root,
        task=options.task,
        num_targets=options.num_targets,
    )
    model, guide = _programs(options, found.input_shape, _outputs(found), found.num_classes)
    schedule = _schedule(options)
    # An earlier run goes only when the new one has its data and its program.
    if options.overwrite:
        _remove_run(out)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "run.json", _config(options))
    bmr = options.method == "bmr"
    train, validation = _split_off(found.train, options)
    test: Any = found.test
    try:
        result = sparsify(
            model,
            train,
            key=jax.random.key(options.seed),
            num_epochs=options.epochs,
            criterion=criteria.SpikeAndSlab() if bmr else None,
            schedule=schedule,
            guide=guide,
            optimizer=optax.adabelief(_learning_rate(options)),
            batch_size=options.batch_size,
            steps_per_epoch=options.steps_per_epoch,
            held_out=test,
            eval_samples=5 if options.method != "map" else 1,
            # With validation data the point is chosen, and measured, below.
            final_samples=options.samples if options.method != "map" and not validation else 1,
            directory=out,
            resume=options.resume,
            progress=options.progress,
        )
    except NonFiniteError as error:
        error.result.save(out / "last_good")
        raise FloatingPointError(f"{error} It is saved in {out / 'last_good'}.") from None
    if validation is not None:
        choose_key, test_key = jax.random.split(jax.random.key(options.seed + 1))
        result = result.most_predictive(choose_key, validation, num_samples=options.samples)
        result.metrics = result.evaluate(test_key, test, num_samples=options.samples)
    document = _document(options, found, result)
    result.save(out / "model")
    _write(out / "results.json", document)
    _plots(result, out)
    print(_summary(document))
    print(f"results, model and plots in {out}")


def _split_off(train: Any, options: Sparsify) -> tuple[Any, Any]:
    """Return what to train on, and the validation data or None."""
    import numpy as np

    if options.validation is None:
        return train, None
    rows = len(train[0])
    size = round(options.validation * rows)
    if not 1 <= size < rows:
        raise ValueError(
            f"--validation {options.validation} keeps {size} of {rows} rows out; it must leave some on "
            "both sides."
        )
    order = np.random.default_rng(options.seed).permutation(rows)
    kept, held = order[size:], order[:size]
    return tuple(part[kept] for part in train), tuple(part[held] for part in train)


def _check(options: Sparsify) -> None:
    out = options.out
    if options.validation is not None and not 0 < options.validation < 1:
        raise ValueError(f"--validation must be between 0 and 1, got {options.validation}.")
    if options.validation is not None and options.method != "bmr":
        raise ValueError("--validation chooses a point on the path of --method bmr.")
    if options.resume and options.overwrite:
        raise ValueError("--resume goes on with a run and --overwrite deletes it; give one.")
    for name in ("samples", "epochs", "batch_size", "num_targets"):
        if getattr(options, name) < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be at least 1, got {getattr(options, name)}.")
    if any(width < 1 for width in options.hidden):
        raise ValueError(f"--hidden: widths must be at least 1, got {list(options.hidden)}.")
    for name in ("depth", "width"):
        value = getattr(options, name)
        if value is not None and options.net not in BLOCK_NETS:
            raise ValueError(f"--{name} is for vit, mixer and vit-nnx; {options.net} has none.")
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}.")
    _learning_rate(options)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file; give a folder.")
    present = [name for name in OURS if (out / name).exists()]
    if not present:
        return
    # `model` and `checkpoints` are common names: without a record of a run they are not ours.
    if not {"run.json", "results.json"} & set(present):
        raise ValueError(f"{out} holds {present[0]}, which no run wrote; give another --out.")
    if not options.resume and not options.overwrite:
        raise ValueError(f"{out} holds a run. Give --resume, --overwrite or another --out.")
    if options.resume and (out / "run.json").is_file():
        before, now = _read(out, "run.json"), _config(options)
        changed = [k for k in now if k not in FREE and before.get(k) != now[k]]
        if changed:
            told = ", ".join(f"--{k.replace('_', '-')} was {before.get(k)}" for k in changed)
            raise ValueError(f"--resume goes on with the options that the run had: {told}.")


def _config(options: Sparsify) -> dict[str, Any]:
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    return {**plain, "hidden": list(options.hidden)}


def _learning_rate(options: Sparsify) -> float:
    rate = options.learning_rate
    if rate is None:
        return RATES[options.method]
    if not 0 < rate < math.inf:
        raise ValueError(f"--learning-rate must be positive, got {rate}.")
    return rate


def _outputs(found: Any) -> int:
    return found.num_classes or math.prod(found.train[1].shape[1:])


def _remove_run(out: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for name in (*OURS, *(f"{plot}.png" for plot in PLOTS)):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _document(options: Sparsify, found: Any, result: Any) -> dict[str, Any]:
    import platform
    import statistics
    from importlib.metadata import version

    import jax

    steps = options.steps_per_epoch or max(result.num_data // options.batch_size, 1)
    seconds = [row["seconds"] for row in result.history]
    reducing = [
        row["reduce_seconds"] for row in result.history if row.get("reduce_seconds", 0) > 1e-4
    ]
    return {
        **{name: result.metrics.get(name) for name in ("accuracy", "nll", "ece", "rmse")},
        "vfe_per_datum": result.vfe_per_datum,
        "sparsity": result.sparsity,
        "sparsity_per_layer": result.sparsity_per_layer,
        "kept": result.num_kept,
        "total": result.num_total,
        "target_mean": _listed(found.target_mean),
        "target_scale": _listed(found.target_scale),
        "input_mean": _listed(found.input_mean),
        "input_scale": _listed(found.input_scale),
        "outputs": _outputs(found),
        "init_seconds": result.timing["init_seconds"],
        "compile_seconds": result.timing["compile_seconds"],
        "seconds": result.timing["seconds"],
        "step_ms": 1e3 * statistics.median(seconds) / steps,
        "reduce_ms": 1e3 * statistics.median(reducing) if reducing else None,
        # Medians: the first round also compiles.
        "reduce_fraction": (
            statistics.median(reducing) / statistics.median(seconds) if reducing else None
        ),
        "skipped_steps": result.num_skipped,
        "loop": result.loop_mode,
        "command": shlex.join(["bmrjax", *sys.argv[1:]]),
        "config": _config(options),
        "input_shape": list(found.input_shape),
        "num_classes": found.num_classes,
        "seed": options.seed,
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {
            p: version(p) for p in ("bmrjax", "jax", "numpyro", "equinox", "flax", "optax")
        },
        "history": result.history,
        "path": [
            {
                "vfe_per_datum": p.vfe / result.num_data,
                **{k: getattr(p, k) for k in ("epoch", "kept", "total", "metrics")},
            }
            for p in result.path
        ],
    }


def _listed(array: Any) -> Any:
    return None if array is None else array.tolist()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, document: dict[str, Any]) -> None:
    staged = path.with_suffix(".tmp")
    staged.write_text(json.dumps(_finite(document), indent=1, allow_nan=False))
    os.replace(staged, path)


def _plots(result: Any, out: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("bmrjax: no plots without matplotlib: pip install 'bmrjax[plots]'", file=sys.stderr)
        return
    from bmrjax import plot

    figures = {"learning_curves": plot.learning_curves(result)}
    if result.keep:
        figures["sparsity_per_layer"] = plot.sparsity_per_layer(result)
        figures["path"] = plot.path(result)
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=150)


def _summary(document: dict[str, Any]) -> str:
    lines = []
    config = document["config"]
    lines.append(
        f"{config['data']}, {config['net']}, {config['method']}, {config['epochs']} epochs"
    )
    labels = {
        "accuracy": "accuracy",
        "rmse": "RMSE (standardised target)",
        "nll": "NLL, nats a datum",
        "ece": "ECE",
        "vfe_per_datum": "VFE, nats a datum",
        "step_ms": "step, ms",
        "compile_seconds": "compilation, s",
        "seconds": "whole run, s",
    }
    for name, label in labels.items():
        if document.get(name) is not None:
            lines.append(f"  {label:<28}{document[name]:.4g}")
    if document["total"]:
        kept = f"{document['kept']:,} of {document['total']:,} ({document['sparsity']:.1%} removed)"
        lines.append(f"  {'weights kept':<28}{kept}")
        for layer, sparsity in document["sparsity_per_layer"].items():
            lines.append(f"    {layer:<26}{sparsity:.1%} removed")
    if document["skipped_steps"]:
        lines.append(f"  {'steps skipped (not finite)':<28}{document['skipped_steps']}")
    return "\n".join(lines)


def _read(directory: Path, name: str = "results.json") -> dict[str, Any]:
    path = directory / name
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no finished run: there is no {name}.")
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}).") from None


def _info(options: Info) -> None:
    document = _read(options.directory)
    print(_summary(document))
    if options.path:
        print("  path: epoch, weights kept, VFE a datum, held-out metrics")
        for i, point in enumerate(document["path"]):
            scores = ", ".join(f"{k} {v:.4g}" for k, v in point["metrics"].items())
            where = f"{i:3d}  {point['epoch']:5d}  {point['kept']:10,d}"
            print(f"    {where}  {point['vfe_per_datum']:.4f}  {scores}")


def _predict(options: Predict) -> None:
    import jax
    import numpy as np

    from bmrjax import load

    document = _read(options.directory)
    if options.samples < 1:
        raise ValueError(f"--samples must be at least 1, got {options.samples}.")
    if not options.data.is_file():
        raise FileNotFoundError(f"There is no file {options.data}.")
    x = _inputs(options.data)
    if list(x.shape[1:]) != document["input_shape"]:
        raise ValueError(
            f"{options.data} has inputs of shape {x.shape[1:]}, the run was trained on "
            f"{tuple(document['input_shape'])}."
        )
    mean, scale = (np.asarray(document[f"input_{part}"]) for part in ("mean", "scale"))
    x = ((x - mean) / scale).astype(np.float32)
    config = {k: v for k, v in document["config"].items() if k not in ("out", "data_root")}
    config["hidden"] = tuple(config["hidden"])
    run = Sparsify(out=options.directory, **config)
    model, guide = _programs(
        run, tuple(document["input_shape"]), document["outputs"], document["num_classes"]
    )
    result = load(options.directory / "model", model=model, guide=guide)
    samples = options.samples if run.method != "map" else 1
    prediction = result.predict(jax.random.key(options.seed), x, num_samples=samples)
    values = np.asarray(prediction.mean)
    if document["num_classes"] is None:
        values = values * np.asarray(document["target_scale"]) + np.asarray(document["target_mean"])
    staged = options.out.with_suffix(".tmp.npy")
    np.save(staged, values)
    os.replace(staged, options.out)
    print(f"predictions of shape {values.shape} in {options.out}")


def _inputs(path: Path) -> Any:
    import zipfile

    import numpy as np

    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.ndarray) and "x" not in stored:
                raise ValueError(f"it holds {stored.files}, expected an array x")
            x = stored if isinstance(stored, np.ndarray) else stored["x"]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as .npy or .npz: {error}.") from None
    if x.dtype.kind not in "iufb" or not np.isfinite(x).all():
        raise ValueError(f"{path}: the inputs must be finite numbers.")
    return np.asarray(x, np.float64)

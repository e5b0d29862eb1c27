"""What the command line takes, and what of it fits together."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bmrjax.cli.run_documents import read_options

PLOTS = ("learning_curves", "sparsity_per_layer", "path")
# What a run writes to its folder, and all that --overwrite deletes.
OURS = ("results.json", "model", "last_good", "checkpoints", "points", "run.json")
# What may differ between a run and its continuation.
FREE = ("out", "data_root", "resume", "overwrite", "progress", "samples", "epochs", "mesh", "log")
# What the end of its name says about a log: JSON lines, or a table.
LOGS = (".jsonl", ".csv")
# What is in proportion to the data where it is left out.
PROPORTIONS = (
    "hidden",
    "epochs",
    "steps_per_epoch",
    "batch_size",
    "reduced_prior",
    "prior_scale",
    "validation",
    "within",
    "kl_warmup",
    "stop_early",
    "tolerance",
)
BLOCK_NETS = ("vit", "mixer", "vit-nnx")
IMAGE_NETS = ("lenet5", "lenet5-caffe", *BLOCK_NETS)
RATES = {"map": 1e-3, "mean-field": 5e-3, "bmr": 1e-2, "noise": 1e-3}
# The parameters of noise end far from where they start.
NOISE_RATE = 10.0


@dataclass
class Sparsify:
    """Fit a network to data and prune it while it trains.

    Example: bmrjax sparsify --data digits --net mlp --hidden 100 100 --out runs/digits
    """

    data: str
    """digits, diabetes, mnist, fashion_mnist, cifar10; sine, sawtooth, square; or the path of a .npz or .csv
    file."""
    out: Path
    """Folder for results.json, the model, checkpoints and plots."""
    task: Literal["classification", "regression"] | None = None
    """For files: by default classification where the target is text, or whole numbers of few values."""
    target: str | None = None
    """For a .csv: name of the column to predict; the last one by default."""
    num_targets: int = 1
    """For a .csv: how many of the last columns are targets."""
    categories: tuple[str, ...] = ()
    """For a .csv: columns whose numbers are names of categories."""
    drop: tuple[str, ...] = ()
    """For a .csv: columns to leave out."""
    impute: bool = False
    """For a .csv: replace missing numbers by the median of their column."""
    split_seed: int = 0
    """Of the rows held out for testing, where the data have no test split of their own."""
    net: Literal["mlp", "lenet5", "lenet5-caffe", "vit", "mixer", "gru", "mlp-nnx", "vit-nnx"] = (
        "mlp"
    )
    """Network: an Equinox module, or with -nnx a Flax NNX module. The mlps take anything, a gru takes
    sequences, the others images."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers of an mlp, of a gru the first one counts. In proportion by default: 50
    for a table, 50 50 from 5,000 rows on, 100 100 for up to 10,000 images, 400 400 400 400 400 for more."""
    depth: int | None = None
    """Blocks of a vit or mixer; 6 by default."""
    width: int | None = None
    """Features of a token of a vit or mixer, 256 by default; their hidden layers have twice as many."""
    method: Literal["bmr", "noise", "mean-field", "map"] = "bmr"
    """bmr prunes weights; noise fits the weights as points, multiplies neurons and channels by log-normal
    noise, and prunes these; mean-field fits the posterior only; map fits a point, with dropout."""
    epochs: int | None = None
    """Epochs at most. In proportion by default: 200 for a table with bmr, which stops before, and 100 with
    other methods; 60 for few images; else 50."""
    steps_per_epoch: int | None = None
    """Steps per epoch. In proportion by default: 100 for a table, 200 for few images and for tables of
    5,000 rows or more, else one pass over the data."""
    batch_size: int | None = None
    """Data points per step; 128 by default."""
    learning_rate: float | None = None
    """Of AdaBelief; by default 1e-2 for bmr, 5e-3 for mean-field, 1e-3 for map and noise, whose own
    parameters learn ten times faster."""
    prior: Literal["flat", "horseshoe", "spike-slab", "log-uniform"] = "flat"
    """Prior of the weights: normal with a learned scale a layer; regularised horseshoe; spike-and-slab with
    an indicator a weight, which bmr then reads instead of computing them; or log-uniform, that of sparse
    variational dropout, where weights go that are 95 % noise."""
    prior_scale: float | None = None
    """flat and spike-slab: standard deviation of a weight, 0.1 by default; horseshoe: its global
    scale, 0.01 by default."""
    reduced_prior: Literal["spike-slab", "horseshoe", "shrinkage"] | None = None
    """What bmr puts in the prior's place to see which weights the evidence needs; shrinkage, a normal
    around zero of variance 1e-16, weight by weight, keeps more than spike-slab and predicts better where
    no validation data choose the point. By default spike-slab."""
    groups: Literal["outputs", "inputs"] | None = None
    """bmr: ask the evidence about whole neurons, filters and heads (outputs), or about what reads them
    (inputs), in place of single weights; with --reduced-prior shrinkage or spike-slab."""
    rule: Literal["bmrs-u", "bmrs-n", "snr"] = "bmrs-u"
    """noise: what goes. bmrs-u, whose evidence does not miss more than 8 binary digits of the noise; bmrs-n,
    whose evidence does not miss it at all, which is seldom (see --margin); snr, whose signal-to-noise ratio
    is below one."""
    margin: float | None = None
    """noise with --rule bmrs-n: nats of evidence that a unit may be worth and still go, 0 by default. .92
    does what the authors of BMRS published."""
    kl_warmup: int | None = None
    """Epochs over which the divergence from the prior comes in. By default a fifth of --epochs for a
    table, but at most 20; a fifth of --epochs with --prior log-uniform; else 0."""
    kl_weight: float = 1.0
    """noise: factor on its divergence from the prior; more removes more."""
    estimator: Literal["global", "local", "moments"] = "global"
    """Of the expected log likelihood: one sample of the weights a step, a sample of the pre-activations
    per data point, or means and variances without sampling."""
    matmul_dtype: Literal["bfloat16"] | None = None
    """bfloat16 multiplies matrices and convolves in it while training, with sums and all else in float32; for
    GPUs and TPUs."""
    mesh: str | None = None
    """Devices to spread the run over, such as data=4,model=2: batches are parted along data, the posterior
    and the optimiser's state along model. A run may be resumed over other devices."""
    schedule: Literal["verified", "every", "converged", "iterative"] | None = None
    """When to reduce; by default verified, and every for noise and --prior log-uniform. verified takes
    rounds back that raise the VFE; every is the published one; converged waits until epochs no longer lower
    the VFE; iterative ends an epoch there, --steps-per-epoch at most, and reduces as far as the measured VFE
    falls."""
    wait: int | None = None
    """Epochs before the first reduction; with verified a fifth of the run by default, 20 at most."""
    refit: int | None = None
    """Epochs between reductions; with verified a sixteenth of the run by default, 4 at most."""
    cooldown: int | None = None
    """Last epochs without reductions, over which the learning rate falls to zero; with verified a fifth of
    the run by default, 20 at most."""
    fraction: float | None = None
    """Cap on what one reduction may remove, as a fraction of what is kept; with verified .5 at first by
    default, and less after rounds that were taken back."""
    mask_prior: bool = False
    """verified: count the prior probability of the masks too, so that including few elements costs
    about ln(n / k) nats each; ends sparser."""
    tolerance: float | None = None
    """verified: nats by which a round may end above the lowest VFE so far. By default 1 for a table,
    else 0."""
    validation: float | None = None
    """Keep this fraction of the training data out, and end at the point of the path that predicts it
    best; with 0, at the point with the best VFE, which is sparser and on small data less accurate. By
    default 0.15 for a table and for few images, else 0."""
    within: float | None = None
    """With --validation: end at the sparsest point whose NLL on the validation data is within so many
    standard errors of the lowest, by the paired difference. By default 1 for a table, and 0 otherwise,
    the point with the lowest."""
    stop_early: bool | None = None
    """verified: begin the cooldown as soon as nothing more can go and the loss has settled, so that --epochs
    is only a bound. By default true for a table."""
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
    log: Path | None = None
    """File to log the run to while it goes on: a .jsonl gets a JSON object for each epoch and round, and a
    .csv a row for each epoch. With --resume it is appended to, and with --overwrite replaced."""


@dataclass
class Info:
    """Print what a run reached."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    path: bool = False
    """List the points that can be restored."""


@dataclass
class Predict:
    """Predict with a saved run, or with a file that bmrjax compress wrote.

    Predictions are class probabilities, or means in the unit of the targets.
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, or the file."""
    data: Path
    """A .npy file, or a .npz file with an array x: raw inputs, in the unit of the training data; for a
    run on a .csv, another one with the same columns, by name. Or the name of a data set, whose held-out
    data are predicted and scored, as a .csv is that has the target too."""
    out: Path | None = None
    """Where to write the predictions, as .npy or .csv."""
    data_root: Path | None = None
    """For the name of a data set: folder with a folder a data set."""
    samples: int = 100
    """Posterior samples; a file has one network."""
    seed: int = 0
    """Of the samples."""
    max_seconds: int = 600
    """Processor time that a file may take; it is run in a process of its own."""
    max_gigabytes: float = 8.0
    """Memory that it may take there."""


@dataclass
class Check:
    """Verify the files of a run: its results, its model, and its checkpoints against their digests.

    Prints what there is, and a line for what is damaged; the status is 1 if anything is. Nothing is changed.
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, or of an ensemble."""


@dataclass
class Compact:
    """Print how much smaller a saved run's network becomes without what it does not use."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path | None = None
    """Where to write the smaller network's arrays, as .safetensors."""
    batch_sizes: tuple[int, ...] = (1, 256)
    """Sizes of a batch to time both networks on."""
    repeats: int = 50
    """Calls a timing; 0 for none."""


@dataclass
class Compress:
    """Write a saved run's network as a small file, and print what takes how much.

    Example: bmrjax compress runs/digits --out digits.bmr
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path
    """Where to write the file."""
    compact: bool = True
    """Leave out neurons, filters and inputs that do nothing."""
    quantiser: Literal["rate-distortion", "k-means", "uniform", "relative-entropy"] = (
        "rate-distortion"
    )
    """rate-distortion weighs bits against each weight's posterior width; relative-entropy codes a draw from
    the posterior."""
    rate: float | None = None
    """rate-distortion: nats that a bit is worth, 0.1 by default; more for a smaller file."""
    tolerance: float = 0.02
    """uniform, and weights without a posterior: largest error, relative to the layer's typical weight."""
    clusters: int = 64
    """k-means: how many."""
    seed: int = 0
    """relative-entropy: of the draw."""
    coder: Literal["range", "ans", "huffman"] = "range"
    """Entropy coder."""
    layout: Literal["smallest", "gaps", "bitmap", "csr"] = "smallest"
    """How to say where the weights are."""
    offset_bits: int = 5
    """csr: bits of an offset."""


def check_options(options: Sparsify) -> None:
    """Refuse options that do not fit together, or a folder that is taken."""
    out, reduced_prior = options.out, options.reduced_prior or "spike-slab"
    if options.validation is not None and not 0 <= options.validation < 1:
        raise ValueError(f"--validation must be between 0 and 1, got {options.validation}.")
    if options.estimator != "global" and options.method == "map":
        raise ValueError("--estimator is of a posterior, and --method map fits a point.")
    if options.validation and options.method != "bmr":
        raise ValueError("--validation chooses a point on the path of --method bmr.")
    if options.within is not None and not 0 <= options.within < math.inf:
        raise ValueError(f"--within must not be negative, got {options.within}.")
    if options.resume and options.overwrite:
        raise ValueError("--resume goes on with a run and --overwrite deletes it; give one.")
    for name in ("samples", "epochs", "steps_per_epoch", "batch_size", "num_targets"):
        value = getattr(options, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be at least 1, got {value}.")
    if options.target is not None and options.num_targets != 1:
        raise ValueError("--target names one column and --num-targets counts them; give one.")
    hidden = () if options.hidden is None else options.hidden
    if any(width < 1 for width in hidden):
        raise ValueError(f"--hidden: widths must be at least 1, got {list(hidden)}.")
    for name in ("depth", "width"):
        value = getattr(options, name)
        if value is not None and options.net not in BLOCK_NETS:
            raise ValueError(f"--{name} is for vit, mixer and vit-nnx; {options.net} has none.")
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}.")
    if options.net == "gru" and options.hidden == ():
        raise ValueError("--hidden: a gru needs its number of units.")
    learning_rate_of(options)
    _check_reducing(options)
    _check_units(options)
    if options.prior_scale is not None and not 0 < options.prior_scale < math.inf:
        raise ValueError(f"--prior-scale must be positive, got {options.prior_scale}.")
    if options.prior != "flat" and options.method == "map":
        raise ValueError(
            f"--prior {options.prior} has no useful point estimate; --method map takes flat."
        )
    if options.prior == "log-uniform":
        if options.prior_scale is not None or reduced_prior != "spike-slab":
            raise ValueError(
                "--prior log-uniform has no scale and no evidence; leave --prior-scale and --reduced-prior "
                "out."
            )
        if options.mask_prior or options.schedule in ("verified", "iterative"):
            raise ValueError(
                "--prior log-uniform has no evidence to verify; take --schedule every or converged, "
                "without --mask-prior."
            )
    if options.prior == "spike-slab" and reduced_prior != "spike-slab":
        raise ValueError("--prior spike-slab has its own indicators; leave --reduced-prior out.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file; give a folder.")
    _check_log(options)
    present = [name for name in OURS if (out / name).exists()]
    if not present:
        return
    # `model` and `checkpoints` are common names: without a record of a run they are not ours.
    if not {"run.json", "results.json"} & set(present):
        raise ValueError(f"{out} holds {present[0]}, which no run wrote; give another --out.")
    if not options.resume and not options.overwrite:
        raise ValueError(f"{out} holds a run. Give --resume, --overwrite or another --out.")
    if options.resume and (out / "run.json").is_file():
        before, now = read_options(out), config_of(options)
        # What is left out is taken from the run.
        given = [k for k in now if k not in FREE and not (k in PROPORTIONS and now[k] is None)]
        changed = [k for k in given if before.get(k) != now[k]]
        if changed:
            differences = ", ".join(f"--{k.replace('_', '-')} was {before.get(k)}" for k in changed)
            raise ValueError(f"--resume goes on with the options that the run had: {differences}.")


def _check_log(options: Sparsify) -> None:
    """Refuse a log of an unknown kind, or one that would delete what the run in --out did not write."""
    log = options.log
    if log is None:
        return
    if log.suffix not in LOGS:
        raise ValueError(f"--log: the name must end in {' or '.join(LOGS)}, got {log}.")
    if log.exists() and not options.resume:
        record = options.out / "run.json"
        before = read_options(options.out) if record.is_file() else {}
        if not options.overwrite or before.get("log") != str(log):
            raise ValueError(f"--log: {log} exists already; give another file.")


def check_lengths(options: Sparsify) -> None:
    """Refuse lengths that do not fit into the run, once its number of epochs is known."""
    epochs = options.epochs
    assert epochs is not None
    if options.kl_warmup is not None and not 0 <= options.kl_warmup <= epochs:
        raise ValueError(
            f"--kl-warmup must be between 0 and --epochs {epochs}, got {options.kl_warmup}."
        )
    # The first round needs an epoch between the wait and the cooldown.
    reserved = (options.wait or 0) + (options.cooldown or 0)
    if epochs > 1 and reserved >= epochs:
        raise ValueError(
            f"--wait {options.wait or 0} and --cooldown {options.cooldown or 0} leave no epoch of "
            f"{epochs} for a reduction."
        )


def resumed(options: Sparsify) -> Sparsify:
    """Return the options of a run that goes on, with what was left out taken from the run."""
    if not options.resume or not (options.out / "run.json").is_file():
        return options
    before = read_options(options.out)
    filled: dict[str, Any] = {k: before.get(k) for k in PROPORTIONS if getattr(options, k) is None}
    if filled.get("hidden") is not None:
        filled["hidden"] = tuple(filled["hidden"])
    return replace(options, **filled)


def _check_reducing(options: Sparsify) -> None:
    """Refuse options of reductions that would do nothing."""
    if options.reduced_prior is not None and options.method != "bmr":
        raise ValueError(f"--reduced-prior is of --method bmr; {options.method} has none.")
    for name in ("stop_early", "tolerance"):
        if getattr(options, name) and not is_verified(options):
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} goes with --schedule verified, of --method bmr or noise.")
    if options.tolerance is not None and not 0 <= options.tolerance < math.inf:
        raise ValueError(f"--tolerance must not be negative, got {options.tolerance}.")
    if options.method in ("mean-field", "map"):
        for name in ("schedule", "wait", "refit", "cooldown", "fraction"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"--{name} is of reductions, and --method {options.method} has none."
                )


def _check_units(options: Sparsify) -> None:
    """Refuse options of whole units that do not fit together."""
    if not 0 < options.kl_weight < math.inf:
        raise ValueError(f"--kl-weight must be positive, got {options.kl_weight}.")
    if options.method != "noise":
        for name in ("kl_weight", "rule"):
            if getattr(options, name) != getattr(Sparsify, name):
                raise ValueError(f"--{name.replace('_', '-')} is of --method noise.")
    if options.groups is not None:
        if options.method != "bmr":
            raise ValueError("--groups is of --method bmr; noise is on whole units anyway.")
        if options.prior != "flat" or options.reduced_prior == "horseshoe":
            raise ValueError(
                "--groups goes with --prior flat, and --reduced-prior shrinkage or spike-slab."
            )
    if options.margin is not None:
        if options.method != "noise" or options.rule != "bmrs-n":
            raise ValueError("--margin is of --method noise --rule bmrs-n.")
        if not 0 <= options.margin < math.inf:
            raise ValueError(f"--margin must not be negative, got {options.margin}.")
    if options.method != "noise":
        return
    if options.net in ("gru", "mlp-nnx", "vit-nnx"):
        raise ValueError(
            f"--method noise puts noise into the layers of an Equinox network; {options.net} takes "
            "--method bmr --groups outputs."
        )
    if options.estimator != "global" or options.prior != "flat":
        raise ValueError("--method noise has no prior on its weights: no --estimator, no --prior.")
    if options.schedule == "iterative":
        raise ValueError("--method noise takes --schedule every, converged or verified.")


def config_of(options: Sparsify) -> dict[str, Any]:
    """Return the options as JSON, to compare with those of a run that goes on."""
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}


def kl_warmup_of(options: Sparsify) -> int:
    """Return the epochs over which the divergence comes in: those given, or the default of the prior."""
    if options.kl_warmup is not None:
        return options.kl_warmup
    assert options.epochs is not None
    return max(1, options.epochs // 5) if options.prior == "log-uniform" else 0


def schedule_of(options: Sparsify) -> str:
    """Return the name of the schedule: the one given, or the default of the method and the prior."""
    often = options.method == "noise" or options.prior == "log-uniform"
    return options.schedule or ("every" if often else "verified")


def is_verified(options: Sparsify) -> bool:
    """Return whether the run reduces, and takes back rounds that raise the VFE."""
    return options.method in ("bmr", "noise") and schedule_of(options) == "verified"


def learning_rate_of(options: Sparsify) -> float:
    """Return the learning rate: the one given, or the default of the method."""
    rate = options.learning_rate
    if rate is None:
        return RATES[options.method]
    if not 0 < rate < math.inf:
        raise ValueError(f"--learning-rate must be positive, got {rate}.")
    return rate

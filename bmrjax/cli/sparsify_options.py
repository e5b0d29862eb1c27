"""Options of `bmrjax sparsify`, and what follows from them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BLOCK_NETS = ("vit", "mixer", "vit-nnx")
IMAGE_NETS = ("lenet5", "lenet5-caffe", *BLOCK_NETS)
RATES = {"map": 1e-3, "mean-field": 5e-3, "bmr": 1e-2, "noise": 1e-3}
# The parameters of noise end far from where they start.
NOISE_RATE = 10.0


@dataclass
class SparsifyOptions:
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
    """Prior of the weights: normal with a learned scale per layer; regularised horseshoe; spike-and-slab with
    an indicator per weight, which bmr then reads instead of computing them; or log-uniform, that of sparse
    variational dropout, where weights go that are 95 % noise."""
    prior_scale: float | None = None
    """flat and spike-slab: standard deviation of a weight, 0.1 by default; horseshoe: its global
    scale, 0.01 by default."""
    reduced_prior: Literal["spike-slab", "horseshoe", "shrinkage"] | None = None
    """What bmr puts in the prior's place to see which weights the evidence needs; shrinkage, a normal
    around zero of variance 1e-16, weight by weight, keeps more than spike-slab and predicts better where
    no validation data choose the point. By default spike-slab."""
    groups: Literal["outputs", "inputs"] | None = None
    """bmr: judge whole neurons, filters and heads (outputs), or the weights that read them
    (inputs), in place of single weights; with --reduced-prior shrinkage or spike-slab."""
    rule: Literal["bmrs-u", "bmrs-n", "snr"] = "bmrs-u"
    """noise: which units are removed. bmrs-u, whose evidence does not miss more than 8 binary digits of the
    noise; bmrs-n, whose evidence does not miss it at all, which is seldom (see --margin); snr, whose
    signal-to-noise ratio is below one."""
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
    """Show on a terminal what goes on, and how long it will take."""
    log: Path | None = None
    """File to log the run to while it goes on: a .jsonl gets a JSON object for each epoch and round, and a
    .csv a row for each epoch. With --resume it is appended to, and with --overwrite replaced."""


def kl_warmup_of(options: SparsifyOptions) -> int:
    """Return the epochs over which the divergence comes in: those given, or the default of the prior."""
    if options.kl_warmup is not None:
        return options.kl_warmup
    assert options.epochs is not None
    return max(1, options.epochs // 5) if options.prior == "log-uniform" else 0


def schedule_of(options: SparsifyOptions) -> str:
    """Return the name of the schedule: the one given, or the default of the method and the prior."""
    often = options.method == "noise" or options.prior == "log-uniform"
    return options.schedule or ("every" if often else "verified")


def is_verified(options: SparsifyOptions) -> bool:
    """Return whether the run reduces, and takes back rounds that raise the VFE."""
    return options.method in ("bmr", "noise") and schedule_of(options) == "verified"


def learning_rate_of(options: SparsifyOptions) -> float:
    """Return the learning rate: the one given, or the default of the method."""
    rate = options.learning_rate
    if rate is None:
        return RATES[options.method]
    if not 0 < rate < math.inf:
        raise ValueError(f"--learning-rate must be positive, got {rate}.")
    return rate

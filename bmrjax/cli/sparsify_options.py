"""Options of `bmrjax sparsify`, and what follows from them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bmrjax.cli.data_options import DataOptions
from bmrjax.cli.option_texts import with_help

BLOCK_NETS = ("vit", "mlp-mixer", "nnx-vit")
IMAGE_NETS = ("lenet5", "lenet5-caffe", *BLOCK_NETS)
RATES = {"map": 1e-3, "mean-field": 5e-3, "bmr": 1e-2, "with-noise": 1e-3}
# The parameters of noise end far from where they start.
NOISE_RATE = 10.0


NetName = Literal["mlp", "lenet5", "lenet5-caffe", "vit", "mlp-mixer", "gru", "nnx-mlp", "nnx-vit"]
Method = Literal["bmr", "with-noise", "mean-field", "map"]
PriorName = Literal[
    "flat", "collapsed-flat", "regularized-horseshoe", "spike-and-slab", "log-uniform"
]
# Normals with one scale per layer.
FLAT = ("flat", "collapsed-flat")
# The classes of `bmrjax.criteria`, by their names in words.
CriterionName = Literal[
    "spike-and-slab",
    "shrinkage",
    "regularized-horseshoe",
    "bmrs-uniform",
    "bmrs-normal",
    "signal-to-noise",
]
OF_WEIGHTS = ("spike-and-slab", "shrinkage", "regularized-horseshoe")


@with_help
@dataclass(kw_only=True)
class SparsifyOptions(DataOptions):
    """Fit a network to data and prune it while it trains.

    Example: bmrjax sparsify --data digits --net mlp --hidden 100 100 --out runs/digits

    Options have the names that they have in Python.
    """

    out: Path
    """Folder for results.json, run.toml, the model, checkpoints and plots."""
    config: Path | None = None
    """A .toml file with options, such as the run.toml of an earlier run; options on the command line win."""
    net: NetName = "mlp"
    """Network: an Equinox module, or with nnx- a Flax NNX module. The mlps take anything, a gru takes
    sequences, the others images."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers of an mlp; a gru uses the first. In proportion to the data by default: 50
    for a table, 50 50 from 5,000 rows on, 100 100 for up to 10,000 images, 400 400 400 400 400 for more."""
    depth: int | None = None
    """Blocks of a vit or mlp-mixer; 6 by default."""
    width: int | None = None
    """Features of a token of a vit or mlp-mixer, 256 by default; their hidden layers have twice as many."""
    method: Method = "bmr"
    """bmr prunes weights; with-noise fits the weights as points, multiplies neurons and channels by
    log-normal noise, and prunes these; mean-field fits the posterior only; map fits a point, with dropout."""
    num_epochs: int | None = None
    """Epochs at most. In proportion to the data by default: 200 for a table with bmr, which stops before, and
    100 with other methods; 60 for few images; else 50."""
    steps_per_epoch: int | None = None
    """Steps per epoch. In proportion to the data by default: 100 for a table, 200 for few images and for
    tables of 5,000 rows or more, else one pass over the data."""
    batch_size: int | None = None
    """Data points per step; 128 by default."""
    learning_rate: float | None = None
    """Learning rate of AdaBelief; by default 1e-2 for bmr, 5e-3 for mean-field, 1e-3 for map and with-noise,
    whose own parameters learn ten times faster."""
    prior: PriorName = "flat"
    """Prior of the weights: normal with a learned scale per layer, or with one that follows the weights in
    closed form (collapsed-flat), where --learning-rate is in units of the weights; regularised horseshoe;
    spike-and-slab with an indicator per weight, which bmr then reads instead of computing them; or
    log-uniform, that of sparse variational dropout, which removes weights that are 95 % noise."""
    prior_scale: float | None = None
    """flat, collapsed-flat and spike-and-slab: standard deviation of a weight, 0.1 by default (0.3 for a
    table with flat or collapsed-flat); regularized-horseshoe: its global scale, 0.01 by default."""
    criterion: CriterionName | None = None
    """What decides which elements are kept. For bmr, what is put in the prior's place to see which weights
    the evidence needs: spike-and-slab, the default but for a table with at most as many columns as rows;
    regularized-horseshoe; or shrinkage, the default for such a table with a flat prior, a normal around zero
    of variance 1e-16, weight by weight, which keeps more and predicts better where no validation data choose
    the point. For with-noise: bmrs-uniform, the default, removes units whose evidence does not miss more than
    8 binary digits of the noise; bmrs-normal those whose evidence does not miss it at all, which is seldom
    (see --margin); signal-to-noise those whose ratio is below one."""
    groups: Literal["outputs", "inputs"] | None = None
    """bmr: judge whole neurons, filters and heads (outputs), or the weights that read them (inputs), in place
    of single weights; with --criterion shrinkage or spike-and-slab."""
    margin: float | None = None
    """with-noise and bmrs-normal: nats of evidence that a unit may be worth and still be removed, 0 by
    default. .92 does what the authors of BMRS published."""
    kl_warmup_epochs: int | None = None
    """Epochs over which the divergence from the prior comes in, along a straight line (kl_warmup counts
    steps). By default a fifth of --num-epochs for bmr, at most 20 (no such limit with --prior log-uniform); 0
    for other methods."""
    temperature: float | None = None
    """Below 1, the log likelihood is divided by it, in training and where rounds are judged: better
    predictions of networks at somewhat more weights, and far worse ones where there is little to learn. By
    default 1; a table whose validation rows are predicted better by a point estimate is fitted again with a
    slower warm-up, then at 0.25, and, if that predicts them better, at 0.5 and 1 from there: the warmest that
    is as good is taken."""
    kl_weight: float = 1.0
    """with-noise: factor on its divergence from the prior; more removes more."""
    estimator: Literal["global", "local", "moments"] = "global"
    """How the expected log likelihood is estimated: one sample of the weights per step, a sample of the
    pre-activations per data point, or means and variances without sampling."""
    matmul_dtype: Literal["bfloat16"] | None = None
    """bfloat16 multiplies matrices and convolves in it while training, with sums and all else in float32; for
    GPUs and TPUs."""
    mesh: str | None = None
    """Devices to spread the run over, such as data=4,model=2: batches are split along data, the posterior and
    the optimiser's state along model. A run may be resumed over other devices."""
    schedule: Literal["verified", "every", "when-converged", "iterative"] | None = None
    """When to reduce; by default verified, and every for with-noise and --prior log-uniform. verified takes
    rounds back that raise the VFE; every is the published one; when-converged waits until epochs no longer
    lower the VFE; iterative ends an epoch there, --steps-per-epoch at most, and reduces as far as the
    measured VFE falls."""
    wait: int | None = None
    """Epochs before the first reduction; with verified a fifth of the run by default, 20 at most."""
    refit: int | None = None
    """verified: epochs of re-fitting between reductions; a sixteenth of the run by default, 4 at most."""
    every: int | None = None
    """every: epochs between reductions, 1 by default."""
    cooldown: int | None = None
    """Last epochs without reductions, over which the learning rate falls to zero; with verified a fifth of
    the run by default, 20 at most."""
    fraction: float | None = None
    """Cap on what one reduction may remove, as a fraction of what is kept; with verified .5 at first by
    default, and less after rounds that were taken back."""
    mask_prior: bool = False
    """verified: count the prior probability of the masks too, so that including few elements costs about ln(n
    / k) nats each; ends sparser."""
    tolerance: float | None = None
    """verified: nats by which a round may end above the lowest VFE so far. By default 1 for a table, else
    0."""
    validation: float | None = None
    """Keep this fraction of the training data out, and end at the point of the path that predicts it best;
    with 0, at the point with the best VFE, which is sparser and on small data less accurate. By default 0.15
    for a table and for few images, else 0."""
    within: float | None = None
    """With --validation: end at the sparsest point whose NLL on the validation data is within so many
    standard errors of the lowest, by the paired difference. By default 1 for a table, and 0 otherwise, the
    point with the lowest."""
    stop_early: bool | None = None
    """verified: begin the cooldown as soon as nothing more can be removed and the loss has settled, so that
    --num-epochs is only a bound. By default true for a table."""
    num_samples: int | None = None
    """Posterior samples of the final metrics. By default 100; fewer where they would cost more than a
    fortieth of the training, on more than 1,000 test rows."""
    seed: int = 0
    """Seed of the initial weights, the minibatches and the noise."""
    resume: bool = False
    """Go on with the run in --out."""
    overwrite: bool = False
    """Delete an earlier run in --out first."""
    progress: bool = True
    """Show on a terminal what goes on, and how long it will take."""
    log: Path | None = None
    """File to log the run to while it goes on, but not further fits of a table: a .jsonl gets a
    JSON object for each epoch and round, and a .csv a row for each epoch. With --resume it is appended to,
    and with --overwrite replaced."""


def kl_warmup_epochs_of(options: SparsifyOptions) -> int:
    """Return the epochs over which the divergence comes in: those given, or the default of the prior."""
    if options.kl_warmup_epochs is not None:
        return options.kl_warmup_epochs
    assert options.num_epochs is not None
    return max(1, options.num_epochs // 5) if options.prior == "log-uniform" else 0


def schedule_of(options: SparsifyOptions) -> str:
    """Return the name of the schedule: the one given, or the default of the method and the prior."""
    often = options.method == "with-noise" or options.prior == "log-uniform"
    return options.schedule or ("every" if often else "verified")


def is_verified(options: SparsifyOptions) -> bool:
    """Return whether the run reduces, and takes back rounds that raise the VFE."""
    return options.method in ("bmr", "with-noise") and schedule_of(options) == "verified"


def learning_rate_of(options: SparsifyOptions) -> float:
    """Return the learning rate: the one given, or the default of the method."""
    rate = options.learning_rate
    if rate is None:
        return RATES[options.method]
    if not 0 < rate < math.inf:
        raise ValueError(f"--learning-rate must be positive, got {rate}.")
    return rate

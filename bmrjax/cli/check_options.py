"""Which options of `bmrjax sparsify` fit together."""

import math

from bmrjax.cli.run_folder import check_folder
from bmrjax.cli.sparsify_options import BLOCK_NETS, SparsifyOptions, is_verified, learning_rate_of


def check_options(options: SparsifyOptions) -> None:
    """Refuse options that do not fit together, or a folder that is taken."""
    reduced_prior = options.reduced_prior or "spike-slab"
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
    check_folder(options)


def check_lengths(options: SparsifyOptions) -> None:
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


def _check_reducing(options: SparsifyOptions) -> None:
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


def _check_units(options: SparsifyOptions) -> None:
    """Refuse options of whole units that do not fit together."""
    if not 0 < options.kl_weight < math.inf:
        raise ValueError(f"--kl-weight must be positive, got {options.kl_weight}.")
    if options.method != "noise":
        for name in ("kl_weight", "rule"):
            if getattr(options, name) != getattr(SparsifyOptions, name):
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

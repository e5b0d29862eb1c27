"""Which options of `bmrjax sparsify` fit together."""

import math
from typing import get_args

from bmrjax.cli.run_folder import check_folder
from bmrjax.cli.sparsify_options import (
    BLOCK_NETS,
    FLAT,
    OF_WEIGHTS,
    CriterionName,
    SparsifyOptions,
    is_verified,
    learning_rate_of,
)


def check_options(options: SparsifyOptions) -> None:
    """Refuse options that do not fit together, or a folder that is taken."""
    if options.validation is not None and not 0 <= options.validation < 1:
        raise ValueError(f"--validation must be between 0 and 1, got {options.validation}.")
    if options.estimator != "global" and options.method == "map":
        raise ValueError("--estimator is of a posterior, and --method map fits a point.")
    if options.validation and options.method != "bmr":
        raise ValueError("--validation chooses a point on the path of --method bmr.")
    if options.temperature is not None and not 0 < options.temperature < math.inf:
        raise ValueError(f"--temperature must be positive, got {options.temperature}.")
    if options.within is not None and not 0 <= options.within < math.inf:
        raise ValueError(f"--within must not be negative, got {options.within}.")
    if options.resume and options.overwrite:
        raise ValueError("--resume goes on with a run and --overwrite deletes it; give one.")
    for name in ("num_samples", "num_epochs", "steps_per_epoch", "batch_size", "num_targets"):
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
            raise ValueError(f"--{name} is for vit, mlp-mixer and nnx-vit; {options.net} has none.")
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
        if options.prior_scale is not None or options.criterion is not None:
            raise ValueError(
                "--prior log-uniform has no scale and no evidence; leave --prior-scale and --criterion out."
            )
        if options.mask_prior or options.schedule in ("verified", "iterative"):
            raise ValueError(
                "--prior log-uniform has no evidence to verify; take --schedule every or when-converged, "
                "without --mask-prior."
            )
    if options.prior == "spike-and-slab" and options.criterion is not None:
        raise ValueError("--prior spike-and-slab has its own indicators; leave --criterion out.")
    check_folder(options)


def check_lengths(options: SparsifyOptions) -> None:
    """Refuse lengths that do not fit into the run, once its number of epochs is known."""
    epochs = options.num_epochs
    assert epochs is not None
    if options.kl_warmup_epochs is not None and not 0 <= options.kl_warmup_epochs <= epochs:
        raise ValueError(
            f"--kl-warmup-epochs must be between 0 and --num-epochs {epochs}, got "
            f"{options.kl_warmup_epochs}."
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
    criterion = options.criterion
    if criterion is not None and (options.method == "bmr") != (criterion in OF_WEIGHTS):
        if options.method in ("mean-field", "map"):
            raise ValueError(
                f"--criterion is of reductions, and --method {options.method} has none."
            )
        others = [
            name
            for name in get_args(CriterionName)
            if (name in OF_WEIGHTS) == (options.method == "bmr")
        ]
        raise ValueError(
            f"--criterion {criterion} does not go with --method {options.method}; it takes "
            f"{', '.join(others)}."
        )
    for name in ("stop_early", "tolerance"):
        if getattr(options, name) and not is_verified(options):
            flag = name.replace("_", "-")
            raise ValueError(
                f"--{flag} goes with --schedule verified, of --method bmr or with-noise."
            )
    if options.tolerance is not None and not 0 <= options.tolerance < math.inf:
        raise ValueError(f"--tolerance must not be negative, got {options.tolerance}.")
    if options.method in ("mean-field", "map"):
        for name in ("schedule", "wait", "refit", "every", "cooldown", "fraction"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"--{name} is of reductions, and --method {options.method} has none."
                )


def _check_units(options: SparsifyOptions) -> None:
    """Refuse options of whole units that do not fit together."""
    if not 0 < options.kl_weight < math.inf:
        raise ValueError(f"--kl-weight must be positive, got {options.kl_weight}.")
    if options.method != "with-noise" and options.kl_weight != SparsifyOptions.kl_weight:
        raise ValueError("--kl-weight is of --method with-noise.")
    if options.groups is not None:
        if options.method != "bmr":
            raise ValueError("--groups is of --method bmr; with-noise is on whole units anyway.")
        if options.prior not in FLAT or options.criterion == "regularized-horseshoe":
            raise ValueError(
                "--groups goes with --prior flat or collapsed-flat, and --criterion shrinkage or "
                "spike-and-slab."
            )
    if options.margin is not None:
        if options.method != "with-noise" or options.criterion != "bmrs-normal":
            raise ValueError("--margin is of --method with-noise --criterion bmrs-normal.")
        if not 0 <= options.margin < math.inf:
            raise ValueError(f"--margin must not be negative, got {options.margin}.")
    if options.method != "with-noise":
        return
    if options.net in ("gru", "nnx-mlp", "nnx-vit"):
        raise ValueError(
            f"--method with-noise puts noise into the layers of an Equinox network; {options.net} takes "
            "--method bmr --groups outputs."
        )
    if options.estimator != "global" or options.prior != "flat":
        raise ValueError(
            "--method with-noise has no prior on its weights: no --estimator, no --prior."
        )
    if options.schedule == "iterative":
        raise ValueError("--method with-noise takes --schedule every, when-converged or verified.")

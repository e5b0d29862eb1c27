"""Fit, reduce, mask, repeat: the main job."""

from collections.abc import Callable, Sequence
from pathlib import Path

from jaxtyping import Array

from bmrjax.callbacks import Callback
from bmrjax.criteria import Criterion, SpikeAndSlab
from bmrjax.infer.arguments import Data
from bmrjax.infer.natural_gradient import Optimizer
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint_options import Checkpoints
from bmrjax.run.diagnose import warn_of
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.held_out import HeldOut
from bmrjax.run.one_run import Member
from bmrjax.run.progress import showing
from bmrjax.run.result import Result
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.settings import Settings
from bmrjax.run.training import Training
from bmrjax.schedules import Schedule


@one_at_a_time
def sparsify(
    model: Callable,
    data: Data | Batches,
    *,
    key: Array,
    num_epochs: int = 100,
    criterion: Criterion | None = SpikeAndSlab(),  # noqa: B008 - frozen, and holds no array
    schedule: Schedule | None = None,
    guide: Callable | None = None,
    optimizer: Optimizer | None = None,
    batch_size: int | None = 128,
    steps_per_epoch: int | None = None,
    sites: Sequence[str] | None = None,
    held_out: Data | HeldOut | None = None,
    checkpoints: str | Path | Checkpoints | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    options: FitOptions = FitOptions(),  # noqa: B008 - frozen, and holds no array
) -> Result:
    """Fit a NumPyro program by SVI and prune it while it trains, by Bayesian model reduction.

    Args:
        model: NumPyro program, called as ``model(*batch)`` on a tuple of arrays or
            ``model(**batch)`` on a dict. Written for the whole data set: in minibatches, the observed
            sites with a log density per row are scaled to the number of data, and a program whose rows
            depend on each other or on their position is refused. Without its targets, ``model(x)``, it
            predicts.
        data: Arguments of the program, or `Batches` for data that do not fit into memory. An array has
            rows if its leading axis is as long as that of most arrays; all other arguments (integers, None,
            strings, arrays of other lengths) reach the program as they are. Entries of dicts count one by
            one.
        key: PRNG key of the run; the same key gives the same result on the same machine.
        num_epochs: Epochs at most, those that a schedule takes back included.
        criterion: Decides which elements are kept; None fits without reducing (mean-field, or MAP with
            AutoDelta).
            `criteria.SpikeAndSlab` removes most; `criteria.Shrinkage` keeps up to three times as
            many weights, and predicts better.
        schedule: When to reduce and how much; `schedules.Verified` by default.
        guide: A guide with a sample site for every latent site. By default, a joint normal posterior,
            `infer.AutoMultivariate`, for programs with at most 300 latent elements and no network, if
            `criterion` reads normal posteriors, `options` has no other estimator, loss or mesh, and the
            optimiser is no `infer.NaturalGradient`.
            Otherwise `infer.AutoMeanField`, started at the network's own weights. What a
            pruned program or guide (`Result.model`, `Result.guide`) leaves out stays removed.
        optimizer: An optax optimiser, or `infer.NaturalGradient`; ``optax.adabelief(1e-2)`` by default.
        batch_size: Data per step. With None, or with at least as many as there are, every step sees all
            rows in their order and nothing is scaled, as in `numpyro.infer.SVI`.
        steps_per_epoch: Optimiser steps per epoch. By default, one pass over the data, and at least 100 steps
            unless the data are `Batches`.
        sites: Names of the sites to reduce. By default those with a normal posterior and a normal or Laplace
            prior that have more than one element and a prior centred at zero, and the weights of networks;
            `inspect` lists them.
        held_out: Data like `data` for the metrics of the history, or a `HeldOut` that also says how often
            they are taken. Used for reporting only.
        checkpoints: The folder where checkpoints go, or `Checkpoints` that also say how often, and whether
            to resume; none are written without it.
        callbacks: Functions that are called with a read-only record after each epoch and each round, and when
            the run starts and ends, such as `callbacks.JSONLines`. They do not change the result; see
            `callbacks.Callback` about errors, resumed runs and several processes.
        progress: Whether to show what the run does and how long it will take, on a terminal or in a
            notebook. Nothing is shown elsewhere, such as in a file.
        options: What is set less often, such as the estimator, an earlier result to start from, devices and
            precision; see `FitOptions`.

    Returns:
        The fitted, pruned program: parameters, masks, history, path; see `Result`. Of a schedule
        that measures the VFE, the point with the best VFE; else the last.

    Raises:
        TypeError: For data that are neither arrays nor `Batches`.
        ValueError: For data or settings that do not fit together; the message says what to do.
        InterruptedFit: On Ctrl-C, after the epoch in progress; a second Ctrl-C stops at once. Its `result`
            holds what the fit had reached, and a run with `checkpoints` has one to resume from.
        CallbackError: If a callback raised, after the epoch in progress. Its `result` holds what the fit had
            reached, and a run with `checkpoints` has one to resume from.
        NonFiniteError: When more than `FitOptions.max_bad_steps` steps in a row were not finite. Its `result`
            holds the last good state.

    Warns:
        FitWarning: If the loss was still falling, if the predictions do not depend on the inputs or are no
            better than a trivial one, or if a layer of a network is dead; see `Result.diagnose`. To silence
            it: ``warnings.filterwarnings("ignore", category=bmr.FitWarning)``.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> result = bmr.sparsify(
        ...     program, (x, 2.0 * x[:, 0]), key=jax.random.key(1), num_epochs=10,
        ...     batch_size=None, steps_per_epoch=100, progress=False,
        ...     schedule=bmr.schedules.Every(wait=5),
        ... )
        >>> result.keep["beta"].tolist()
        [True, False, False]

    References:
        Marković, Friston and Kiebel (2024), Algorithm 1, with the schedule as a part of its own.
    """
    settings = Settings(
        num_epochs=num_epochs,
        criterion=criterion,
        schedule=schedule,
        optimizer=optimizer,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        sites=sites,
        held_out=held_out,  # pyright: ignore[reportArgumentType] - settings take both forms
        checkpoints=checkpoints,  # pyright: ignore[reportArgumentType]
        callbacks=callbacks,
        options=options,
    )
    with showing(num_epochs, wanted=progress) as shown:
        training = Training(model, guide, data, settings)
        fit = training.fit
        result = training.one(Member(fit.model, fit.guide, key), shown)
    warn_of(result.diagnose())
    return result

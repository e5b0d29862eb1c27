"""Fit, reduce, mask, repeat: the main job."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import optax
from jaxtyping import Array

from bmrjax.callbacks import Callback
from bmrjax.criteria import Criterion, SpikeAndSlab
from bmrjax.infer.arguments import Data
from bmrjax.infer.estimate import Estimator
from bmrjax.infer.loop import LoopMode
from bmrjax.infer.mixed_precision import MatmulDtype
from bmrjax.run.assembly import Assembly
from bmrjax.run.batches import Batches
from bmrjax.run.diagnose import warn_of
from bmrjax.run.result import Result
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.settings import Settings
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
    optimizer: optax.GradientTransformation | None = None,
    loss: Any = None,
    estimator: Estimator = "global",
    batch_size: int | None = 128,
    steps_per_epoch: int | None = None,
    sites: Sequence[str] | None = None,
    static: Sequence[str | int] = (),
    held_out: Data | None = None,
    eval_samples: int = 5,
    eval_every: int | None = None,
    final_samples: int = 100,
    kl_weight: float = 1.0,
    kl_warmup: int = 0,
    max_bad_steps: int = 20,
    loop: LoopMode = "auto",
    directory: str | Path | None = None,
    checkpoint_interval: float = 10.0,
    resume: bool = False,
    start: Result | None = None,
    mesh: jax.sharding.Mesh | None = None,
    matmul_dtype: MatmulDtype | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
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
            `criterion` reads normal posteriors and `estimator`, `loss` and `mesh` are left at their defaults.
            Otherwise `infer.AutoMeanField`, started at the network's own weights. What a
            pruned program or guide (`Result.model`, `Result.guide`) leaves out stays removed.
        optimizer: An optax optimiser; ``optax.adabelief(1e-2)`` by default.
        loss: A NumPyro ELBO; by default the one that `estimator` names.
        estimator: Of the expected log likelihood: ``"global"``, one sample of the weights per step (Bayes by
            backprop); ``"local"``, a sample of the pre-activations per data point; or ``"moments"``, without
            sampling. See `infer.PropagatedELBO`.
        batch_size: Data per step. With None, or with at least as many as there are, every step sees all
            rows in their order and nothing is scaled, as in `numpyro.infer.SVI`.
        steps_per_epoch: Optimiser steps per epoch. By default, one pass over the data, and at least 100 steps
            unless the data are `Batches`.
        static: Arguments that reach the program as they are although they have rows, by keyword or position:
            an index array, say, that the program passes to `numpy.unique`. With all data in every step, an
            argument whose values the program reads is found without.
        sites: Names of the sites to reduce. By default those with a normal prior and posterior that have more
            than one element and a prior centred at zero, and the weights of networks; `inspect` lists them.
        held_out: Data like `data` for the metrics of the history. Used for reporting only.
        eval_samples: Posterior samples of those metrics.
        eval_every: Epochs between them; by default so many that they cost under a tenth of the
            training, counted in passes through the network. Points of the path have them too.
        final_samples: Posterior samples of the metrics at the end.
        kl_weight: Factor on the KL term while training.
        kl_warmup: Steps over which that factor grows linearly from zero.
        max_bad_steps: Steps in a row that may be skipped for a loss or gradient that is not finite.
        loop: ``"fused"``, ``"dispatch"`` or ``"auto"``; see `infer.loop.Loop`.
        directory: Where checkpoints go; none are written without it.
        checkpoint_interval: Seconds between checkpoints at least; 0 writes one every epoch.
        resume: Go on from the last checkpoint in `directory`, if it has one.
        start: An earlier result to go on from: parameters of the same names are taken over (a `FitWarning`
            names those that fit nothing), and what it removed stays removed. The prior, the criterion and
            all settings may be others.
        mesh: Devices to spread the run over: each takes a part of every batch along an axis ``"data"``, and
            keeps a part of the posterior, the optimiser's state and the masks along an axis ``"model"``. The
            result is that of one device, up to the order of sums.
        matmul_dtype: ``"bfloat16"`` rounds the operands of the program's float32 matrix products and
            convolutions to bfloat16 while training, forward and backward, with sums in float32. Parameters,
            posterior, divergence, noise, optimiser and likelihood stay in float32, and so does all that is
            measured. Made for GPUs and TPUs. A product that asks for ``precision="highest"`` stays as it is.
        callbacks: Functions that are called with a read-only record after each epoch and each round, and when
            the run starts and ends, such as `callbacks.JSONLines`. They do not change the result; see
            `callbacks.Callback` about errors, resumed runs and several processes.
        progress: Whether to show a progress bar.

    Returns:
        The fitted, pruned program: parameters, masks, history, path; see `Result`. Of a schedule
        that measures the VFE, the point with the best VFE; else the last.

    Raises:
        TypeError: For data that are neither arrays nor `Batches`.
        ValueError: For data or settings that do not fit together; the message says what to do.
        InterruptedFit: On Ctrl-C, after the epoch in progress; a second Ctrl-C stops at once. Its `result`
            holds what the fit had reached, and a run with a `directory` has a checkpoint to resume from.
        CallbackError: If a callback raised, after the epoch in progress. Its `result` holds what the fit had
            reached, and a run with a `directory` has a checkpoint to resume from.
        NonFiniteError: When more than `max_bad_steps` steps in a row were not finite. Its `result`
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
        loss=loss,
        estimator=estimator,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        sites=sites,
        static=static,
        held_out=held_out,
        eval_samples=eval_samples,
        eval_every=eval_every,
        final_samples=final_samples,
        kl_weight=kl_weight,
        kl_warmup=kl_warmup,
        max_bad_steps=max_bad_steps,
        loop=loop,
        checkpoint_interval=checkpoint_interval,
        start=start,
        mesh=mesh,
        matmul_dtype=matmul_dtype,
        callbacks=callbacks,
    )
    assembly = Assembly(model, guide, data, settings)
    program, its_guide = assembly.fit.model, assembly.fit.guide
    with assembly.runner(program, its_guide, key, directory=directory, resume=resume) as runner:
        runner.run(progress=progress)
        result = assembly.result(runner)
    assembly.callbacks.check(result)
    warn_of(result.diagnose())
    return result

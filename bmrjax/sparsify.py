"""Fit, reduce, mask, repeat: the main job."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from numpyro.infer import TraceMeanField_ELBO

from bmrjax.batches import Batches, check_data
from bmrjax.checkpoint import Checkpointer
from bmrjax.criteria import Criterion, SpikeAndSlab
from bmrjax.infer.engine import Data, Engine, check_local_latents
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.loop import LoopMode
from bmrjax.infer.posterior import SitePosteriors
from bmrjax.reduction import SpikeAndSlab as SpikeAndSlabPosterior
from bmrjax.result import Result, best
from bmrjax.runner import Evaluation, Reducer, Runner, only
from bmrjax.schedules import Schedule, Verified


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
    batch_size: int | None = 128,
    steps_per_epoch: int | None = None,
    sites: Sequence[str] | None = None,
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
    progress: bool = True,
) -> Result:
    """Fit a NumPyro program by SVI and prune it while it trains, by Bayesian model reduction.

    Args:
        model: NumPyro program, called as ``model(*batch)`` on a tuple of arrays or
            ``model(**batch)`` on a dict. Written as for the whole data set: the likelihood is
            scaled to the number of data. Without its targets, ``model(x)``, it predicts.
        data: Arrays with a common leading axis, or `Batches` for data that do not fit.
        key: PRNG key of the run; the same key gives the same result on the same machine.
        num_epochs: Epochs at most, those that a schedule takes back included.
        criterion: Who stays; None fits without reducing (mean-field, or MAP with AutoDelta).
        schedule: When to reduce and how much; `schedules.Verified` by default.
        guide: A guide with a sample site for every latent site. By default
            `infer.AutoMeanField`, started at the network's own weights.
        optimizer: An optax optimiser; ``optax.adabelief(1e-2)`` by default.
        loss: A NumPyro ELBO; ``TraceMeanField_ELBO()`` by default.
        batch_size: Data a step; None for all of them.
        steps_per_epoch: Steps an epoch; one pass over the data by default.
        sites: Names of the sites to reduce; by default all with a normal prior and posterior.
        held_out: Data like `data` for the metrics of the history. They decide nothing.
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
        progress: Whether to show a progress bar.

    Returns:
        The fitted, pruned program: parameters, masks, history, path; see `Result`. Of a schedule
        that measures the VFE, the point with the best VFE; else the last.

    Raises:
        TypeError: For data that are neither arrays nor `Batches`.
        ValueError: For data or settings that do not fit together; the message says what to do.
        NonFiniteError: When more than `max_bad_steps` steps in a row were not finite. Its `result`
            holds the last good state.

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
    begin = time.perf_counter()
    source: Data | Batches = data if isinstance(data, Batches) else check_data(data, "data")
    num_data, size, example = _sizes(source, batch_size)
    if held_out is not None:
        held_out = check_data(held_out, "held_out")
        _check_alike(held_out, example)
    steps = max(num_data // size, 1) if steps_per_epoch is None else steps_per_epoch
    for name, value in (("num_epochs", num_epochs), ("steps_per_epoch", steps)):
        if value < 1:
            raise ValueError(f"sparsify: {name} must be at least 1, got {value}.")
    schedule = Verified() if schedule is None else schedule
    if isinstance(source, Batches) and schedule.verifies and criterion is not None:
        raise ValueError(
            "sparsify: a schedule that measures the VFE needs arrays, and the data are Batches. Use "
            "schedules.Every(...) or schedules.WhenConverged(...)."
        )
    without = criterion is not None and type(criterion).mask_log_prob is Criterion.mask_log_prob
    if schedule.mask_prior and without:
        raise ValueError(
            f"sparsify: mask_prior needs a criterion with a prior over masks, and "
            f"{type(criterion).__name__} has none. Use criteria.SpikeAndSlab, or leave mask_prior out."
        )
    init_key, run_key, vfe_key, final_key = jax.random.split(key, 4)
    if size < num_data:
        check_local_latents(model, example, init_key)
    checkpointer = _checkpointer(directory, checkpoint_interval, resume=resume)

    guide = AutoMeanField(model) if guide is None else guide
    engine = Engine(
        model,
        guide,
        optimizer=optax.adabelief(1e-2) if optimizer is None else optimizer,
        loss=TraceMeanField_ELBO() if loss is None else loss,
        num_data=num_data,
        batch_size=size,
        kl_weight=kl_weight,
        kl_warmup=kl_warmup,
        loop=loop,
    )
    started = time.perf_counter()
    state = engine.init(init_key, example)
    init_seconds = time.perf_counter() - started
    reducer, keep, criterion_state = None, {}, None
    if criterion is not None or sites is not None:
        found = _reducible(engine.site_posteriors(state, example), sites, criterion)
        keep = {name: jnp.ones(q.loc.shape, bool) for name, q in found.posterior.items()}
        if criterion is not None:
            criterion_state = criterion.init(found.posterior)
            names = list(found.posterior)
            reducer = Reducer(criterion, schedule, names, found.layers, example)
    evaluation = None
    if held_out is not None:
        every = eval_every
        if every is None:
            # One training step costs about three forward passes of its batch.
            forward = jax.tree.leaves(held_out)[0].shape[0] * eval_samples
            every = max(1, math.ceil(forward / (0.1 * 3 * steps * size)))
        evaluation = Evaluation(held_out, eval_samples, every)

    def make_result(runner: Runner) -> Result:
        return Result(
            params=runner.params(),
            keep=dict(runner.now.keep),
            layers={} if reducer is None else reducer.layers,
            num_data=num_data,
            history=runner.history,
            path=runner.path,
            timing={
                "init_seconds": init_seconds,
                "compile_seconds": engine.compile_seconds,
                "seconds": time.perf_counter() - begin,
            },
            num_skipped=int(runner.now.state.num_skipped),
            loop_mode=engine.loop_mode,
            num_compilations=engine.num_compilations,
            model=model,
            guide=guide,
        )

    evaluator = Evaluator(model, guide, loop=loop)
    runner = Runner(
        engine,
        evaluator,
        source,
        state,
        reducer=reducer,
        evaluation=evaluation,
        keep=keep,
        criterion_state=criterion_state,
        run_key=run_key,
        vfe_key=vfe_key,
        num_epochs=num_epochs,
        steps=steps,
        max_bad_steps=max_bad_steps,
        checkpointer=checkpointer,
        make_result=make_result,
    )
    try:
        if resume:
            runner.restore()
        runner.run(progress=progress)
    finally:
        if checkpointer is not None:
            checkpointer.close()
    if not isinstance(source, Batches):
        runner.add_point(runner.measure())
    result = make_result(runner)
    if result.path:
        verified = reducer is not None and schedule.verifies
        result = result.at(best(result.path) if verified else -1)
    if held_out is not None:
        result.metrics = evaluator.metrics(
            result.params, result.keep, held_out, final_key, num_samples=final_samples
        )
    return result


def _sizes(source: Data | Batches, batch_size: int | None) -> tuple[int, int, Data]:
    if isinstance(source, Batches):
        example = source.example()
        return source.num_data, jax.tree.leaves(example)[0].shape[0], example
    num_data = jax.tree.leaves(source)[0].shape[0]
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"sparsify: batch_size must be at least 1 or None, got {batch_size}.")
    size = num_data if batch_size is None else min(batch_size, num_data)
    return num_data, size, jax.tree.map(lambda a: a[:size], source)


def _check_alike(held_out: Data, example: Data) -> None:
    def describe(data: Data) -> Any:
        return jax.tree.map(lambda a: f"(rows, {', '.join(map(str, a.shape[1:]))})", data)

    if describe(held_out) != describe(example):
        raise ValueError(
            f"sparsify: held_out must look like the data: it has {describe(held_out)}, the data have "
            f"{describe(example)}."
        )


def _checkpointer(
    directory: str | Path | None, interval: float, *, resume: bool
) -> Checkpointer | None:
    if directory is None:
        if resume:
            raise ValueError("sparsify: resume=True needs the `directory` that the run wrote to.")
        return None
    checkpointer = Checkpointer(Path(directory), interval=interval)
    if not resume:
        checkpointer.require_empty()
    return checkpointer


def _reducible(
    found: SitePosteriors, sites: Sequence[str] | None, criterion: Criterion | None
) -> SitePosteriors:
    if criterion is not None:
        family = criterion.family
        found = only(found, [n for n, q in found.posterior.items() if isinstance(q, family)])
    names = list(found.posterior)
    unknown = sorted(set(sites or ()) - set(names))
    if unknown:
        raise ValueError(
            f"sparsify: the sites {unknown} cannot be reduced: they are no latent sites of the program, "
            f"or their prior or posterior is not {_told(criterion)}. Those that can: {names}."
        )
    if sites is not None and not sites:
        raise ValueError("sparsify: sites is empty; name some, or leave it out for all of them.")
    if not names and criterion is not None:
        raise ValueError(
            f"sparsify: {type(criterion).__name__} needs a latent site with a {_told(criterion)} prior "
            f"and a {_told(criterion)} posterior, and the program and its guide have none. Use "
            f"AutoMeanField or AutoNormal as the guide, and {_told(criterion)} priors on what may go; or "
            "criterion=None to fit without reducing."
        )
    return found if sites is None else only(found, list(sites))


def _told(criterion: Criterion | None) -> str:
    """Return the name of a criterion's family for a sentence."""
    spiked = criterion is not None and criterion.family is SpikeAndSlabPosterior
    return "spike-and-slab" if spiked else "normal"

"""Many seeds and settings of a program, fitted and pruned side by side in one compiled program."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.infer.autoguide import AutoGuide
from tqdm.auto import tqdm

from bmrjax.errors import EnsembleError, NonFiniteError
from bmrjax.infer.arguments import Data
from bmrjax.infer.default_guide import default_guide
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.program_data import program_data
from bmrjax.run.assembly import Assembly
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint_options import Checkpoints
from bmrjax.run.hyperparameter import Member, members_of
from bmrjax.run.interrupt import finishing_on_interrupt
from bmrjax.run.result import Result
from bmrjax.run.runner import Plan, Runner
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.settings import Settings, check_kinds


@one_at_a_time
def ensemble(
    model: Callable | Sequence[Callable],
    data: Data,
    *,
    keys: Sequence[Array] | Array,
    grid: Mapping[str, Sequence[Any]] | None = None,
    guide: Callable[[Callable], Callable] | None = None,
    progress: bool = True,
    **settings: Any,
) -> list[Result]:
    """Run `sparsify` once a key and point of a grid, with all training vectorised into one program.

    Each member is what `sparsify` with its key and its settings would be, to rounding: it has its own
    start, noise, masks, rounds and learning rate. Compiling happens once. Small programs, whose steps
    cost more to start than to compute, gain most; on CPU a network with convolutions loses, because XLA runs
    convolutions with several sets of filters slowly there. Memory grows with the number of members.

    Args:
        model: NumPyro program; or one a member, which may differ in the network that they start
            from, and in nothing else.
        data: Arrays with a common leading axis, shared by the members.
        keys: PRNG keys, one a member.
        grid: Values by name: of a `hyperparameter` of the program; of ``"kl_weight"``, factors on the
            divergence; of ``"rate"``, factors on the optimiser's updates; or of ``"criterion"``, criteria,
            whose reductions are compiled one by one. There is a member for every combination.
        guide: Makes a member's guide from its program; by default, the class that `sparsify` would take for
            the first program, `infer.AutoMultivariate` or `infer.AutoMeanField`.
        progress: Whether to show a progress bar.
        **settings: All others of `sparsify`. Its `callbacks` are shared by the members, and each record has
            its ``member``.

    Returns:
        One result a member: a point of the grid after the other, the last name's values side by side, and
        the keys in order at each. A result's ``hyperparameters`` say what the grid gave it.

    Raises:
        TypeError: For a setting that `sparsify` does not have.
        ValueError: As `sparsify`, or if the numbers of programs and keys differ.
        EnsembleError: When members diverged; it holds every member's result.
        CallbackError: If a callback raised; its `result` is the list of what the members had reached.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> results = bmr.ensemble(
        ...     program, (x, 2.0 * x[:, 0]), keys=jax.random.split(jax.random.key(1), 4),
        ...     num_epochs=10, batch_size=None, steps_per_epoch=100, progress=False,
        ...     schedule=bmr.schedules.Every(wait=5),
        ... )
        >>> [result.num_kept for result in results]
        [1, 1, 1, 1]
    """
    if isinstance(data, Batches):
        raise TypeError("ensemble: the members share arrays; Batches are for single runs.")
    unknown = sorted(settings.keys() - {field.name for field in fields(Settings)})
    if unknown:
        raise TypeError(f"ensemble() got an unexpected keyword argument '{unknown[0]}'")
    given = Settings(**settings)
    check_kinds(given, None)
    if given.options.mesh is not None:
        raise ValueError(
            "ensemble: members share one device; mesh is for single runs, of sparsify."
        )
    if isinstance(guide, AutoGuide):
        raise TypeError(
            f"ensemble: guide makes each member's guide; give {type(guide).__name__} itself, or "
            "a function, not one that is made."
        )
    if not isinstance(keys, Sequence) and jnp.ndim(keys) == 0:
        raise ValueError("ensemble: give several keys, such as jax.random.split(key, 5).")
    keys = list(keys)
    models = list(model) if isinstance(model, Sequence) else [model] * len(keys)
    if not keys or len(models) != len(keys):
        raise ValueError(
            f"ensemble: give one program, or one a key: there are {len(models)} programs for "
            f"{len(keys)} keys."
        )
    points = members_of(grid)
    if points[0].criterion is not None:
        given = replace(given, criterion=points[0].criterion)
    members = [
        (point, key, point.given(program))
        for point in points
        for key, program in zip(keys, models, strict=True)
    ]
    if guide is None:
        guide = _default_guide(members[0][2], data, given, points)
    # The engine's guide is that of a member, which meets its program before the training step is traced.
    guides = [guide(program) for _, _, program in members]
    assembly = Assembly(models[0], guides[0], data, given)
    failures: dict[int, NonFiniteError] = {}
    with contextlib.ExitStack() as stack:
        runners = [
            stack.enter_context(
                assembly.runner(
                    program,
                    guides[i],
                    key,
                    _member(given.checkpoints, i),
                    member=point,
                    index=i,
                )
            )
            for i, (point, key, program) in enumerate(members)
        ]
        _run(assembly, runners, failures, progress=progress)
        results = [
            failures[i].result if i in failures else assembly.result(runner)
            for i, runner in enumerate(runners)
        ]
    if failures:
        error = EnsembleError(results, failures)
        assembly.callbacks.note_in(error)
        raise error
    assembly.callbacks.check(results)
    return results


def _default_guide(
    program: Callable, data: Data, given: Settings, points: list[Member]
) -> Callable[[Callable], Callable]:
    """Return the class of guide that serves all criteria of the grid."""
    options = given.options
    found = {
        default_guide(
            program,
            program_data(program, data, batch_size=given.batch_size, static=options.static),
            criterion=given.criterion if point.criterion is None else point.criterion,
            estimator=options.estimator,
            loss=options.loss,
            start=options.start,
        )
        for point in points
    }
    return found.pop() if len(found) == 1 else AutoMeanField


def _member(checkpoints: Checkpoints | None, i: int) -> Checkpoints | None:
    if checkpoints is None:
        return None
    return replace(checkpoints, directory=Path(checkpoints.directory) / f"member-{i}")


def _run(
    assembly: Assembly,
    runners: list[Runner],
    failures: dict[int, NonFiniteError],
    *,
    progress: bool,
) -> None:
    """Run all members to their ends, an epoch of each at a time."""

    def checked(i: int, check: Callable[[], None]) -> None:
        try:
            check()
        except NonFiniteError as error:
            failures[i] = error
            runners[i].reporter.end("diverged")

    for i, runner in enumerate(runners):
        checked(i, runner.check_resumed)
    behind = min(runner.epoch for runner in runners)
    with (
        tqdm(
            total=runners[0].num_epochs, initial=behind, disable=not progress, unit="epoch"
        ) as bar,
        finishing_on_interrupt() as interruption,
    ):
        while True:
            plans = {
                i: plan
                for i, runner in enumerate(runners)
                if i not in failures and (plan := runner.plan()) is not None
            }
            if not plans:
                break
            _train(assembly, runners, plans)
            for i in plans:
                checked(i, runners[i].after_epoch)
            bar.set_postfix(_shown(runners), refresh=False)
            bar.update(min(runner.epoch for runner in runners) - bar.n)
            left = any(not runner.over for i, runner in enumerate(runners) if i not in failures)
            if interruption.requested or (assembly.callbacks.failed() and left):
                for runner in runners:
                    runner.save_if_asked()
                raise assembly.callbacks.ending(
                    interrupted=interruption.requested,
                    epoch=runners[0].epoch,
                    result=[runner.make_result(runner) for runner in runners],
                    saved=runners[0].checkpointer is not None,
                )
    for i, runner in enumerate(runners):
        if i not in failures:
            runner.save_if_asked()


def _train(assembly: Assembly, runners: list[Runner], plans: dict[int, Plan]) -> None:
    """Take one epoch of the members that have a plan; the others go along and stay as they are."""
    fit, engine = assembly.fit, assembly.fit.engine
    begin, compiled = time.perf_counter(), engine.compile_seconds
    ended = engine.epoch_of_many(
        [runner.now.svi for runner in runners],
        [runner.now.keep for runner in runners],
        fit.arrays,
        [runner.epoch_key() for runner in runners],
        num_steps=assembly.steps,
        rates=[plans[i].rate * r.member.rate if i in plans else 0.0 for i, r in enumerate(runners)],
        kl_weights=[r.member.kl_weight or engine.kl_weight for r in runners],
    )
    losses = [np.asarray(info.losses)[: int(info.num_steps)] for _, info in ended]
    compiled = engine.compile_seconds - compiled
    # An epoch's time is that of all members, divided among those that took it.
    seconds = (time.perf_counter() - begin - compiled) / len(plans)
    for i, plan in plans.items():
        state = replace(runners[i].now, svi=ended[i][0])
        runners[i].record(plan, state, losses[i], seconds=seconds, compile_seconds=compiled)


def _shown(runners: list[Runner]) -> dict[str, str]:
    """Return what the progress bar shows: the range over the members of each figure."""
    shown = [runner.shown() for runner in runners if runner.history]
    ranges = {}
    for name in shown[0]:
        values = sorted((found[name] for found in shown if name in found), key=float)
        low, high = values[0], values[-1]
        ranges[name] = low if low == high else f"{low}–{high}"
    return ranges

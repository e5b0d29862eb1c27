"""What a run is made of: settings and data checked, engine and evaluator built, runs started."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array

from bmrjax.backend.random_keys import split_keys
from bmrjax.checks import check_key
from bmrjax.criteria import Criterion
from bmrjax.infer.arguments import Data, length
from bmrjax.infer.check_data import check_data, row_paths
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.infer.state import State
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.facts import Examination
from bmrjax.run.fit import Fit
from bmrjax.run.hyperparameter import Member
from bmrjax.run.point import best
from bmrjax.run.reporter import Callbacks, Reporter
from bmrjax.run.result import Result
from bmrjax.run.runner import Evaluation, Runner
from bmrjax.run.same_run import identity
from bmrjax.run.settings import Settings, check_kinds, check_program_kind
from bmrjax.schedules import Schedule, Verified


class Assembly:
    """Everything that the runs of one program share, compiled once.

    Args:
        model: NumPyro program.
        guide: Its guide; see `infer.default_guide` for the one it has by default.
        data: Arrays with a common leading axis, or `Batches`.
        settings: See `sparsify`.

    Raises:
        TypeError: For data that are neither arrays nor `Batches`.
        ValueError: For data or settings that do not fit together; the message says what to do.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable | None,
        data: Data | Batches,
        settings: Settings,
    ):
        self._begin = time.perf_counter()
        check_program_kind(model)
        check_kinds(settings, unpruned(guide)[0])
        self.settings, self._given_guide = settings, guide
        self.schedule = Verified() if settings.schedule is None else settings.schedule
        until = None if settings.criterion is None else self.schedule.until
        if settings.loss is not None and settings.estimator != "global":
            raise ValueError(
                "sparsify: the estimator is a part of the loss; give one of the two, such as "
                f"loss=infer.PropagatedELBO({settings.estimator!r})."
            )
        self.fit = fit = Fit(
            model,
            data,
            guide,
            criterion=settings.criterion,
            order=self.schedule.order,
            sites=settings.sites,
            optimizer=settings.optimizer,
            loss=settings.estimator if settings.loss is None else settings.loss,
            batch_size=settings.batch_size,
            static=settings.static,
            kl_weight=settings.kl_weight,
            kl_warmup=settings.kl_warmup,
            until=until,
            start=settings.start,
            loop=settings.loop,
            mesh=settings.mesh,
            matmul_dtype=settings.matmul_dtype,
        )
        steps = settings.steps_per_epoch
        self.steps = fit.steps if steps is None else steps
        self.callbacks = Callbacks(settings.callbacks, fit.placement)
        self._held_out = settings.held_out
        if self._held_out is not None:
            self._held_out = check_data(self._held_out, "held_out", rows=fit.row_paths)
            _check_alike(self._held_out, fit.example)
        for name, value in (("num_epochs", settings.num_epochs), ("steps_per_epoch", self.steps)):
            if value < 1:
                raise ValueError(f"sparsify: {name} must be at least 1, got {value}.")
        _check_schedule(self.schedule, settings.criterion, self.fit.source, self.steps)
        # Rows are evaluated in parts if they are fitted in parts.
        self.evaluator = Evaluator(
            fit.model,
            fit.guide,
            batch_size=None if fit.row_sites is None else 1000,
            loop=settings.loop,
            placement=fit.placement,
        )
        self._evaluation = self._make_evaluation(fit.engine.batch_size)

    def _make_evaluation(self, size: int) -> Evaluation | None:
        if self._held_out is None:
            return None
        every, samples = self.settings.eval_every, self.settings.eval_samples
        if every is None:
            # One training step costs about three forward passes of its batch.
            forward = length(self._held_out) * samples
            every = max(1, math.ceil(forward / (0.1 * 3 * self.steps * size)))
        return Evaluation(self._held_out, samples, every)

    def _identity(self, model: Callable) -> dict[str, Any]:
        """Return what must be the same for a run to go on."""
        return identity(model, self._given_guide, self.fit.source, self.settings)

    @contextlib.contextmanager
    def runner(
        self,
        model: Callable,
        guide: Callable,
        key: Array,
        *,
        directory: str | Path | None,
        resume: bool,
        member: Member | None = None,
        index: int | None = None,
    ) -> Iterator[Runner]:
        """Start a run, or go on with one.

        When the context ends, its checkpoints are complete, and its callbacks know that it is over.

        Args:
            model: The assembly's program, or one that starts at another network.
            guide: Its guide.
            key: PRNG key of the run.
            directory: Where checkpoints go; none are written without it.
            resume: Go on from the last checkpoint in `directory`, if it has one.
            member: What sets the run apart from the others of an ensemble.
            index: Its position among them.
        """
        check_key(key)
        member = Member() if member is None else member
        if member.criterion is not None:
            _check_schedule(self.schedule, member.criterion, self.fit.source, self.steps)
        checkpointer = _checkpointer(
            directory,
            self.settings.checkpoint_interval,
            resume=resume,
            is_main=self.fit.placement.is_main,
        )
        try:
            reporter = Reporter(self.callbacks, num_epochs=self.settings.num_epochs, member=index)
            runner = self._start(model, guide, key, checkpointer, member, reporter)
            if resume:
                runner.restore()
            with reporter.reporting(
                runner.now.keep,
                epoch=runner.epoch,
                resumed=resume,
                over=runner.over,
                num_points=len(runner.path),
            ):
                yield runner
        finally:
            if checkpointer is not None:
                checkpointer.close()

    def _start(
        self,
        model: Callable,
        guide: Callable,
        key: Array,
        checkpointer: Checkpointer | None,
        member: Member,
        reporter: Reporter,
    ) -> Runner:
        settings, fit = self.settings, self.fit
        criterion = settings.criterion if member.criterion is None else member.criterion
        init_key, run_key, vfe_key, final_key = split_keys(key, 4)
        started = time.perf_counter()
        state, reducer, inspection = fit.begin(init_key, model, guide, criterion)
        init_seconds = time.perf_counter() - started
        _check_declared(member, state.svi)

        def make_result(runner: Runner) -> Result:
            return fit.result(
                runner.now,
                layers={} if reducer is None else reducer.layers,
                history=runner.history,
                path=runner.path,
                timing={
                    "init_seconds": init_seconds,
                    "compile_seconds": fit.engine.compile_seconds,
                    "seconds": time.perf_counter() - self._begin,
                },
                unpruned_model=model,
                unpruned_guide=guide,
                hyperparameters=member.record(),
                inspection=inspection,
            )

        return Runner(
            fit,
            self.evaluator,
            state,
            schedule=self.schedule,
            reducer=reducer,
            evaluation=self._evaluation,
            run_key=run_key,
            vfe_key=vfe_key,
            final_key=final_key,
            num_epochs=settings.num_epochs,
            steps=self.steps,
            max_bad_steps=settings.max_bad_steps,
            checkpointer=checkpointer,
            make_result=make_result,
            identity={} if checkpointer is None else self._identity(model),
            member=member,
            reporter=reporter,
        )

    def result(self, runner: Runner) -> Result:
        """Return the result of a run that is over: its best point, with the final metrics."""
        if not isinstance(self.fit.source, Batches):
            runner.add_point(runner.measure())
        result = runner.make_result(runner)
        if result.path:
            measured = self.schedule.verifies or self.schedule.measures
            result = result.at(best(result.path) if runner.reducer and measured else -1)
        if self._held_out is not None:
            samples = self.settings.final_samples
            result.metrics = self.evaluator.metrics(
                result.params, result.keep, self._held_out, runner.final_key, num_samples=samples
            )
        result.facts = self._examine(result, runner)
        runner.reporter.end("finished", result=result)
        return result

    @functools.cached_property
    def _examination(self) -> Examination:
        return Examination(self.evaluator.model, self.evaluator.guide)

    def _examine(self, result: Result, runner: Runner) -> dict[str, Any]:
        """Return what `Result.diagnose` needs to know; see `Examination`."""
        if self.fit.placement.mesh is not None:
            return {}
        rows = self._held_out
        if rows is None:
            rows = self.fit.example if isinstance(self.fit.source, Batches) else self.fit.source
        return self._examination(
            result.params,
            result.keep,
            rows,
            whole=self.fit.row_sites is None,
            metrics=result.metrics if self._held_out is not None else None,
            criterion=None if runner.reducer is None else runner.reducer.criterion,
        )


def _check_schedule(
    schedule: Schedule, criterion: Criterion | None, source: Data | Batches, steps: int
) -> None:
    if criterion is None:
        return
    until = schedule.until
    if until is not None and steps < 2 * until.window:
        raise ValueError(
            f"sparsify: {type(schedule).__name__} ends an epoch when the VFE has settled, which it asks "
            f"after {2 * until.window} steps at the earliest (two windows of {until.window}), and an epoch "
            f"has {steps}. Give steps_per_epoch={20 * until.window}, say, or "
            "until=infer.Settled(window=...) with a shorter window."
        )
    measures = schedule.verifies or schedule.measures
    if isinstance(source, Batches) and (measures or until is not None):
        raise ValueError(
            "sparsify: a schedule that measures the VFE needs arrays, and the data are Batches. Use "
            "schedules.Every(...) or schedules.WhenConverged(...)."
        )
    if schedule.mask_prior and not criterion.has_mask_prior:
        raise ValueError(
            f"sparsify: mask_prior needs a criterion with a prior over masks, and "
            f"{type(criterion).__name__} has none. Use criteria.SpikeAndSlab, or leave mask_prior out."
        )


def _check_declared(member: Member, state: State) -> None:
    """Refuse hyper-parameters that the program does not have."""
    # Running statistics are dicts.
    numbers = [k for k, v in (state.mutable or {}).items() if not isinstance(v, Mapping)]
    for name in member.values:
        if name not in numbers:
            raise ValueError(
                f"ensemble: grid has '{name}', and the program has no bmr.hyperparameter of that name. Write "
                f"{name} = bmr.hyperparameter('{name}', default) in it. Else a grid varies kl_weight, rate "
                "and criterion."
            )


def _check_alike(held_out: Data, example: Data) -> None:
    def describe(data: Data) -> dict[str, str]:
        shapes = [f"(rows, {', '.join(map(str, a.shape[1:]))})" for a in jax.tree.leaves(data)]
        return dict(zip(row_paths(data), shapes, strict=True))

    if describe(held_out) != describe(example):
        raise ValueError(
            f"sparsify: held_out must look like the data: it has {describe(held_out)}, the data have "
            f"{describe(example)}."
        )


def _checkpointer(
    directory: str | Path | None, interval: float, *, resume: bool, is_main: bool
) -> Checkpointer | None:
    if directory is None:
        if resume:
            raise ValueError("sparsify: resume=True needs the `directory` that the run wrote to.")
        return None
    checkpointer = Checkpointer(Path(directory), interval=interval, is_main=is_main)
    if not resume:
        checkpointer.require_empty()
    checkpointer.hold()
    return checkpointer

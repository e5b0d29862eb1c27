"""The loop: one or many runs of a program, trained side by side to their ends."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import jax
import numpy as np

from bmrjax.checks import check_key
from bmrjax.errors import EnsembleError, NonFiniteError
from bmrjax.infer.arguments import Data, length
from bmrjax.infer.check_data import check_data, row_paths
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.checkpoint_options import Checkpoints
from bmrjax.run.fit import Fit
from bmrjax.run.held_out import HeldOut, with_samples
from bmrjax.run.interrupt import ended_by_its_signal, finishing_on_interrupt
from bmrjax.run.one_run import EpochPlan, Member, Run
from bmrjax.run.progress import Progress
from bmrjax.run.reporter import Callbacks, Reporter
from bmrjax.run.result import Result
from bmrjax.run.round_judge import RoundJudge
from bmrjax.run.settings import Settings, check_kinds, check_program_kind, check_schedule
from bmrjax.run.shared import Shared
from bmrjax.schedules import Verified


class Training:
    """Start runs of a program, train them in step, and end them.

    `sparsify` has one run; `ensemble` has several, whose epochs are one compiled program with an axis for the
    members. All else is the business of each `Run` alone: its schedule, masks, record and files. So members
    may stop, fail or resume at different epochs.

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
        begun = time.perf_counter()
        check_program_kind(model, guide)
        check_kinds(settings, unpruned(guide)[0])
        schedule = Verified() if settings.schedule is None else settings.schedule
        self._checkpoints = settings.checkpoints
        self.fit = fit = Fit(
            model,
            data,
            guide,
            criterion=settings.criterion,
            order=schedule.order,
            sites=settings.sites,
            optimizer=settings.optimizer,
            batch_size=settings.batch_size,
            until=None if settings.criterion is None else schedule.until,
            options=settings.options,
        )
        steps = fit.steps if settings.steps_per_epoch is None else settings.steps_per_epoch
        for name, value in (("num_epochs", settings.num_epochs), ("steps_per_epoch", steps)):
            if value < 1:
                raise ValueError(f"sparsify: {name} must be at least 1, got {value}.")
        check_schedule(schedule, settings.criterion, fit.source, steps)
        held_out = settings.held_out
        if held_out is not None:
            held_out = _checked(held_out, fit)
            held_out = with_samples(
                held_out,
                steps=settings.num_epochs * steps,
                batch_size=fit.engine.batch_size,
                judges=schedule.judge == "held-out",
            )
            held_out = _with_epochs(held_out, fit, steps)
        # Rows are evaluated in parts if they are fitted in parts.
        evaluator = Evaluator(
            fit.model,
            fit.guide,
            batch_size=None if fit.row_sites is None else 1000,
            loop=settings.options.loop,
            placement=fit.placement,
        )
        self._shared = Shared(
            fit,
            evaluator,
            RoundJudge(schedule.judge, fit, evaluator, held_out),
            schedule,
            settings.criterion,
            held_out,
            num_epochs=settings.num_epochs,
            steps=steps,
            max_bad_steps=settings.options.max_bad_steps,
            begun=begun,
            guide=guide,
            settings=settings,
        )
        self._callbacks = Callbacks(settings.callbacks, fit.placement)

    @ended_by_its_signal()
    def one(self, member: Member, progress: Progress) -> Result:
        """Return the result of a single run.

        Raises:
            InterruptedFit: On Ctrl-C.
            CallbackError: If a callback raised.
            NonFiniteError: If the run diverged.
        """
        with self._started(member, self._checkpoints) as run:
            failures = self._train_to_the_end([run], progress)
            if failures:
                raise failures[0]
            result = run.finish()
        progress.finish([result])
        self._callbacks.check(result)
        return result

    @ended_by_its_signal()
    def many(self, members: Sequence[Member], progress: Progress) -> list[Result]:
        """Return the results of several runs, whose epochs are trained as one program.

        Raises:
            InterruptedFit: On Ctrl-C.
            CallbackError: If a callback raised.
            EnsembleError: If members diverged, after the others have ended.
        """
        with contextlib.ExitStack() as stack:
            runs = [
                stack.enter_context(self._started(member, _folder(self._checkpoints, i)))
                for i, member in enumerate(members)
            ]
            failures = self._train_to_the_end(runs, progress)
            results = [
                failures[i].result if i in failures else run.finish() for i, run in enumerate(runs)
            ]
        if failures:
            error = EnsembleError(results, failures)
            self._callbacks.note_in(error)
            raise error
        progress.finish(results)
        self._callbacks.check(results)
        return results

    @contextlib.contextmanager
    def _started(self, member: Member, checkpoints: Checkpoints | None) -> Iterator[Run]:
        """Start a run, or go on with one.

        When the context ends, its checkpoints are complete, and its callbacks know that it is over.
        """
        check_key(member.key)
        shared = self._shared
        if member.point.criterion is not None:
            check_schedule(shared.schedule, member.point.criterion, self.fit.source, shared.steps)
        checkpointer = None
        if checkpoints is not None:
            checkpointer = _checkpointer(checkpoints, is_main=self.fit.placement.is_main)
        resume = checkpoints is not None and checkpoints.resume
        try:
            reporter = Reporter(self._callbacks, num_epochs=shared.num_epochs, member=member.index)
            run = Run(shared, member, reporter, checkpointer)
            if resume:
                run.restore()
            with reporter.reporting(
                run.state.now.keep,
                epoch=run.state.epoch,
                resumed=resume,
                over=run.over,
                num_points=len(run.state.path),
            ):
                yield run
        finally:
            if checkpointer is not None:
                checkpointer.close()

    def _train_to_the_end(
        self, runs: Sequence[Run], progress: Progress
    ) -> dict[int, NonFiniteError]:
        """Train all runs to their ends, an epoch of each at a time; return which diverged."""
        failures: dict[int, NonFiniteError] = {}

        def checked(i: int, check: Callable[[], None]) -> None:
            try:
                check()
            except NonFiniteError as error:
                failures[i] = error
                runs[i].reporter.end("diverged")

        for i, run in enumerate(runs):
            checked(i, run.check_resumed)
        progress.begin(
            self.fit.engine,
            epoch=min(run.state.epoch for run in runs),
            steps=self._shared.steps,
        )
        with finishing_on_interrupt(saved=self._checkpoints is not None) as interruption:
            while True:
                progress.deciding()
                plans = {
                    i: plan
                    for i, run in enumerate(runs)
                    if i not in failures and (plan := run.plan()) is not None
                }
                if not plans:
                    break
                self._train(runs, plans)
                progress.epoch(min(run.state.epoch for run in runs), _shown(runs))
                for i in plans:
                    checked(i, runs[i].after_epoch)
                if len(failures) == len(runs):
                    break
                # All processes have to ask, whether they were interrupted or not.
                failed = self._callbacks.failed()
                left = any(not run.over for i, run in enumerate(runs) if i not in failures)
                if interruption.requested or (failed and left):
                    self._end_early(runs, interrupted=interruption.number)
        progress.doing("measuring")
        for i, run in enumerate(runs):
            if i not in failures:
                run.save()
        return failures

    def _end_early(self, runs: Sequence[Run], *, interrupted: int | None) -> NoReturn:
        """Raise an exception with what the runs have reached, when all of it is saved."""
        for run in runs:
            run.save()
        results = [run.result() for run in runs]
        raise self._callbacks.ending(
            interrupted=interrupted,
            epoch=runs[0].state.epoch,
            result=results[0] if runs[0].member.index is None else results,
            saved=self._checkpoints is not None,
        )

    def _train(self, runs: Sequence[Run], plans: dict[int, EpochPlan]) -> None:
        """Take one epoch of the runs that have a plan; the others go along and stay as they are."""
        fit, engine, steps = self.fit, self.fit.engine, self._shared.steps
        begin, compiled = time.perf_counter(), engine.compile_seconds
        if runs[0].member.index is None:
            state = runs[0].state
            now, info = fit.epoch(
                state.now,
                runs[0].epoch_key(),
                num_steps=steps,
                rate=plans[0].rate,
                index=state.epoch,
            )
            ended = [(now, info)]
        else:
            rates = [
                plans[i].rate * run.member.point.rate if i in plans else 0.0
                for i, run in enumerate(runs)
            ]
            svis = engine.epoch_of_many(
                [run.state.now.svi for run in runs],
                [run.state.now.keep for run in runs],
                fit.arrays,
                [run.epoch_key() for run in runs],
                num_steps=steps,
                rates=rates,
                kl_weights=[run.member.point.kl_weight or engine.kl_weight for run in runs],
            )
            ended = [
                (replace(run.state.now, svi=svi), info)
                for run, (svi, info) in zip(runs, svis, strict=True)
            ]
        losses = [np.asarray(info.losses)[: int(info.num_steps)] for _, info in ended]
        compiled = engine.compile_seconds - compiled
        # An epoch's time is that of all runs, divided among those that took it.
        seconds = (time.perf_counter() - begin - compiled) / len(plans)
        for i, plan in plans.items():
            runs[i].record(plan, ended[i][0], losses[i], seconds=seconds, compile_seconds=compiled)


def _folder(checkpoints: Checkpoints | None, i: int) -> Checkpoints | None:
    """Return the checkpoints of a member."""
    if checkpoints is None:
        return None
    return replace(checkpoints, directory=Path(checkpoints.directory) / f"member-{i}")


def _checkpointer(checkpoints: Checkpoints, *, is_main: bool) -> Checkpointer:
    folder = Path(checkpoints.directory)
    checkpointer = Checkpointer(folder, interval=checkpoints.interval, is_main=is_main)
    if not checkpoints.resume:
        checkpointer.require_empty()
    checkpointer.hold()
    if not checkpoints.resume:
        try:
            checkpointer.require_empty()  # of one that ended meanwhile
        except ValueError:
            checkpointer.close()
            raise
    return checkpointer


def _shown(runs: Sequence[Run]) -> dict[str, str]:
    """Return what the progress bar shows: the range over the runs of each figure."""
    shown = [run.shown() for run in runs if run.state.history]
    ranges = {}
    for name in shown[0]:
        values = sorted((found[name] for found in shown if name in found), key=float)
        low, high = values[0], values[-1]
        ranges[name] = low if low == high else f"{low}–{high}"
    return ranges


def _checked(held_out: HeldOut, fit: Fit) -> HeldOut:
    """Return held-out data as arrays.

    Raises:
        ValueError: For data that do not look like those of the fit.
    """
    data = check_data(held_out.data, "held_out", rows=fit.row_paths)
    if _described(data) != _described(fit.example):
        raise ValueError(
            f"sparsify: held_out must look like the data: it has {_described(data)}, the data have "
            f"{_described(fit.example)}."
        )
    return replace(held_out, data=data)


def _with_epochs(held_out: HeldOut, fit: Fit, steps: int) -> HeldOut:
    """Return held-out data with the number of epochs between evaluations."""
    every = held_out.every
    if every is None:
        assert held_out.samples is not None
        # One training step costs about three forward passes of its batch.
        forward, size = length(held_out.data) * held_out.samples, fit.engine.batch_size
        every = max(1, math.ceil(forward / (0.1 * 3 * steps * size)))
    return replace(held_out, every=every)


def _described(data: Data) -> dict[str, str]:
    shapes = [f"(rows, {', '.join(map(str, a.shape[1:]))})" for a in jax.tree.leaves(data)]
    return dict(zip(row_paths(data), shapes, strict=True))

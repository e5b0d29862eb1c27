"""What a run is made of: settings and data checked, engine and evaluator built, runs started."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from numpyro.infer import TraceMeanField_ELBO

from bmrjax.backend.random_keys import split_keys
from bmrjax.checks import check_key
from bmrjax.criteria import Criterion, SitePosteriors
from bmrjax.handlers import both_masks
from bmrjax.infer.arguments import Data, length
from bmrjax.infer.check_data import check_data, column_names, row_paths
from bmrjax.infer.check_program import check_program
from bmrjax.infer.default_guide import default_guide
from bmrjax.infer.engine import Engine
from bmrjax.infer.estimate import PropagatedELBO, elbo
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.placement import Placement
from bmrjax.infer.prior_location import PriorFacts, prior_facts
from bmrjax.infer.program_data import program_data
from bmrjax.infer.rows import row_sites
from bmrjax.infer.state import State
from bmrjax.run.batches import Batches, checksum
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.facts import Examination
from bmrjax.run.hyperparameter import Member
from bmrjax.run.inspection import Inspection
from bmrjax.run.judged import reducible
from bmrjax.run.point import best
from bmrjax.run.reducer import Reducer
from bmrjax.run.reporter import Callbacks, Reporter
from bmrjax.run.result import Result
from bmrjax.run.runner import Evaluation, Runner
from bmrjax.run.settings import Settings, check_kinds, check_program_kind
from bmrjax.schedules import Schedule, Verified


class Assembly:
    """Everything that the runs of one program share, compiled once.

    Args:
        model: NumPyro program.
        guide: Its guide; see `infer.default_guide` for the one it has by default.
        data: Arrays with a common leading axis, or `Batches`.
        settings: See `sparsify`.
        removed: Masks by site of what is removed from the start, if anything is.

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
        *,
        removed: Mapping[str, Any] | None = None,
    ):
        self._removed = {} if removed is None else dict(removed)
        self._begin = time.perf_counter()
        check_program_kind(model)
        check_kinds(settings, guide)
        self.settings = settings
        self.placement = Placement(settings.mesh)
        self.callbacks = Callbacks(settings.callbacks, self.placement)
        self.source: Data | Batches = (
            data
            if isinstance(data, Batches)
            else program_data(model, data, batch_size=settings.batch_size, static=settings.static)
        )
        tables = {} if isinstance(data, Batches) else column_names(data)
        self.columns = max(tables.values(), key=len, default=None)
        self.num_data, size, self._example = _sizes(self.source, settings.batch_size)
        self.row_paths = row_paths(self._example)
        self._held_out = settings.held_out
        if self._held_out is not None:
            self._held_out = check_data(self._held_out, "held_out", rows=self.row_paths)
            _check_alike(self._held_out, self._example)
        self.schedule = Verified() if settings.schedule is None else settings.schedule
        until = None if settings.criterion is None else self.schedule.until
        steps = settings.steps_per_epoch
        if steps is None:
            # On small data, one pass is far too little for an epoch.
            least = 1 if isinstance(self.source, Batches) else 100
            steps = max(self.num_data // size, least, 0 if until is None else 20 * until.window)
        self.steps = steps
        for name, value in (("num_epochs", settings.num_epochs), ("steps_per_epoch", self.steps)):
            if value < 1:
                raise ValueError(f"sparsify: {name} must be at least 1, got {value}.")
        _check_schedule(self.schedule, settings.criterion, self.source, self.steps)
        looked_at = self._example if isinstance(self.source, Batches) else self.source
        optimizer, loss = settings.optimizer, settings.loss
        by_density = not isinstance(loss, TraceMeanField_ELBO | PropagatedELBO | None)
        check_program(
            model,
            self._example,
            looked_at,
            jax.random.key(0),
            discrete=guide is not None,
            atoms=not by_density or not isinstance(guide, AutoMeanField | None),
        )
        self.row_sites = None
        if size < self.num_data:
            self.row_sites = row_sites(model, looked_at, jax.random.key(0))
        if guide is None:
            guide = default_guide(
                model,
                looked_at,
                criterion=settings.criterion,
                estimator=settings.estimator,
                loss=loss,
                start=settings.start,
                mesh=settings.mesh,
            )(model)
        self.guide: Any = guide
        if loss is not None and settings.estimator != "global":
            raise ValueError(
                "sparsify: the estimator is a part of the loss; give one of the two, such as "
                f"loss=infer.PropagatedELBO({settings.estimator!r})."
            )
        self.engine = Engine(
            model,
            self.guide,
            optimizer=optax.adabelief(1e-2) if optimizer is None else optimizer,
            loss=elbo(settings.estimator) if loss is None else loss,
            num_data=self.num_data,
            batch_size=size,
            row_sites=self.row_sites,
            kl_weight=settings.kl_weight,
            kl_warmup=settings.kl_warmup,
            loop=settings.loop,
            until=until,
            placement=self.placement,
            matmul_dtype=settings.matmul_dtype,
        )
        # Rows are evaluated in parts if they are fitted in parts.
        self.evaluator = Evaluator(
            model,
            self.guide,
            batch_size=None if self.row_sites is None else 1000,
            loop=settings.loop,
            placement=self.placement,
        )
        if not isinstance(self.source, Batches):
            self.source = self.placement.everywhere(self.source)
        self._evaluation = self._make_evaluation(size)
        self._reducers: list[Reducer] = []
        self._shapes: dict[str, tuple[int, ...]] = {}

    def _make_evaluation(self, size: int) -> Evaluation | None:
        if self._held_out is None:
            return None
        every, samples = self.settings.eval_every, self.settings.eval_samples
        if every is None:
            # One training step costs about three forward passes of its batch.
            forward = length(self._held_out) * samples
            every = max(1, math.ceil(forward / (0.1 * 3 * self.steps * size)))
        return Evaluation(self._held_out, samples, every)

    @property
    def arrays(self) -> Data:
        """The data, where they are arrays."""
        assert not isinstance(self.source, Batches)
        return self.source

    @functools.cached_property
    def _checksum(self) -> int | None:
        return None if isinstance(self.source, Batches) else checksum(self.source)

    @functools.cached_property
    def _priors(self) -> dict[str, PriorFacts]:
        return prior_facts(self.engine.model, self._example)

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
            _check_schedule(self.schedule, member.criterion, self.source, self.steps)
        checkpointer = _checkpointer(directory, self.settings.checkpoint_interval, resume=resume)
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
        settings, engine = self.settings, self.engine
        criterion = settings.criterion if member.criterion is None else member.criterion
        init_key, run_key, vfe_key, final_key = split_keys(key, 4)
        started = time.perf_counter()
        state = engine.init(init_key, self._example, model=model, guide=guide)
        if settings.start is not None:
            state = engine.adopt(state, settings.start.params)
        _check_declared(member, state)
        init_seconds = time.perf_counter() - started
        shapes = jax.tree.map(jnp.shape, state.params)
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            differing = sorted({*shapes.items()} ^ {*self._shapes.items()})[0][0]
            raise ValueError(
                f"ensemble: the programs differ in the parameter '{differing}'. Members may start from "
                "different networks of one shape; run others apart."
            )
        keep, criterion_memory, reducer = {}, None, None
        begun = both_masks(
            _with_removed(self._removed),
            {} if settings.start is None else _with_removed(settings.start.keep),
        )
        inspection = Inspection()
        if criterion is not None or settings.sites is not None or begun:
            found = engine.site_posteriors(state, self._example)
            found, inspection = reducible(
                self._priors,
                found,
                criterion=criterion,
                sites=settings.sites,
                guide=type(guide).__name__,
                started=begun,
            )
            keep = {
                name: jnp.asarray(np.ones(q.loc.shape, bool)) for name, q in found.posterior.items()
            }
            keep |= _carried_over(begun, keep)
            if criterion is not None:
                criterion_memory = criterion.init(found.posterior)
                keep, criterion_memory = self.placement.parted((keep, criterion_memory))
                # Raise for what it cannot read now, not after the epochs before the first reduction.
                jax.eval_shape(criterion, found, keep, criterion_memory)
                reducer = self._reducer(criterion, found)

        def make_result(runner: Runner) -> Result:
            return Result(
                params=jax.tree.map(jnp.asarray, self.placement.fetch(runner.params())),
                keep=jax.tree.map(jnp.asarray, self.placement.fetch(dict(runner.now.keep))),
                layers={} if runner.reducer is None else runner.reducer.layers,
                num_data=self.num_data,
                history=runner.history,
                path=runner.path,
                timing={
                    "init_seconds": init_seconds,
                    "compile_seconds": engine.compile_seconds,
                    "seconds": time.perf_counter() - self._begin,
                },
                num_skipped=int(runner.now.state.num_skipped),
                loop_mode=engine.loop_mode,
                num_compilations=engine.num_compilations,
                unpruned_model=model,
                unpruned_guide=guide,
                hyperparameters=member.record(),
                row_arguments=self.row_paths,
                by_rows=self.row_sites is not None,
                columns=self.columns,
                inspection=inspection,
            )

        return Runner(
            engine,
            self.evaluator,
            self.source,
            state,
            reducer=reducer,
            evaluation=self._evaluation,
            keep=keep,
            criterion_memory=criterion_memory,
            run_key=run_key,
            vfe_key=vfe_key,
            final_key=final_key,
            num_epochs=settings.num_epochs,
            steps=self.steps,
            max_bad_steps=settings.max_bad_steps,
            checkpointer=checkpointer,
            make_result=make_result,
            checksum=None if checkpointer is None else self._checksum,
            placement=self.placement,
            member=member,
            reporter=reporter,
        )

    def _reducer(self, criterion: Criterion, found: SitePosteriors) -> Reducer:
        """Return what reduces by a criterion, compiled once."""
        for reducer in self._reducers:
            if reducer.criterion is criterion:
                return reducer
        assert found.layers is not None
        sites, layers = list(found.posterior), dict(found.layers)
        self._reducers.append(Reducer(criterion, self.schedule, sites, layers, self._example))
        return self._reducers[-1]

    def result(self, runner: Runner) -> Result:
        """Return the result of a run that is over: its best point, with the final metrics."""
        if not isinstance(self.source, Batches):
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
        if self.placement.mesh is not None:
            return {}
        rows = self._held_out
        if rows is None:
            rows = self._example if isinstance(self.source, Batches) else self.source
        return self._examination(
            result.params,
            result.keep,
            rows,
            whole=self.row_sites is None,
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


def _sizes(source: Data | Batches, batch_size: int | None) -> tuple[int, int, Data]:
    if isinstance(source, Batches):
        example = source.example()
        return source.num_data, length(example), example
    num_data = length(source)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"sparsify: batch_size must be at least 1 or None, got {batch_size}.")
    size = num_data if batch_size is None else min(batch_size, num_data)
    return num_data, size, jax.tree.map(lambda a: a[:size], source)


def _with_removed(keep: Mapping[str, Any]) -> dict[str, Array]:
    """Return the masks that remove something."""
    return {name: jnp.asarray(mask) for name, mask in keep.items() if not jnp.all(mask)}


def _carried_over(begun: dict[str, Array], keep: dict[str, Array]) -> dict[str, Array]:
    """Refuse masks that the program cannot have; return the others."""
    for name, mask in begun.items():
        if name not in keep or keep[name].shape != mask.shape:
            has = f"one of shape {keep[name].shape}" if name in keep else "none that can be reduced"
            raise ValueError(
                f"sparsify: elements of site '{name}', of shape {mask.shape}, are removed in `start` (or in "
                "the pruned guide), and "
                f"the program has {has}. Start a program with the same sites and a posterior of the same "
                "family."
            )
    return begun


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

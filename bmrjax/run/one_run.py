"""One run: its state, its record, and what it leads to."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.backend.random_keys import fold_in, split_keys
from bmrjax.errors import NonFiniteError
from bmrjax.infer.joint_guide import JointGuide
from bmrjax.infer.state import State
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.fit_state import FitState
from bmrjax.run.hyperparameter import GridPoint
from bmrjax.run.measured import Measurer, settled
from bmrjax.run.point import Point, best, kept_counts, layer_sparsities
from bmrjax.run.reporter import Reporter
from bmrjax.run.result import Result
from bmrjax.run.rounds import Rounds
from bmrjax.run.run_files import RunFiles
from bmrjax.run.run_state import RunState
from bmrjax.run.shared import Shared
from bmrjax.run.warm_up import warm_up
from bmrjax.schedules import Stop


@dataclass(frozen=True)
class Member:
    """What sets a run apart from the others of its training.

    Attributes:
        program: The program, which may start at another network than that of the fit.
        guide: Its guide.
        key: PRNG key of the run.
        point: Its settings in the grid of an ensemble.
        index: Its position in an ensemble; None for a single run.
    """

    program: Callable
    guide: Callable
    key: Array
    point: GridPoint = GridPoint()  # noqa: RUF009 - frozen
    index: int | None = None


@dataclass(frozen=True)
class EpochPlan:
    """An epoch about to be run.

    Attributes:
        rate: Factor on the learning rate.
        times: Seconds that the reduction before it took.
    """

    rate: float
    times: dict[str, float]


class Run:
    """One run of a training: it plans epochs, takes over what they led to, and ends in a result.

    The epochs themselves are trained by `Training`, for all its runs at once.

    Args:
        shared: What all runs of the training share.
        member: What sets this one apart.
        reporter: Receives the record of each epoch and round.
        checkpointer: What writes its checkpoints; None for none.
    """

    def __init__(
        self,
        shared: Shared,
        member: Member,
        reporter: Reporter,
        checkpointer: Checkpointer | None,
    ):
        self.shared: Shared = shared
        self.member: Member = member
        self.reporter: Reporter = reporter
        self.fit = fit = shared.fit
        init_key, self._run_key, self._vfe_key, self._final_key = split_keys(member.key, 4)
        begin = time.perf_counter()
        own = member.point.criterion
        criterion = shared.criterion if own is None else own
        begun = fit.begin(init_key, member.program, member.guide, criterion)
        now, self.reducer, self._inspection = begun
        growth = warm_up(fit, shared.settings, steps=shared.steps)
        self._init_seconds = time.perf_counter() - begin
        _check_declared(member.point, now.svi)
        self._layers = {} if self.reducer is None else self.reducer.layers
        memory = {} if self.reducer is None else shared.schedule.init()
        self.state: RunState = RunState(now, memory, kl_growth=growth)
        self._measurer = Measurer(fit, self._vfe_key)
        self._judged: tuple[float, float | None] = float("nan"), None
        self._evaluated: tuple[FitState, dict[str, float]] | None = None
        self._rounds = None
        if self.reducer is not None:
            self._rounds = Rounds(
                self.state,
                shared.schedule,
                self.reducer,
                reporter,
                num_epochs=shared.num_epochs,
                steps=shared.steps,
                measure=self.measure,
                mask_cost=self.mask_cost,
                add_point=self.add_point,
            )
        self._files = None
        if checkpointer is not None:
            self._files = RunFiles(checkpointer, fit, self._settings())

    # --- an epoch -------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether no epoch is left."""
        return self.state.epoch >= self.shared.num_epochs or self.state.stopped

    def plan(self) -> EpochPlan | None:
        """Reduce if the schedule says so; return the next epoch, or None if the run is over."""
        if self.over:
            return None
        if self._rounds is None:
            return EpochPlan(1.0, {})
        found, times = self._rounds.decide()
        self.state.stopped = isinstance(found, Stop)
        return None if isinstance(found, Stop) else EpochPlan(found.rate, times)

    def epoch_key(self) -> Array:
        """Return the PRNG key of the next epoch."""
        return fold_in(self._run_key, np.uint32(self.state.epoch))

    def record(
        self,
        plan: EpochPlan,
        now: FitState,
        losses: np.ndarray,
        *,
        seconds: float,
        compile_seconds: float,
    ) -> None:
        """Take over what an epoch led to.

        Args:
            plan: The epoch that was run.
            now: Where it ended.
            losses: The loss of each step; NaN where it was skipped.
            seconds: How long it took.
            compile_seconds: How long compiling took before it.
        """
        state = self.state
        state.now = now
        state.epoch += 1
        good = losses[np.isfinite(losses)]
        kept, total = kept_counts(now.keep)
        row: dict[str, Any] = {
            "epoch": state.epoch,
            "vfe": float(np.mean(good, dtype=np.float64)) if good.size else float("nan"),
            "kept": kept,
            "sparsity_per_layer": layer_sparsities(now.keep, self._layers),
            "rate": plan.rate,
            "taken_back": False,
            "steps": int(losses.size),
            "skipped_steps": int(losses.size - good.size),
            "seconds": seconds,
            "compile_seconds": compile_seconds,
            **plan.times,
        }
        every = None if self.shared.held_out is None else self.shared.held_out.every
        due = every is not None and state.epoch - state.evaluated_at >= every
        found = self.evaluate() if due and state.epoch < self.shared.num_epochs else {}
        state.history.append({**row, **found})
        self.reporter.epoch(row, total, found)

    def after_epoch(self) -> None:
        """Stop a run that diverged, and write a checkpoint if one is due.

        Raises:
            NonFiniteError: With what there is of the run.
        """
        try:
            self._check_finite()
        except NonFiniteError:
            self.save()
            raise
        if self._files is not None:
            self._files.save_if_due(self.state)

    def check_resumed(self) -> None:
        """Refuse to call a run finished that diverged before it was resumed.

        One with epochs left goes on: what made it diverge may have been mended.

        Raises:
            NonFiniteError: With what there is of the run.
        """
        if self.state.epoch >= self.shared.num_epochs:
            self._check_finite()

    def _check_finite(self) -> None:
        state = self.state
        if not state.history:
            return
        worst = int(state.now.svi.worst_in_row)
        # A short run may end before so many steps were bad in a row.
        last = state.epoch >= self.shared.num_epochs
        ended_badly = last and not np.isfinite(state.history[-1]["vfe"])
        if worst > self.shared.max_bad_steps or ended_badly:
            raise NonFiniteError(worst, state.epoch, self.result())

    def shown(self) -> dict[str, str]:
        """Return what the progress bar shows of the last epoch."""
        row = self.state.history[-1]
        kept, total = kept_counts(self.state.now.keep)
        shown = {"VFE/row": f"{row['vfe'] / self.fit.engine.num_data:.4f}"}
        if self.reducer is not None:
            shown["sparsity"] = f"{1 - kept / max(total, 1):.3f}"
        if row["skipped_steps"]:
            shown["skipped"] = str(row["skipped_steps"])
        return shown

    # --- looking --------------------------------------------------------------------------

    def measure(self, *limits: float) -> float:
        """Measure what rounds are judged by, of the current state, in nats for all data.

        Args:
            *limits: What it is compared with; see `schedules.Report`.
        """
        state = self.state
        limits = limits if self.shared.judge.judge == "vfe" else ()
        if limits:
            measured = self._measurer.against(state.now, limits, state.reference)
        else:
            measured = self._measurer.exactly(state.now)
        state.measured = state.now, measured
        judged = self.shared.judge(state.now, measured.vfe, self._vfe_key)
        self._judged = measured.vfe, judged
        return measured.vfe if judged is None else judged

    def mask_cost(self) -> float:
        """Return minus the log probability of the masks, in nats, if the schedule counts it."""
        reducer = self.reducer
        if reducer is None:
            return 0.0
        counts = self.shared.schedule.mask_prior
        if counts is None:
            counts = isinstance(self.fit.engine.guide, JointGuide)
        if not counts:
            return 0.0
        keep = self.fit.placement.fetch(dict(self.state.now.keep))
        return reducer.criterion.mask_cost(keep, layers=reducer.layers)

    def evaluate(self) -> dict[str, float]:
        """Return held-out metrics of the current state."""
        held_out, state = self.shared.held_out, self.state
        if held_out is None:
            return {}
        begin, last = time.perf_counter(), self._evaluated
        state.evaluated_at = state.epoch
        if last is None or last[0] is not state.now:
            key = fold_in(self._vfe_key, np.uint32(state.epoch))
            self._evaluated = last = state.now, self.shared.judge.metrics(state.now, key)
        return {**last[1], "eval_seconds": time.perf_counter() - begin}

    def add_point(self, measured: float) -> None:
        """Put the current state on the path, with what `measure` returned for it."""
        state, fit = self.state, self.fit
        vfe, judged = measured, None
        if self.shared.schedule.judge != "vfe":
            if measured != self._judged[1]:
                self.measure()
            vfe, judged = self._judged
        vfe, error = state.known(vfe)
        cost = self.mask_cost()
        kept, total = kept_counts(state.now.keep)
        metrics = {k: v for k, v in self.evaluate().items() if k != "eval_seconds"}
        whole = fit.placement.fetch((fit.params(state.now), dict(state.now.keep)))
        params, keep = jax.tree.map(np.asarray, whole)
        point = Point(
            state.epoch,
            vfe,
            kept,
            total,
            metrics,
            params,
            keep,
            cost,
            judged=judged,
            vfe_error=error,
        )
        state.path.append(point)
        if self._files is not None:
            self._files.save_point(len(state.path) - 1, point)
        self.reporter.point(len(state.path) - 1, point)

    # --- the result -----------------------------------------------------------------------

    def result(self) -> Result:
        """Return what the run has reached."""
        return self.fit.result(
            self.state.now,
            layers=self._layers,
            history=self.state.history,
            path=self.state.path,
            timing={
                "init_seconds": self._init_seconds,
                "compile_seconds": self.fit.engine.compile_seconds,
                "seconds": time.perf_counter() - self.shared.begun,
            },
            unpruned_model=self.member.program,
            unpruned_guide=self.member.guide,
            hyperparameters=self.member.point.record(),
            inspection=self._inspection,
        )

    def finish(self) -> Result:
        """Return the result of a run that is over: its best point, with the final metrics."""
        shared, held_out = self.shared, self.shared.held_out
        if not isinstance(self.fit.source, Batches):
            self.add_point(self.measure())
            self.state.path = settled(self.state.path, self.state.measured, self._measurer)
        result = self.result()
        if result.path:
            measured = shared.schedule.verifies or shared.schedule.measures
            result = result.at(best(result.path) if self.reducer and measured else -1)
        if held_out is not None:
            samples = held_out.final_samples
            assert samples is not None
            result.metrics = shared.evaluator.metrics(
                result.params, result.keep, held_out.data, self._final_key, num_samples=samples
            )
        result.facts = self._facts(result)
        self.reporter.end("finished", result=result)
        return result

    def _facts(self, result: Result) -> dict[str, Any]:
        """Return what `Result.diagnose` needs to know; see `Examination`."""
        fit, held_out = self.fit, self.shared.held_out
        if fit.placement.mesh is not None:
            return {}
        rows = fit.example if isinstance(fit.source, Batches) else fit.source
        return self.shared.examination(
            result.params,
            result.keep,
            rows if held_out is None else held_out.data,
            whole=fit.row_sites is None,
            metrics=None if held_out is None else result.metrics,
            criterion=None if self.reducer is None else self.reducer.criterion,
        )

    def save(self) -> None:
        """Write a checkpoint, if the run has a folder."""
        if self._files is not None:
            self._files.save(self.state)

    def restore(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        if self._files is not None:
            self._files.restore(self.state, num_epochs=self.shared.num_epochs)

    def _settings(self) -> dict[str, Any]:
        """Return what this run and the one that it goes on from must agree in."""
        key = self._run_key
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        reducer, engine = self.reducer, self.fit.engine
        return {
            "num_data": engine.num_data,
            "batch_size": engine.batch_size,
            "steps_per_epoch": self.shared.steps,
            "criterion": None if reducer is None else type(reducer.criterion).__name__,
            "schedule": None if reducer is None else type(self.shared.schedule).__name__,
            "estimator": self.fit.estimator,
            "matmul_dtype": engine.matmul_dtype,
            "hyperparameters": self.member.point.record() or None,
            "key (after the first split)": np.asarray(key).tolist(),
            **self.shared.identity(self.member.program),
        }


def _check_declared(point: GridPoint, state: State) -> None:
    """Refuse hyper-parameters that the program does not have."""
    # Running statistics are dicts.
    numbers = [k for k, v in (state.mutable or {}).items() if not isinstance(v, Mapping)]
    for name in point.values:
        if name not in numbers:
            raise ValueError(
                f"ensemble: grid has '{name}', and the program has no bmr.hyperparameter of that name. Write "
                f"{name} = bmr.hyperparameter('{name}', default) in it. Else a grid varies kl_weight, rate "
                "and criterion."
            )

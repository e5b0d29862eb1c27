"""One run of the loop: its state, its epochs, its reductions, its checkpoints."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm.auto import tqdm

from bmrjax.backend.random_keys import fold_in
from bmrjax.errors import NonFiniteError
from bmrjax.infer.arguments import Data
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.joint_guide import JointGuide
from bmrjax.infer.state import EpochInfo
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.fit import Fit
from bmrjax.run.hyperparameter import Member
from bmrjax.run.interrupt import finishing_on_interrupt
from bmrjax.run.point import Point, kept_counts, sparsity_per_layer
from bmrjax.run.reducer import FitState, Reducer
from bmrjax.run.reporter import Reporter
from bmrjax.run.result import Result
from bmrjax.run.same_run import check_same, check_same_objects
from bmrjax.run.search import lowest
from bmrjax.schedules import Action, Report, Schedule

_PLAIN = (
    "epoch", "removed", "memory", "history", "evaluated_at", "snapshot_row", "snapshot_point",
    "stopped",
)  # fmt: skip


_POINT = ("epoch", "vfe", "kept", "total", "metrics", "mask_cost", "taken_back")


@dataclass
class Evaluation:
    """What a run is evaluated on."""

    data: Data
    samples: int
    every: int


@dataclass(frozen=True)
class Plan:
    """An epoch about to be run.

    Attributes:
        rate: Factor on the learning rate.
        times: Seconds that the reduction before it took.
    """

    rate: float
    times: dict[str, float]


class Runner:
    """Run epochs and reductions until the schedule or the number of epochs ends them.

    Everything that decides how the run goes on is in `now`, `snapshot`, `memory`, `epoch`,
    `removed` and the two records `history` and `path`; a checkpoint holds exactly these.
    """

    def __init__(
        self,
        fit: Fit,
        evaluator: Evaluator,
        state: FitState,
        *,
        schedule: Schedule,
        reducer: Reducer | None,
        evaluation: Evaluation | None,
        run_key: Array,
        vfe_key: Array,
        final_key: Array,
        num_epochs: int,
        steps: int,
        max_bad_steps: int,
        checkpointer: Checkpointer | None,
        make_result: Callable[["Runner"], Result],
        identity: dict[str, Any],
        member: Member,
        reporter: Reporter,
    ):
        self.placement, self.member, self.reporter = fit.placement, member, reporter
        self.fit, self.evaluator = fit, evaluator
        self.schedule, self.reducer, self.evaluation = schedule, reducer, evaluation
        self.run_key, self.vfe_key, self.final_key = run_key, vfe_key, final_key
        self.num_epochs, self.steps, self.max_bad_steps = num_epochs, steps, max_bad_steps
        self.checkpointer, self.make_result, self.identity = checkpointer, make_result, identity
        self.now = state
        self.snapshot: FitState | None = None
        self.snapshot_row = self.snapshot_point = 0
        self.memory = {} if reducer is None else schedule.init()
        self.history: list[dict[str, Any]] = []
        self.path: list[Point] = []
        self.epoch = 0
        self.removed: int | None = None
        self.evaluated_at = 0
        self.stopped = False

    # --- the loop -------------------------------------------------------------------------

    def run(self, *, progress: bool) -> None:
        """Run to the end."""
        self.check_resumed()
        with (
            tqdm(
                total=self.num_epochs,
                initial=self.epoch,
                disable=not (progress and self.placement.is_main),
                unit="epoch",
            ) as bar,
            finishing_on_interrupt() as interruption,
        ):
            while (plan := self.plan()) is not None:
                begin, compiled = time.perf_counter(), self.fit.engine.compile_seconds
                state, info = self._epoch(plan)
                losses = np.asarray(info.losses)[: int(info.num_steps)]
                compiled = self.fit.engine.compile_seconds - compiled
                seconds = time.perf_counter() - begin - compiled
                self.record(plan, state, losses, seconds=seconds, compile_seconds=compiled)
                bar.set_postfix(self.shown(), refresh=False)
                bar.update()
                self.after_epoch()
                failed = self.reporter.callbacks.failed() and not self.over
                if interruption.requested or failed:
                    self.save_if_asked()
                    raise self.reporter.callbacks.ending(
                        interrupted=interruption.requested,
                        epoch=self.epoch,
                        result=self.make_result(self),
                        saved=self.checkpointer is not None,
                    )
        self.save_if_asked()

    @property
    def over(self) -> bool:
        """Whether no epoch is left."""
        return self.epoch >= self.num_epochs or self.stopped

    def plan(self) -> Plan | None:
        """Reduce if the schedule says so; return the next epoch, or None if the run is over."""
        if self.over:
            return None
        action, times = self._reduce()
        self.stopped = action.stop
        return None if action.stop else Plan(action.rate, times)

    def epoch_key(self) -> Array:
        """Return the PRNG key of the next epoch."""
        return fold_in(self.run_key, np.uint32(self.epoch))

    def after_epoch(self) -> None:
        """Stop a run that diverged, and write a checkpoint if one is due."""
        try:
            self.check_finite()
        except NonFiniteError:
            self.save_if_asked()
            raise
        # Writing is for all processes together, and clocks differ.
        if self.checkpointer is not None and self.placement.agreed(mine=self.checkpointer.due()):
            self.save()

    def check_resumed(self) -> None:
        """Refuse to call a run finished that diverged before it was resumed.

        One with epochs left goes on: what made it diverge may have been mended.
        """
        if self.epoch >= self.num_epochs:
            self.check_finite()

    def check_finite(self) -> None:
        """Refuse to go on with a run that diverged.

        Raises:
            NonFiniteError: With what there is of the run.
        """
        if not self.history:
            return
        worst = int(self.now.svi.worst_in_row)
        # A short run may end before so many steps were bad in a row.
        ended_badly = self.epoch >= self.num_epochs and not np.isfinite(self.history[-1]["vfe"])
        if worst > self.max_bad_steps or ended_badly:
            raise NonFiniteError(worst, self.epoch, self.make_result(self))

    def save_if_asked(self) -> None:
        """Write a checkpoint, if the run has a folder."""
        if self.checkpointer is not None:
            self.save()

    def _reduce(self) -> tuple[Action, dict[str, float]]:
        if self.reducer is None:
            return Action(), {}
        begin = time.perf_counter()
        action = self._act(self.reducer)
        measured = time.perf_counter() - begin
        begin = time.perf_counter()
        self._reduce_by(self.reducer, action)
        while (action.search or action.tentative or action.by != "criterion") and not self.removed:
            # Nothing to re-fit.
            action = self._act(self.reducer)
            self._reduce_by(self.reducer, action)
        return action, {
            "measure_seconds": measured,
            "reduce_seconds": time.perf_counter() - begin,
        }

    def _act(self, reducer: Reducer) -> Action:
        """Ask the schedule; do everything but reduce."""
        report = Report(
            epoch=self.epoch,
            num_epochs=self.num_epochs,
            losses=[row["vfe"] for row in self.history if not row["taken_back"]],
            removed=self.removed,
            measure=self.reporter.noting(self.measure),
            mask_cost=self.mask_cost(),
        )
        action, self.memory = self.schedule(report, self.memory)
        if action.vfe is not None:
            self.add_point(action.vfe)
        if action.restore:
            self._restore()
            self.reporter.round("restored", self.now.keep, back_to=self.snapshot_row)
        if action.regrow:
            self._take_snapshot()
            self._regrow(reducer)
            self.reporter.round("regrown", self.now.keep)
        return action

    def _reduce_by(self, reducer: Reducer, action: Action) -> None:
        if not action.reduce:
            return
        self._remove_by(reducer, action)
        self.reporter.round("reduced", self.now.keep)
        if action.by == "criterion" and not action.tentative:
            if self.schedule.measures and self.removed:
                self.add_point(self.measure())

    def _remove_by(self, reducer: Reducer, action: Action) -> None:
        if self.schedule.verifies or action.tentative:
            self._take_snapshot()
        if action.by != "criterion":
            single = action.by == "single"
            self.now, self.removed = reducer.reduce_by_evidence(
                self.now, action.fraction, single=single
            )
            return
        if action.tentative:
            beyond = reducer.criterion.may_go_beyond
            self.now, self.removed = self._reduced(reducer, action.fraction, beyond=beyond)
            return
        if action.search:
            assert action.vfe is not None
            self._search(reducer, action.vfe)
        else:
            self.now, self.removed = self._reduced(reducer, action.fraction)

    def _take_snapshot(self) -> None:
        # The engine consumes the state it is given, so what may be needed again is copied.
        self.snapshot = replace(self.now, svi=jax.tree.map(jnp.copy, self.now.svi))
        self.snapshot_row, self.snapshot_point = len(self.history), len(self.path)

    def _reduced(
        self, reducer: Reducer, fraction: float, *, beyond: bool = False
    ) -> tuple[FitState, int]:
        """Return where a reduction leads to, and how many elements it removes."""
        state, round_ = reducer.reduce(self.now, fraction, beyond=beyond)
        return state, int(round_.removed)

    def _search(self, reducer: Reducer, vfe: float) -> None:
        """Remove as many elements as measures lowest, if that is below the VFE as it is."""
        start, kept = self.now, kept_counts(self.now.keep)[0]
        _, proposed = self._reduced(reducer, 1.0)
        # Parts come from the proposal; where there is none, the measured VFE alone decides.
        beyond = not proposed and reducer.criterion.may_go_beyond
        found: dict[int, tuple[FitState, int, float]] = {0: (start, 0, vfe)}

        def measured(count: int) -> float:
            if count not in found:
                # Half an element less, since the number is rounded up.
                fraction = (count - 0.5) / kept
                self.now, removed = self._reduced(reducer, fraction, beyond=beyond)
                found[count] = self.now, removed, self.measure()
                self.now = start
            return found[count][2]

        best = lowest(measured, proposed, kept) if proposed or beyond else 0
        self.now, self.removed, _ = found[best]

    def _regrow(self, reducer: Reducer) -> None:
        keep = {name: mask | True for name, mask in self.now.keep.items()}
        self.now = replace(self.now, keep=keep)

    def _restore(self) -> None:
        assert self.snapshot is not None
        self.now, self.snapshot = self.snapshot, None
        for row in self.history[self.snapshot_row :]:
            row["taken_back"] = True
        since = self.snapshot_point
        self.path[since:] = [replace(point, taken_back=True) for point in self.path[since:]]

    def record(
        self,
        plan: Plan,
        state: FitState,
        losses: np.ndarray,
        *,
        seconds: float,
        compile_seconds: float,
    ) -> None:
        """Take over what an epoch led to.

        Args:
            plan: The epoch that was run.
            state: Where it ended.
            losses: The loss of each step; NaN where it was skipped.
            seconds: How long it took.
            compile_seconds: How long compiling took before it.
        """
        self.now = state
        self.epoch += 1
        good = losses[np.isfinite(losses)]
        kept, total = kept_counts(self.now.keep)
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "vfe": float(np.mean(good, dtype=np.float64)) if good.size else float("nan"),
            "kept": kept,
            "sparsity_per_layer": sparsity_per_layer(
                self.now.keep, {} if self.reducer is None else self.reducer.layers
            ),
            "rate": plan.rate,
            "taken_back": False,
            "steps": int(losses.size),
            "skipped_steps": int(losses.size - good.size),
            "seconds": seconds,
            "compile_seconds": compile_seconds,
            **plan.times,
        }
        evaluation = self.evaluation
        due = evaluation is not None and self.epoch - self.evaluated_at >= evaluation.every
        found = self.evaluate() if due and self.epoch < self.num_epochs else {}
        self.history.append({**row, **found})
        self.reporter.epoch(row, total, found)

    def _epoch(self, plan: Plan) -> tuple[FitState, EpochInfo]:
        return self.fit.epoch(
            self.now, self.epoch_key(), num_steps=self.steps, rate=plan.rate, index=self.epoch
        )

    def shown(self) -> dict[str, str]:
        """Return what the progress bar shows of the last epoch."""
        row = self.history[-1]
        kept, total = kept_counts(self.now.keep)
        shown = {"VFE/datum": f"{row['vfe'] / self.fit.engine.num_data:.4f}"}
        if self.reducer is not None:
            shown["sparsity"] = f"{1 - kept / max(total, 1):.3f}"
        if row["skipped_steps"]:
            shown["skipped"] = str(row["skipped_steps"])
        return shown

    # --- looking --------------------------------------------------------------------------

    def measure(self) -> float:
        """Measure the VFE of the current state, nats for all data."""
        return self.fit.measure(self.now, self.vfe_key)

    def mask_cost(self) -> float:
        """Return minus the log probability of the masks, in nats, if the schedule counts it."""
        reducer = self.reducer
        if reducer is None:
            return 0.0
        counts = self.schedule.mask_prior
        if counts is None:
            counts = isinstance(self.fit.engine.guide, JointGuide)
        if not counts:
            return 0.0
        keep = self.placement.fetch(dict(self.now.keep))
        return reducer.criterion.mask_cost(keep, layers=reducer.layers)

    def params(self) -> dict[str, Any]:
        """Return the constrained parameters and mutable sites of the current state."""
        return self.fit.params(self.now)

    def evaluate(self) -> dict[str, float]:
        """Return held-out metrics of the current state."""
        if self.evaluation is None:
            return {}
        begin = time.perf_counter()
        self.evaluated_at = self.epoch
        key = fold_in(self.vfe_key, np.uint32(self.epoch))
        found = self.evaluator.metrics(
            self.params(),
            self.now.keep,
            self.evaluation.data,
            key,
            num_samples=self.evaluation.samples,
        )
        return {**found, "eval_seconds": time.perf_counter() - begin}

    def add_point(self, vfe: float) -> None:
        """Put the current state on the path."""
        cost = self.mask_cost()
        kept, total = kept_counts(self.now.keep)
        metrics = {k: v for k, v in self.evaluate().items() if k != "eval_seconds"}
        whole = self.placement.fetch((self.params(), dict(self.now.keep)))
        params, keep = jax.tree.map(np.asarray, whole)
        self.path.append(Point(self.epoch, vfe, kept, total, metrics, params, keep, cost))
        if self.checkpointer is not None:
            self.checkpointer.save_point(len(self.path) - 1, self.path[-1])
        self.reporter.point(len(self.path) - 1, self.path[-1])

    # --- checkpoints ----------------------------------------------------------------------

    def _arrays(self) -> Any:
        snapshot = self.now if self.snapshot is None else self.snapshot
        return [(m.svi, m.keep, m.memory) for m in (self.now, snapshot)]

    def _settings(self) -> dict[str, Any]:
        key = self.run_key
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        reducer = self.reducer
        return {
            "num_data": self.fit.engine.num_data,
            "batch_size": self.fit.engine.batch_size,
            "steps_per_epoch": self.steps,
            "criterion": None if reducer is None else type(reducer.criterion).__name__,
            "schedule": None if reducer is None else type(self.schedule).__name__,
            "estimator": self.fit.estimator,
            "matmul_dtype": self.fit.engine.matmul_dtype,
            "hyperparameters": self.member.record() or None,
            "key (after the first split)": np.asarray(key).tolist(),
            **self.identity,
        }

    def save(self) -> None:
        """Write a checkpoint."""
        assert self.checkpointer is not None
        document = {
            **{name: getattr(self, name) for name in _PLAIN},
            "has_snapshot": self.snapshot is not None,
            "settings": self._settings(),
            "path": [{k: getattr(p, k) for k in _POINT} for p in self.path],
        }
        self.checkpointer.save(self.placement.fetch(self._arrays()), document)

    def restore(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        assert self.checkpointer is not None

        def like_point(arrays: Any) -> Any:
            # Points are shaped as this one: parameters and masks of the restored state.
            self.now = FitState(*self.placement.parted(arrays)[0])
            return self.placement.fetch({"params": self.params(), "keep": dict(self.now.keep)})

        found = self.checkpointer.restore(self._arrays, like_point, self._check_same)
        if found is None:
            return
        document, arrays, self.path = found
        check_same_objects(document["settings"], self._settings())
        now, snapshot = self.placement.parted(arrays)
        self.now = FitState(*now)
        self.snapshot = FitState(*snapshot) if document["has_snapshot"] else None
        for name in _PLAIN:
            setattr(self, name, document[name])

    def _check_same(self, document: dict[str, Any]) -> None:
        """Refuse a checkpoint of a run with other settings, other data or more epochs."""
        check_same(document["settings"], self._settings())
        if document["epoch"] > self.num_epochs:
            raise ValueError(
                f"sparsify: the run in the directory has done {document['epoch']} epochs, and num_epochs is "
                f"{self.num_epochs}. Give at least as many, or another directory."
            )

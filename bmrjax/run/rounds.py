"""The rounds of a run: what a schedule decides before an epoch is carried out."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from bmrjax.infer.kl_growth import last_step
from bmrjax.run.count_search import lowest
from bmrjax.run.fit_state import FitState
from bmrjax.run.point import kept_counts
from bmrjax.run.reducer import Reducer
from bmrjax.run.reporter import Reporter
from bmrjax.run.run_state import RunState
from bmrjax.schedules import Action, Reduce, Regrow, Report, Restore, Schedule, Stop, Train

# A schedule that is called again before the same epoch more often than this goes round in a circle.
_MOST_ANSWERS = 1000


class Rounds:
    """Call the schedule before each epoch, and do what it answers.

    Args:
        state: Of the run; changed in place.
        schedule: What decides when to reduce, and how much.
        reducer: What reduces.
        reporter: Receives the record of each round.
        num_epochs: Epochs of the run.
        steps: Of an epoch.
        measure: Measures the VFE of the current state.
        mask_cost: Returns the cost of the current masks, if the schedule counts it.
        add_point: Puts the current state on the path, with its VFE.
    """

    def __init__(
        self,
        state: RunState,
        schedule: Schedule,
        reducer: Reducer,
        reporter: Reporter,
        *,
        num_epochs: int,
        steps: int,
        measure: Callable[..., float],
        mask_cost: Callable[[], float],
        add_point: Callable[[float], None],
    ):
        self._state, self._schedule, self._reducer = state, schedule, reducer
        self._reporter, self._num_epochs, self._steps = reporter, num_epochs, steps
        self._measure, self._mask_cost, self._add_point = measure, mask_cost, add_point

    def decide(self) -> tuple[Train | Stop, dict[str, float]]:
        """Call the schedule until an epoch is to be trained or the run is over; return which, and seconds."""
        begin = time.perf_counter()
        action = self._ask()
        measured = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(_MOST_ANSWERS):
            found = self._carry_out(action)
            if found is not None:
                times = {"measure_seconds": measured}
                return found, times | {"reduce_seconds": time.perf_counter() - begin}
            action = self._ask()
        raise ValueError(
            f"sparsify: before epoch {self._state.epoch + 1}, {type(self._schedule).__name__} has answered "
            f"{_MOST_ANSWERS} times, the last time with {action}, and nothing was removed. Where "
            "`Report.removed` is 0, a schedule has to answer with Train or Stop in the end."
        )

    def _ask(self) -> Action:
        report = Report(
            epoch=self._state.epoch,
            num_epochs=self._num_epochs,
            losses=[row["vfe"] for row in self._state.history if not row["taken_back"]],
            removed=self._state.removed,
            measure=self._reporter.noting(self._measure),
            mask_cost=self._mask_cost(),
            warmup=math.ceil(last_step(self._state.kl_growth) / self._steps),
        )
        action, self._state.memory = self._schedule(report, self._state.memory)
        if not isinstance(action, Action):
            raise TypeError(
                f"sparsify: {type(self._schedule).__name__} answered with {action!r}; a schedule answers "
                "with an action, such as schedules.Train() or schedules.Reduce(), and its memory."
            )
        return action

    def _carry_out(self, action: Action) -> Train | Stop | None:
        """Do what comes before an epoch; return what is left, or None if the schedule has to decide again."""
        if action.vfe is not None:
            self._add_point(action.vfe)
        match action:
            case Train():
                if action.keep:
                    self._state.take_snapshot()
                return action
            case Stop():
                return action
            case Restore():
                if self._state.snapshot is None:
                    raise ValueError(
                        f"sparsify: {type(self._schedule).__name__} answered with Restore, and there is no "
                        "earlier state. A schedule that takes reductions back has verifies = True, or "
                        "answers with Train(keep=True), and restores once after each."
                    )
                self._state.go_back()
                self._reporter.round(
                    "restored", self._state.now.keep, back_to=self._state.snapshot_row
                )
                return self._carry_out(action.then)
            case Regrow():
                self._state.take_snapshot()
                keep = {name: mask | True for name, mask in self._state.now.keep.items()}
                self._state.now = replace(self._state.now, keep=keep)
                self._reporter.round("regrown", self._state.now.keep)
                return Train(rate=action.rate)
            case Reduce():
                if action.of == "kept":
                    self._exchange()
                self._remove(action)
                self._reporter.round("reduced", self._state.now.keep)
                if not self._state.removed:
                    return Train(rate=action.rate) if action.by == "criterion" else None
                if self._schedule.measures and action.by in ("criterion", "search"):
                    self._add_point(self._measure())
                return Train(rate=action.rate)
            case _:
                assert_never(action)

    def _exchange(self) -> None:
        """Go on from the state that a `Train` has kept, and keep the current one."""
        back_to = self._state.snapshot_row
        if self._state.snapshot is None or self._state.exchanged is not None:
            raise ValueError(
                f"sparsify: {type(self._schedule).__name__} answered with Reduce(of='kept'), and no state is "
                "kept, or it has been reduced already. Answer with Train(keep=True) before."
            )
        self._state.exchange()
        self._reporter.round("exchanged", self._state.now.keep, back_to=back_to)

    def _remove(self, action: Reduce) -> None:
        if action.of == "current" and (self._schedule.verifies or action.by == "beyond"):
            self._state.take_snapshot()
        match action.by:
            case "criterion":
                self._state.now, self._state.removed = self._reduced(action.fraction)
            case "beyond":
                beyond = self._reducer.criterion.may_go_beyond
                self._state.now, self._state.removed = self._reduced(action.fraction, beyond=beyond)
            case "search":
                assert action.vfe is not None
                self._search(action.vfe)
            case "evidence" | "single":
                self._state.now, self._state.removed = self._reducer.reduce_by_evidence(
                    self._state.now, action.fraction, single=action.by == "single"
                )
            case _:
                assert_never(action.by)

    def _reduced(self, fraction: float, *, beyond: bool = False) -> tuple[FitState, int]:
        """Return where a reduction leads to, and how many elements it removes."""
        state, round_ = self._reducer.reduce(self._state.now, fraction, beyond=beyond)
        return state, int(round_.removed)

    def _search(self, vfe: float) -> None:
        """Remove as many elements as measures lowest, if that is below the VFE as it is."""
        start, kept = self._state.now, kept_counts(self._state.now.keep)[0]
        _, proposed = self._reduced(1.0)
        # Parts come from the proposal; where there is none, the measured VFE alone decides.
        beyond = not proposed and self._reducer.criterion.may_go_beyond
        found: dict[int, tuple[FitState, int, float]] = {0: (start, 0, vfe)}

        def measured(count: int) -> float:
            if count not in found:
                # Half an element less, since the number is rounded up.
                fraction = (count - 0.5) / kept
                self._state.now, removed = self._reduced(fraction, beyond=beyond)
                found[count] = self._state.now, removed, self._measure()
                self._state.now = start
            return found[count][2]

        best = lowest(measured, proposed, kept) if proposed or beyond else 0
        self._state.now, self._state.removed, _ = found[best]

"""What the runs of one training share."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bmrjax.criteria import Criterion
from bmrjax.infer.evaluate import Evaluator
from bmrjax.run.facts import Examination
from bmrjax.run.fit import Fit
from bmrjax.run.held_out import HeldOut
from bmrjax.run.round_judge import RoundJudge
from bmrjax.run.same_run import data_identity, program_identity
from bmrjax.run.settings import Settings
from bmrjax.schedules import Schedule


@dataclass(frozen=True)
class Shared:
    """What the runs of one training share, compiled once.

    Attributes:
        fit: The program with its data.
        evaluator: What computes metrics on held-out data.
        judge: What rounds are judged by.
        schedule: When to reduce, and how much.
        criterion: Decides which elements are kept; None fits without reducing.
        held_out: Data kept out, if any, with the number of epochs between metrics.
        num_epochs: Epochs at most.
        steps: Steps of an epoch.
        max_bad_steps: Steps in a row that may be skipped.
        begun: When the training began, on the clock of `time.perf_counter`.
        guide: The guide as the caller gave it.
        settings: As the caller gave them.
    """

    fit: Fit
    evaluator: Evaluator
    judge: RoundJudge
    schedule: Schedule
    criterion: Criterion | None
    held_out: HeldOut | None
    num_epochs: int
    steps: int
    max_bad_steps: int
    begun: float
    guide: Callable | None
    settings: Settings

    def identity(self, model: Callable) -> dict[str, Any]:
        """Return what must be the same for a run of a program to go on from another."""
        return self._data_identity | program_identity(model, self.guide, self.settings)

    @functools.cached_property
    def _data_identity(self) -> dict[str, Any]:
        return data_identity(self.fit.source, self.settings)

    @functools.cached_property
    def examination(self) -> Examination:
        """What measures the facts that `Result.diagnose` reads."""
        return Examination(self.evaluator.model, self.evaluator.guide)

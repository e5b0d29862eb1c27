"""What the runs of one training share."""

import functools
from dataclasses import dataclass

from bmrjax.criteria import Criterion
from bmrjax.infer.evaluate import Evaluator
from bmrjax.run.batches import Batches, checksum
from bmrjax.run.facts import Examination
from bmrjax.run.fit import Fit
from bmrjax.run.held_out import HeldOut
from bmrjax.schedules import Schedule


@dataclass(frozen=True)
class Shared:
    """What the runs of one training share, compiled once.

    Attributes:
        fit: The program with its data.
        evaluator: What computes metrics on held-out data.
        schedule: When to reduce, and how much.
        criterion: Decides which elements are kept; None fits without reducing.
        held_out: Data kept out, if any, with the number of epochs between metrics.
        num_epochs: Epochs at most.
        steps: Steps of an epoch.
        max_bad_steps: Steps in a row that may be skipped.
        begun: When the training began, on the clock of `time.perf_counter`.
    """

    fit: Fit
    evaluator: Evaluator
    schedule: Schedule
    criterion: Criterion | None
    held_out: HeldOut | None
    num_epochs: int
    steps: int
    max_bad_steps: int
    begun: float

    @functools.cached_property
    def checksum(self) -> int | None:
        """A number that tells the data from others."""
        return None if isinstance(self.fit.source, Batches) else checksum(self.fit.source)

    @functools.cached_property
    def examination(self) -> Examination:
        """What measures the facts that `Result.diagnose` reads."""
        return Examination(self.evaluator.model, self.evaluator.guide)

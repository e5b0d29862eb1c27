"""What a run reduces with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bmrjax.criteria import Criterion
from bmrjax.criteria.last_pass import LeastEvidence, for_last_pass
from bmrjax.infer.arguments import Data
from bmrjax.run.reduce_once import jit_reduce
from bmrjax.schedules import Schedule


@dataclass
class Reducer:
    """The criterion and the schedule of a run, with their compiled rounds."""

    criterion: Criterion
    schedule: Schedule
    sites: list[str]
    layers: dict[str, str]
    example: Data
    run: Callable = field(init=False)
    last: Criterion | None = field(init=False)
    run_last: Callable | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.run = jit_reduce(self.criterion, self.schedule.order)
        self.last = for_last_pass(self.criterion)
        if self.last is not None:
            self.run_last = jit_reduce(self.last, LeastEvidence(self.last.groups))

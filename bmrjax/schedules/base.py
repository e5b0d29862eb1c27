"""What a schedule sees, and what it answers."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bmrjax.criteria.order import Order, smallest_snr_first
from bmrjax.infer.convergence import Settled

Memory = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """What a schedule sees before an epoch.

    Attributes:
        epoch: Epochs done so far, those that were taken back included.
        num_epochs: Epochs of the whole run.
        losses: Mean VFE of each epoch so far, in nats (epochs taken back are not in it).
        removed: How many elements the last reduction removed; None before the first.
        measure: Measures the VFE of the current state on the training data, in nats.
        mask_cost: What the current masks cost (`criteria.Criterion.mask_cost`), in nats; zero unless it is
            counted, as the schedule's `mask_prior` says.
    """

    epoch: int
    num_epochs: int
    losses: list[float]
    removed: int | None
    measure: Callable[[], float]
    mask_cost: float = 0.0


# What chooses the elements that a round removes.
Pass = Literal["criterion", "evidence", "single"]


@dataclass(frozen=True)
class Action:
    """What to do before the next epoch.

    Attributes:
        restore: Go back to the state before the last reduction, or regrowth.
        reduce: Reduce, after restoring.
        search: Let the measured VFE, which is `vfe` now, say how far the reduction goes; see
            `schedules.Iterative`. If nothing goes, the schedule is asked again at once.
        tentative: What is proposed or not, remove `fraction` of what is kept, as far as the criterion
            may go beyond its proposal, and keep the state before to return to. If nothing goes, the
            schedule is asked again at once.
        by: What chooses the elements to remove: the run's criterion; or, in passes of their own of
            `schedules.Verified`, the evidence of each element (``"evidence"``, `criteria.Shrinkage`), or the
            one element or group whose removal costs the least evidence (``"single"``). If these two remove
            nothing, the schedule is called again at once.
        regrow: Let everything come back that was removed.
        fraction: Remove at most this fraction of what is kept; 1 is no cap.
        rate: Factor on the learning rate of the next epoch.
        stop: End the run here.
        vfe: The VFE of the current state, where it was measured.
    """

    restore: bool = False
    reduce: bool = False
    search: bool = False
    tentative: bool = False
    by: Pass = "criterion"
    regrow: bool = False
    fraction: float = 1.0
    rate: float = 1.0
    stop: bool = False
    vfe: float | None = None


class Schedule(abc.ABC):
    """Decide before each epoch whether to reduce.

    Attributes:
        order: Which candidates are removed first when a round is capped.
        verifies: Whether reductions can be taken back, so that the loop keeps a state to return to;
            before a regrowth it always does.
        measures: Whether the VFE is measured, so that the result is the best point; so it is where
            rounds can be taken back.
        until: Ends an epoch early, once the fit has converged; None runs all its steps.
        mask_prior: Whether what the masks themselves cost under the criterion's prior is counted; None
            counts it where the posterior is a joint normal and the criterion has such a prior.
    """

    order: Order = staticmethod(smallest_snr_first)
    verifies: bool = False
    measures: bool = False
    until: Settled | None = None
    mask_prior: bool | None = False

    def init(self) -> Memory:
        """Return the memory before the first epoch."""
        return {}

    @abc.abstractmethod
    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """Decide.

        Args:
            report: How the fit went.
            memory: From `init` or from the last call; JSON values only.

        Returns:
            The action and the next memory.
        """


def linear_decay(report: Report, cooldown: int, *, end: int | None = None) -> float:
    """Return 1 until the last `cooldown` epochs before `end`, then fall linearly towards zero.

    The end is that of the run by default.
    """
    left = (report.num_epochs if end is None else end) - report.epoch
    return 1.0 if left > cooldown else left / (cooldown + 1)


def check_at_least(schedule: Schedule, **at_least: int) -> None:
    """Raise an error that names the first setting that is too small."""
    for name, least in at_least.items():
        if getattr(schedule, name) < least:
            raise ValueError(
                f"{type(schedule).__name__}: {name} must be at least {least}, "
                f"got {getattr(schedule, name)}."
            )


def check_fraction(schedule: Schedule, name: str) -> None:
    """Raise an error unless a setting is in (0, 1]."""
    if not 0 < getattr(schedule, name) <= 1:
        raise ValueError(
            f"{type(schedule).__name__}: {name} must be in (0, 1], got {getattr(schedule, name)}."
        )

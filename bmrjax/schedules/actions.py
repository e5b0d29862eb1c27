"""What a schedule may answer: a closed set of actions."""

from dataclasses import dataclass
from typing import Literal

# Which state a reduction starts from; see `Reduce`.
Of = Literal["current", "kept"]

# What chooses the elements that a reduction removes; see `Reduce`.
By = Literal["criterion", "evidence", "single", "search", "beyond"]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train for an epoch.

    Attributes:
        rate: Factor on the learning rate.
        keep: Whether the state before the epoch is kept, for a `Reduce` of it (``of="kept"``). One state is
            kept at a time: a reduction of the current state, in a schedule that ``verifies``, keeps another.
        vfe: VFE of the current state in nats, if the schedule measured it and the state shall be a point of
            `Result.path`. So it is for all actions.

    Example:
        A schedule that only trains, at a rate that falls:

        >>> from bmrjax.schedules import Schedule, Train
        >>> class Falling(Schedule):
        ...     def init(self):
        ...         return None
        ...
        ...     def __call__(self, report, memory):
        ...         return Train(rate=1 - report.epoch / report.num_epochs), memory
        >>> from bmrjax.schedules import Report
        >>> action, _ = Falling()(
        ...     Report(epoch=4, num_epochs=8, losses=[], removed=None, measure=float), None
        ... )
        >>> action.rate
        0.5
    """

    rate: float = 1.0
    keep: bool = False
    vfe: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """Remove elements, then train for an epoch.

    What chooses the elements, `by`:

    * ``"criterion"``: the run's criterion, at most `fraction` of what is kept.
    * ``"evidence"``: the evidence of each element alone (`criteria.Shrinkage`), at most `fraction`.
    * ``"single"``: the one element or group whose removal costs the least evidence.
    * ``"search"``: of what the criterion proposes, as much as measures the lowest VFE; see
      `schedules.Iterative`. It needs `vfe`, and ignores `fraction`.
    * ``"beyond"``: `fraction` of what is kept, whether it is proposed or not, as far as the criterion may go
      beyond its proposal. The state before is kept to return to.

    If nothing is removed, the epoch is trained all the same by ``"criterion"``. In all other cases, the
    schedule is called again at once, with a `Report` whose ``removed`` is 0.

    Attributes:
        fraction: Part of the kept elements that may be removed; 1 for no cap.
        by: What chooses them.
        of: Which state is reduced: the current one, or the one that a `Train` has kept. The two then change
            places, once: what was current is kept, and `Restore` leads to it.
        rate: Factor on the learning rate of the epoch.
        vfe: See `Train`.

    Example:
        >>> from bmrjax.schedules import Reduce
        >>> half = Reduce(fraction=0.5, vfe=1234.5)  # at most half of what is kept, at a measured state
        >>> Reduce(by="search")
        Traceback (most recent call last):
            ...
        ValueError: Reduce: a search compares measured VFEs, and needs that of the current state; ...
    """

    fraction: float = 1.0
    by: By = "criterion"
    of: Of = "current"
    rate: float = 1.0
    vfe: float | None = None

    def __post_init__(self) -> None:
        if self.by == "search" and self.of == "kept":
            raise ValueError(
                "Reduce: a search compares measured VFEs with that of the current state, and cannot start "
                "from the kept one; write Reduce(by='search', vfe=report.measure()), or another `by`."
            )
        if self.by == "search" and self.vfe is None:
            raise ValueError(
                "Reduce: a search compares measured VFEs, and needs that of the current state; write "
                "Reduce(by='search', vfe=report.measure())."
            )


@dataclass(frozen=True, kw_only=True)
class Regrow:
    """Let everything come back that was removed, then train for an epoch; the state before is kept.

    Attributes:
        rate: Factor on the learning rate of the epoch.
        vfe: See `Train`.

    Example:
        The last try of a schedule, when a reduction removed nothing:

        >>> from bmrjax.schedules import Reduce, Regrow, Report
        >>> def next_action(report):
        ...     return Regrow(vfe=report.measure()) if report.removed == 0 else Reduce()
        >>> next_action(Report(epoch=4, num_epochs=8, losses=[], removed=0, measure=lambda: 12.5))
        Regrow(rate=1.0, vfe=12.5)
    """

    rate: float = 1.0
    vfe: float | None = None


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End the run here.

    Attributes:
        vfe: See `Train`.

    Example:
        >>> from bmrjax.schedules import Reduce, Report, Stop
        >>> def next_action(report):
        ...     return Stop(vfe=report.measure()) if report.removed == 0 else Reduce()
        >>> next_action(Report(epoch=4, num_epochs=8, losses=[], removed=0, measure=lambda: 12.5))
        Stop(vfe=12.5)
    """

    vfe: float | None = None


@dataclass(frozen=True, kw_only=True)
class Restore:
    """Go back to the state before the last reduction or regrowth, or to the kept one; then do something else.

    Attributes:
        then: What to do there.
        vfe: VFE of the state that is left, see `Train`; its point is marked as taken back.

    Example:
        >>> from bmrjax.schedules import Restore, Stop, Train
        >>> Restore(then=Train(), vfe=130.0).then  # the round went to 130 nats, and is taken back
        Train(rate=1.0, keep=False, vfe=None)
        >>> Restore(then=Stop(vfe=130.0))
        Traceback (most recent call last):
            ...
        ValueError: Restore: a schedule measures before it goes back; ...
    """

    then: Train | Reduce | Regrow | Stop
    vfe: float | None = None

    def __post_init__(self) -> None:
        if self.then.vfe is not None:
            raise ValueError(
                "Restore: a schedule measures before it goes back; give the VFE as Restore(vfe=...), not in "
                "`then`."
            )


Action = Train | Reduce | Regrow | Restore | Stop

"""What a schedule is, and what it sees."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bmrjax.convergence import Settled
from bmrjax.criteria.order import Order, smallest_snr_first
from bmrjax.schedules.actions import Action

Memory = dict[str, Any]
# What rounds are judged by: the VFE, the VFE less its overcharge, or rows that were kept out.
Judge = Literal["vfe", "corrected", "held-out"]


@dataclass(frozen=True)
class Report:
    """What a schedule sees before an epoch.

    Attributes:
        epoch: Epochs done so far, those that were taken back included.
        num_epochs: Epochs of the whole run.
        losses: Mean VFE of each epoch so far, in nats (epochs taken back are not in it).
        removed: How many elements the last reduction removed; None before the first.
        measure: Measures what the schedule's `judge` names, of the current state, in nats for all data; by
            default the VFE on the training data. Lower is better. With numbers, as in ``measure(limit)``, a
            part of the batches may do: those that say on which side of each number the VFE is. It is then
            that of the state before the last reduction plus an estimated difference.
        mask_cost: What the current masks cost (`criteria.Criterion.mask_cost`), in nats; zero unless it is
            counted, as the schedule's `mask_prior` says.
        warmup: Epochs over which the divergence comes in, from the first one on.

    Example:
        What `Every` answers to a report, without a fit:

        >>> from bmrjax.schedules import Every, Report
        >>> schedule = Every(every=2, wait=1)
        >>> for epoch in range(4):
        ...     report = Report(epoch, num_epochs=8, losses=[], removed=None, measure=lambda: 12.5)
        ...     print(type(schedule(report, schedule.init())[0]).__name__)
        Train
        Reduce
        Train
        Reduce
    """

    epoch: int
    num_epochs: int
    losses: list[float]
    removed: int | None
    measure: Callable[..., float]
    mask_cost: float = 0.0
    warmup: int = 0


class Schedule(abc.ABC):
    """Decide before each epoch what to do: train, reduce, go back, let all come back, or stop.

    To write a schedule of your own, derive a class and define ``__call__``. It gets a `Report` of how the fit
    went, and answers with one action (`Train`, `Reduce`, `Restore`, `Regrow` or `Stop`) and its next memory.
    The memory is a dict of JSON values, so that a run can stop and go on; `init` returns the first one. The
    memory that was given must not be changed: return a new dict. A schedule that answers with `Restore` after
    `Reduce` sets ``verifies = True``, so that the loop keeps the state before.

    Attributes:
        order: Which candidates are removed first when a round is capped.
        verifies: Whether reductions can be taken back, so that the loop keeps a state to return to;
            before a regrowth it always does.
        measures: Whether the VFE is measured, so that the result is the best point; so it is where
            rounds can be taken back.
        until: Ends an epoch early, once the fit has converged; None runs all its steps.
        mask_prior: Whether what the masks themselves cost under the criterion's prior is counted; None
            counts it where the posterior is a joint normal and the criterion has such a prior.
        judge: What is measured: ``"vfe"``, the variational free energy; ``"corrected"``, that less what a
            factorised posterior overcharges (`bmrjax.overcharge`); or ``"held-out"``, the number of data
            times the NLL of a row kept out, of those that are given as ``held_out=``. Metrics on these are
            then those of rows that were chosen by.

    Example:
        A round every third epoch, which is taken back if the VFE rose:

        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> from bmrjax.schedules import Reduce, Restore, Schedule, Stop, Train
        >>> class ThirdEpochs(Schedule):
        ...     verifies = True
        ...
        ...     def init(self):
        ...         return {"before": None}
        ...
        ...     def __call__(self, report, memory):
        ...         if report.epoch == 0 or report.epoch % 3:
        ...             return Train(), memory
        ...         vfe = report.measure()
        ...         if memory["before"] is not None and vfe > memory["before"]:
        ...             return Restore(then=Stop()), memory
        ...         return Reduce(fraction=0.5, vfe=vfe), {"before": vfe}
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 4))
        >>> result = bmr.sparsify(
        ...     program, (x, 2.0 * x[:, 0]), key=jax.random.key(1), num_epochs=10,
        ...     batch_size=None, schedule=ThirdEpochs(), progress=False,
        ... )
        >>> [point.kept for point in result.path]
        [4, 2, 1, 1]
    """

    order: Order = staticmethod(smallest_snr_first)
    verifies: bool = False
    measures: bool = False
    until: Settled | None = None
    mask_prior: bool | None = False
    judge: Judge = "vfe"

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
            One action, and the next memory.
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

"""Train to convergence, reduce, repeat."""

from dataclasses import dataclass

from bmrjax.infer.settled import Settled
from bmrjax.schedules.base import (
    Action,
    Memory,
    Order,
    Report,
    Schedule,
    check_at_least,
    smallest_snr_first,
)


@dataclass(frozen=True)
class Iterative(Schedule):
    """Train until the VFE has settled, reduce, and so on, until nothing is removed.

    An epoch ends where `until` says so, inside the compiled program; ``steps_per_epoch`` is the most that it
    may take. After the epochs of one training, one a learning rate, the VFE is measured; then comes
    the reduction, and the VFE is measured once more, so that the path has what each reduction did
    before anything was re-fitted. The result is the point with the lowest VFE.

    Args:
        until: When an epoch has converged.
        rates: Factors on the learning rate, one an epoch of a training.
        search: Whether the measured VFE says how far a reduction goes: all that the criterion
            proposes, or the part of it, by `order`, with the lowest VFE; and once it proposes nothing,
            more while that still lowers the VFE. Without, what the criterion proposes goes, as published.
        regrowths: How often at most, once nothing more is removed, all that is gone comes back, is
            trained and reduced again. What then has the higher VFE is taken back, and the run ends.
        order: Who goes first.

    References:
        Beckers et al. (2024), Algorithm 1, without the search; section 7 for regrowth.
    """

    until: Settled = Settled()  # noqa: RUF009 - frozen
    rates: tuple[float, ...] = (1.0, 0.1)
    search: bool = True
    regrowths: int = 0
    order: Order = smallest_snr_first
    measures = True

    def __post_init__(self) -> None:
        check_at_least(self, regrowths=0)
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(
                f"Iterative: rates must be positive factors on the learning rate, got {self.rates}."
            )

    def init(self) -> Memory:
        """See `Schedule`."""
        return {"trained": 0, "regrowths": 0, "before": None, "regrown": False}

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        memory = dict(memory)
        if memory["trained"] < len(self.rates):
            memory["trained"] += 1
            return Action(rate=self.rates[memory["trained"] - 1]), memory
        memory["trained"] = 1
        rate = self.rates[0]
        if memory["regrown"]:
            memory["regrown"] = False
            return Action(reduce=True, rate=rate), memory
        vfe = report.measure()
        if memory["before"] is not None:
            if not vfe <= memory["before"]:
                return Action(restore=True, stop=True), memory
            memory["before"] = None
        elif report.removed == 0:
            if memory["regrowths"] == self.regrowths:
                return Action(stop=True, vfe=vfe), memory
            memory.update(regrowths=memory["regrowths"] + 1, before=vfe, regrown=True)
            return Action(regrow=True, vfe=vfe, rate=rate), memory
        return Action(reduce=True, search=self.search, vfe=vfe, rate=rate), memory

"""Rounds that are taken back unless the free energy fell."""

import math
from dataclasses import dataclass

from bmrjax.schedules.base import (
    Action,
    Memory,
    Order,
    Report,
    Schedule,
    check_at_least,
    check_fraction,
    linear_decay,
    smallest_magnitude_first,
)


@dataclass(frozen=True)
class Verified(Schedule):
    """Propose a capped round, re-fit, measure the actual VFE; keep the round only if it fell.

    The predicted evidence difference treats removals as independent, which a mean-field posterior
    cannot judge; so the actual VFE decides. A round that raised it is taken back, and the cap is
    halved. When the cap is spent, or after some rounds nothing is proposed any more, reducing is over.
    A fit that is too young for its criterion to propose anything is asked again after `refit` epochs.

    Args:
        wait: Epochs before the first round; a fifth of the run by default, 20 at most.
        refit: Epochs of re-fitting before a round is judged; a sixteenth of the run by default,
            4 at most.
        fraction: First cap, as a fraction of what is kept.
        min_fraction: Reducing is over when the cap falls below this.
        cooldown: Last epochs without reductions, over which the learning rate falls to zero; a
            fifth of the run by default, 20 at most. With 0, the run stops when the cap is spent.
        order: Who goes first under the cap.
        mask_prior: Take a round too if the VFE rose by less than the masks' log prior probability
            (`criteria.Criterion.mask_log_prob`) did, and end at the point where the VFE less that
            probability is lowest. Where k of n elements are included, each costs about ln(n / k)
            nats, which ends sparser, with a higher VFE of the program itself.
    """

    wait: int | None = None
    refit: int | None = None
    fraction: float = 0.5
    min_fraction: float = 0.01
    cooldown: int | None = None
    order: Order = smallest_magnitude_first
    mask_prior: bool = False
    verifies = True

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("refit", 1), ("cooldown", 0)):
            if getattr(self, name) is not None:
                check_at_least(self, **{name: least})
        check_fraction(self, "fraction")
        check_fraction(self, "min_fraction")

    def lengths(self, num_epochs: int) -> tuple[int, int, int]:
        """Return (wait, refit, cooldown) in epochs, for a run of `num_epochs`."""
        share = min(20, math.ceil(num_epochs / 5))
        refit = min(4, max(1, round(num_epochs / 16)))
        return (
            share if self.wait is None else self.wait,
            refit if self.refit is None else self.refit,
            share if self.cooldown is None else self.cooldown,
        )

    def init(self) -> Memory:
        """See `Schedule`."""
        return {
            "fraction": self.fraction,
            "reference": None,
            "cost": 0.0,
            "since": 0,
            "proposed": False,
            "over": False,
        }

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        wait, refit, cooldown = self.lengths(report.num_epochs)
        memory = dict(memory)
        rate = linear_decay(report, cooldown)
        cooling = report.num_epochs - report.epoch <= cooldown
        pending = memory["reference"] is not None

        def finish(*, restore: bool, vfe: float | None = None) -> tuple[Action, Memory]:
            memory["over"] = True
            return Action(restore=restore, rate=rate, stop=not cooldown, vfe=vfe), memory

        if memory["over"]:
            return Action(rate=rate), memory
        if pending and report.removed == 0:
            if memory["proposed"]:
                # Nothing was left to remove: what the criterion still includes, stays.
                return finish(restore=False)
            memory.update(reference=None, since=wait - refit + 1)
            pending = False
        memory["proposed"] |= pending
        due = memory["since"] >= (refit if pending else wait)
        if not due and not cooling:
            memory["since"] += 1
            return Action(rate=rate), memory
        vfe = report.measure()
        # With the masks' cost or without: from dense to half of it, that cost rises and hides a gain.
        allowed = max(0.0, memory["cost"] - report.mask_cost)
        if pending and not vfe <= memory["reference"] + allowed:
            memory["fraction"] /= 2
            if cooling or memory["fraction"] < self.min_fraction:
                return finish(restore=True)
            memory["since"] = 1
            return Action(restore=True, reduce=True, fraction=memory["fraction"]), memory
        if cooling:
            return finish(restore=False, vfe=vfe)
        memory.update(reference=vfe, cost=report.mask_cost, since=1)
        return Action(reduce=True, fraction=memory["fraction"], vfe=vfe), memory

"""Rounds that are taken back unless the free energy fell."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from bmrjax.criteria.order import Order, default_order
from bmrjax.schedules.actions import Action, Of, Reduce, Restore, Stop, Train
from bmrjax.schedules.base import (
    Judge,
    Memory,
    Report,
    Schedule,
    check_at_least,
    check_fraction,
    linear_decay,
)

# What chooses the elements that a pass removes; see `Reduce`.
Pass = Literal["criterion", "evidence", "single"]
# What a round is compared with.
Against = Literal["before", "unreduced"]

# Epochs on either side of the comparison that says whether a fit still improves, and the part of the whole
# fall of the loss so far that counts as improving.
_WINDOW, _PART = 3, 0.05
# The part of the warm-up before the first round. While the rest comes in, the VFE falls by that, too.
_WARM = 0.8


@dataclass(frozen=True)
class Verified(Schedule):
    """Propose a capped round, re-fit, measure the actual VFE; keep the round only if it fell.

    The predicted evidence difference treats removals as independent, which a mean-field posterior
    cannot judge; so the actual VFE decides. A round that raised it is taken back, and the cap is
    halved. A fit that is too young for its criterion to propose anything is tried again after `refit`
    epochs.

    Rounds come in passes. When the cap is spent, or after some rounds nothing is proposed any more, the next
    pass follows, verified in the same way: after that of the criterion (``"criterion"``), all elements whose
    own evidence favours removal (``"evidence"``, `criteria.Shrinkage`, under a cap of its own), and then one
    element at a time, the one whose removal costs the least evidence first, until one is taken back
    (``"single"``). A criterion whose threshold depends on how much is included, such as
    `criteria.SpikeAndSlab`, can end far too early without them: its threshold is high while most of a layer
    is included. With ``"evidence"`` first, it is low when the criterion's turn comes. All passes respect
    groups. The last two are left out where they do not apply: for posteriors that are not normal, criteria
    with a threshold or fraction of the user's, and single elements where more than 300 are kept.

    Args:
        wait: Epochs before the first round. By default a fifth of the run, 20 at most, and more if the loss
            then still falls by more than a twentieth of its whole fall in three epochs, but never more than
            half of the run. Where the divergence comes in slowly (`FitOptions.kl_warmup`), not before four
            fifths of that, or half of the run.
        refit: Epochs of re-fitting before a round is judged; a sixteenth of the run by default,
            4 at most.
        fraction: First cap, as a fraction of what is kept.
        min_fraction: A pass is over when the cap falls below this.
        cooldown: Last epochs without reductions, over which the learning rate falls to zero; a
            fifth of the run by default, 20 at most. With 0, the run stops when the last pass is over.
        order: Which elements are removed first under the cap; see `criteria.default_order`.
        mask_prior: Whether a round is kept too if the VFE rose by less than the cost of the masks
            (`criteria.Criterion.mask_cost`) fell, and the run ends at the point where the sum of both is
            lowest. Where k of n elements are included, each costs about ln(n / k) nats, so the result is
            sparser, with a higher VFE of the program itself. By default, it is counted where the posterior
            is a joint normal, whose VFE is close to the evidence, and the criterion has a prior over masks.
        passes: What chooses the elements to remove, in this order, each at most once.
        tolerance: Nats by which the VFE may exceed the lowest one so far without a round being taken back.
            Elements that do nothing neither raise nor lower it, but re-fitting does, a little.
        stop_early: Whether the last epochs begin as soon as the last pass is over and the loss has settled,
            so that `num_epochs` is only a bound, rather than at the end of the run.
        exact: Whether each VFE is measured on all rows, rather than on so many batches that the decision is
            clear. Decisions are the same, up to a chance of 1e-6 each; the VFEs of a path have errors
            (`Point.vfe_error`), but for that of its best point.
        judge: What has to fall for a round to be kept: ``"vfe"``, ``"corrected"`` or ``"held-out"``; see
            `Schedule`.
        against: The state that a round has to be better than: ``"before"`` is the one before it, and
            ``"unreduced"`` the same after as many epochs without the reduction, so that a fit that still
            improves does not pay for a bad round. A round then takes twice the epochs. One that is taken back
            costs half of them, since the unreduced state goes on. Single elements, and rounds for which the
            epochs before the cooldown are too few, are compared with the state before.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> result = bmr.sparsify(
        ...     program, (x, 2.0 * x[:, 0]), key=jax.random.key(1), num_epochs=12, batch_size=None,
        ...     steps_per_epoch=100, schedule=bmr.schedules.Verified(wait=4, refit=1), progress=False,
        ... )
        >>> [(point.kept, point.taken_back) for point in result.path]
        [(3, False), (1, False), (1, False)]
    """

    wait: int | None = None
    refit: int | None = None
    fraction: float = 0.5
    min_fraction: float = 0.01
    cooldown: int | None = None
    order: Order = default_order
    mask_prior: bool | None = None
    passes: tuple[Pass, ...] = ("criterion", "evidence", "single")
    tolerance: float = 0.0
    stop_early: bool = False
    judge: Judge = "vfe"
    exact: bool = False
    against: Against = "before"
    verifies = True

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("refit", 1), ("cooldown", 0)):
            if getattr(self, name) is not None:
                check_at_least(self, **{name: least})
        check_fraction(self, "fraction")
        check_fraction(self, "min_fraction")
        known = get_args(Pass)
        if not self.passes or len({*self.passes} & {*known}) < len(self.passes):
            raise ValueError(
                f"Verified: passes must be some of {', '.join(map(repr, known))}, each at most once, got "
                f"{self.passes!r}."
            )
        for name, choices in (("judge", get_args(Judge)), ("against", get_args(Against))):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Verified: {name} must be one of {', '.join(map(repr, choices))}, got "
                    f"{getattr(self, name)!r}."
                )
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"Verified: tolerance must not be negative, got {self.tolerance}.")

    def lengths(self, num_epochs: int, warmup: int = 0) -> tuple[int, int, int]:
        """Return (wait, refit, cooldown) in epochs, for a run of `num_epochs` with so many of warm-up."""
        share = min(20, math.ceil(num_epochs / 5))
        refit = min(4, max(1, round(num_epochs / 16)))
        warm = min(math.ceil(_WARM * warmup), num_epochs // 2)
        return (
            max(share, warm) if self.wait is None else self.wait,
            refit if self.refit is None else self.refit,
            share if self.cooldown is None else self.cooldown,
        )

    def init(self) -> Memory:
        """See `Schedule`."""
        return {
            "fraction": self.fraction,
            "reference": None,
            "lowest": None,
            "cost": 0.0,
            "since": 0,
            "proposed": False,
            "by": self.passes[0],
            "over": False,
            "end": None,
            "twin": False,
            "beside": False,
        }

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        wait, refit, cooldown = self.lengths(report.num_epochs, report.warmup)
        # A run that began with an earlier version has no more than that knew.
        memory = {**self.init(), **memory}
        cooling = report.num_epochs - report.epoch <= cooldown
        pending = memory["reference"] is not None

        def last_epochs() -> Train | Stop:
            """Return the next of the epochs without reductions, which may begin before their time."""
            if self.stop_early and memory["end"] is None and _has_settled(report.losses):
                memory["end"] = min(report.epoch + cooldown, report.num_epochs)
            if not cooldown or report.epoch == memory["end"]:
                return Stop()
            return Train(rate=linear_decay(report, cooldown, end=memory["end"]))

        def measure(*limits: float) -> float:
            return report.measure() if self.exact else report.measure(*limits)

        def lowest() -> list[float]:
            # Where limits count from the lowest VFE, it has to be clear which one that is.
            found = memory["lowest"]
            return [float(found)] if self.tolerance > 0 and found is not None else []

        def finish(*, restore: bool, vfe: float | None = None) -> tuple[Action, Memory]:
            memory["over"] = True
            then = last_epochs()
            return Restore(then=then) if restore else replace(then, vfe=vfe), memory

        def refer_to(vfe: float) -> None:
            lowest = vfe if memory["lowest"] is None else min(vfe, memory["lowest"])
            memory.update(reference=vfe, lowest=lowest, cost=report.mask_cost)

        def next_pass(*, restore: bool) -> tuple[Action, Memory]:
            left = self.passes[self.passes.index(memory["by"]) + 1 :]
            if not left or cooling:
                return finish(restore=restore)
            by = left[0]
            if memory["by"] == "criterion" and not restore:
                # An epoch has passed since the last measurement; after other passes, none has.
                refer_to(measure(math.inf, *lowest()))
            memory.update(by=by, fraction=self.fraction)
            then = propose()
            return Restore(then=then) if restore else then, memory

        def propose(vfe: float | None = None) -> Train | Reduce:
            """Begin a round: reduce, or train what is not reduced first, if there is time for both."""
            left = report.num_epochs - cooldown - report.epoch
            twin = self.against == "unreduced" and memory["by"] != "single" and left >= 2 * refit
            memory.update(since=1, twin=twin, beside=twin)
            return Train(keep=True, vfe=vfe) if memory["twin"] else reduce(vfe=vfe)

        def reduce(vfe: float | None = None, of: Of = "current") -> Reduce:
            return Reduce(by=memory["by"], fraction=memory["fraction"], of=of, vfe=vfe)

        if memory["over"]:
            return last_epochs(), memory
        later = memory["by"] != self.passes[-1]
        if memory["twin"]:
            if memory["since"] < refit and not cooling:
                memory["since"] += 1
                return Train(rate=linear_decay(report, cooldown)), memory
            memory["twin"] = False
            vfe = measure(math.inf, *lowest())
            if cooling:
                return finish(restore=False, vfe=vfe)
            refer_to(vfe)
            memory["since"] = 1
            return reduce(vfe, of="kept"), memory
        if pending and report.removed == 0:
            # What was not reduced is the state to go on from.
            kept = memory["beside"]
            if memory["proposed"] or (later and 2 * report.epoch >= report.num_epochs):
                return next_pass(restore=kept)
            # The criterion's rounds have trained an epoch, and those of other passes have not.
            wait_again = max(refit - 1, int(memory["by"] != "criterion"))
            memory.update(reference=None, since=wait - wait_again)
            if kept:
                memory["since"] += 1
                return Restore(then=Train(rate=linear_decay(report, cooldown))), memory
            pending = False
        memory["proposed"] |= pending
        due = memory["since"] >= (refit if pending else wait)
        if due and not pending and not memory["proposed"]:
            young = 2 * report.epoch < report.num_epochs and len(report.losses) >= 2 * _WINDOW
            due = self.wait is not None or not young or _has_settled(report.losses)
        if not due and not cooling:
            memory["since"] += 1
            return Train(rate=linear_decay(report, cooldown)), memory
        # With the masks' cost or without: from dense to half of it, that cost rises and hides a gain.
        allowed = max(0.0, memory["cost"] - report.mask_cost)
        limit = math.inf
        if pending:
            limit = max(memory["reference"] + allowed, memory["lowest"] + self.tolerance)
        vfe = measure(limit, *lowest())
        if pending and not vfe <= limit:
            memory["fraction"] /= 2
            if cooling:
                return finish(restore=True)
            if memory["by"] == "single" or memory["fraction"] < self.min_fraction:
                return next_pass(restore=True)
            return Restore(then=propose()), memory
        if cooling:
            return finish(restore=False, vfe=vfe)
        refer_to(vfe)
        return propose(vfe), memory


def _has_settled(losses: list[float]) -> bool:
    """Return whether a fit has all but stopped to improve."""
    if len(losses) < 2 * _WINDOW:
        return False
    recent = sum(losses[-_WINDOW:]) / _WINDOW
    before = sum(losses[-2 * _WINDOW : -_WINDOW]) / _WINDOW
    return not before - recent > _PART * (max(losses) - recent)

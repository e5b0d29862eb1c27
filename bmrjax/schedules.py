"""When to reduce, how much at once, and whether to take it back.

A schedule is asked once before every epoch. It sees how the fit went and answers with an `Action`.
Its own memory is a dict of JSON values, so a run can stop and go on. All host-side: nothing here
is traced.
"""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.criteria import Decision
from bmrjax.criteria.base import Sites

Memory = dict[str, Any]


class Order(Protocol):
    """Which of the elements that a criterion would remove go first when a round is capped."""

    def __call__(self, posterior: Sites, decision: Decision) -> Mapping[str, Array]:
        """Return a non-negative score an element, a site; the smallest go first."""
        ...


def smallest_snr_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the signal-to-noise ratio ``|loc| / scale`` of the posterior."""
    del decision
    return {name: jnp.abs(q.loc) / q.scale for name, q in posterior.items()}


def smallest_magnitude_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by ``|loc|`` in units of the site: what a removal moves in the function.

    Under `priors.Flat` the site holds the standardised weight, so layers compare.
    """
    del decision
    return {name: jnp.abs(q.loc) for name, q in posterior.items()}


def largest_delta_f_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the evidence that a removal is predicted to gain.

    This takes precisely known small weights first, which act together; the other orders end
    sparser.
    """
    del posterior
    return {name: jnp.exp(-jnp.maximum(df, -80.0) / 16.0) for name, df in decision.delta_f.items()}


@dataclass(frozen=True)
class Report:
    """What a schedule sees before an epoch.

    Attributes:
        epoch: Epochs done so far, those that were taken back included.
        num_epochs: Epochs of the whole run.
        losses: Mean VFE of each epoch so far, in nats (epochs taken back are not in it).
        removed: How many elements the last reduction removed; None before the first.
        measure: Measures the VFE of the current state on the training data, in nats.
        mask_cost: Minus the log prior probability of the current masks, in nats; zero unless the
            schedule's `mask_prior` is set.
    """

    epoch: int
    num_epochs: int
    losses: list[float]
    removed: int | None
    measure: Callable[[], float]
    mask_cost: float = 0.0


@dataclass(frozen=True)
class Action:
    """What to do before the next epoch.

    Attributes:
        restore: Go back to the state before the last reduction.
        reduce: Reduce, after restoring.
        fraction: Remove at most this fraction of what is kept; 1 is no cap.
        rate: Factor on the learning rate of the next epoch.
        stop: End the run here.
        vfe: The VFE of the current state, where it was measured.
    """

    restore: bool = False
    reduce: bool = False
    fraction: float = 1.0
    rate: float = 1.0
    stop: bool = False
    vfe: float | None = None


class Schedule(abc.ABC):
    """Decide before each epoch whether to reduce.

    Attributes:
        order: Which candidates go first when a round is capped.
        verifies: Whether rounds can be taken back, so that the loop keeps a state to return to.
        mask_prior: Whether what the masks themselves cost under the criterion's prior is counted.
    """

    order: Order = staticmethod(smallest_snr_first)
    verifies: bool = False
    mask_prior: bool = False

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


def _linear_decay(report: Report, cooldown: int) -> float:
    """Return 1 until the last `cooldown` epochs, then fall linearly towards zero."""
    left = report.num_epochs - report.epoch
    return 1.0 if left > cooldown else left / (cooldown + 1)


def _check(schedule: Schedule, **at_least: int) -> None:
    for name, least in at_least.items():
        if getattr(schedule, name) < least:
            raise ValueError(
                f"{type(schedule).__name__}: {name} must be at least {least}, "
                f"got {getattr(schedule, name)}."
            )


def _check_fraction(schedule: Schedule, name: str) -> None:
    if not 0 < getattr(schedule, name) <= 1:
        raise ValueError(
            f"{type(schedule).__name__}: {name} must be in (0, 1], got {getattr(schedule, name)}."
        )


@dataclass(frozen=True)
class Every(Schedule):
    """Reduce every `every` epochs once `wait` epochs are done; nothing is taken back.

    The defaults are the published schedule: at the start of every epoch but the first. It goes
    past the optimum of the VFE; see `Verified`.

    Args:
        every: Epochs between reductions.
        wait: Epochs before the first reduction.
        fraction: Cap on what a round may remove, as a fraction of what is kept.
        cooldown: Last epochs without reductions, over which the learning rate falls to zero.
        order: Who goes first under the cap.

    References:
        Marković, Friston and Kiebel (2024), Algorithm 1.
    """

    every: int = 1
    wait: int = 1
    fraction: float = 1.0
    cooldown: int = 0
    order: Order = smallest_snr_first

    def __post_init__(self) -> None:
        _check(self, every=1, wait=0, cooldown=0)
        _check_fraction(self, "fraction")

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        since = report.epoch - self.wait
        cooling = report.num_epochs - report.epoch <= self.cooldown
        reduce = since >= 0 and since % self.every == 0 and not cooling
        rate = _linear_decay(report, self.cooldown)
        return Action(reduce=reduce, fraction=self.fraction, rate=rate), memory


@dataclass(frozen=True)
class WhenConverged(Schedule):
    """Reduce when the VFE has stopped falling; stop when a reduction removes nothing.

    The VFE of an epoch is the mean over its steps. It has converged when the mean over the last
    `window` epochs is less than `tolerance` below the mean over the `window` before them,
    relative to its size.

    Args:
        tolerance: Relative fall under which the fit counts as converged.
        window: Epochs averaged on either side; also the least number between reductions, halved.
        fraction: Cap on what a round may remove.
        cooldown: Last epochs without reductions, over which the learning rate falls to zero.
        order: Who goes first under the cap.

    References:
        Beckers et al. (2024), Algorithm 1: train to convergence, reduce, repeat.
    """

    tolerance: float = 1e-2
    window: int = 3
    fraction: float = 1.0
    cooldown: int = 0
    order: Order = smallest_snr_first

    def __post_init__(self) -> None:
        _check(self, window=1, cooldown=0)
        _check_fraction(self, "fraction")

    def init(self) -> Memory:
        """See `Schedule`."""
        return {"start": 0, "reduced": False}

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        rate = _linear_decay(report, self.cooldown)
        if memory["reduced"] and report.removed == 0 and not self.cooldown:
            return Action(stop=True), memory
        losses = report.losses[memory["start"] :]
        if len(losses) < 2 * self.window or rate < 1.0:
            return Action(rate=rate), memory
        recent = sum(losses[-self.window :]) / self.window
        before = sum(losses[-2 * self.window : -self.window]) / self.window
        if before - recent > self.tolerance * abs(before):
            return Action(rate=rate), memory
        memory = {"start": len(report.losses), "reduced": True}
        return Action(reduce=True, fraction=self.fraction, rate=rate), memory


@dataclass(frozen=True)
class Verified(Schedule):
    """Propose a capped round, re-fit, measure the actual VFE; keep the round only if it fell.

    The predicted evidence difference treats removals as independent, which a mean-field posterior
    cannot judge; so the actual VFE decides. A round that raised it is taken back, and the cap is
    halved. When the cap is spent, reducing is over.

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
                _check(self, **{name: least})
        _check_fraction(self, "fraction")
        _check_fraction(self, "min_fraction")

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
            "over": False,
        }

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        wait, refit, cooldown = self.lengths(report.num_epochs)
        memory = dict(memory)
        rate = _linear_decay(report, cooldown)
        cooling = report.num_epochs - report.epoch <= cooldown
        pending = memory["reference"] is not None

        def finish(*, restore: bool, vfe: float | None = None) -> tuple[Action, Memory]:
            memory["over"] = True
            return Action(restore=restore, rate=rate, stop=not cooldown, vfe=vfe), memory

        if memory["over"]:
            return Action(rate=rate), memory
        if pending and report.removed == 0:
            # Nothing was left to remove: what the criterion still includes, stays.
            return finish(restore=False)
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

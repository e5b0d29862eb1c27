"""Reduce when the fit has stopped improving."""

from dataclasses import dataclass

from bmrjax.criteria.order import Order, smallest_snr_first
from bmrjax.schedules.actions import Action, Reduce, Stop, Train
from bmrjax.schedules.base import (
    Memory,
    Report,
    Schedule,
    check_at_least,
    check_fraction,
    linear_decay,
)


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
        order: Which elements are removed first under the cap.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> result = bmr.sparsify(
        ...     program, (x, 2.0 * x[:, 0]), key=jax.random.key(1), num_epochs=30, batch_size=None,
        ...     steps_per_epoch=100, schedule=bmr.schedules.WhenConverged(window=2), progress=False,
        ... )
        >>> result.num_kept, len(result.history) < 30
        (1, True)

    References:
        Beckers et al. (2024), Algorithm 1: train to convergence, reduce, repeat.
    """

    tolerance: float = 1e-2
    window: int = 3
    fraction: float = 1.0
    cooldown: int = 0
    order: Order = smallest_snr_first

    def __post_init__(self) -> None:
        check_at_least(self, window=1, cooldown=0)
        check_fraction(self, "fraction")

    def init(self) -> Memory:
        """See `Schedule`."""
        return {"start": 0, "reduced": False}

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        rate = linear_decay(report, self.cooldown)
        if memory["reduced"] and report.removed == 0 and not self.cooldown:
            return Stop(), memory
        # While the divergence comes in, the loss is another one in every epoch.
        losses = report.losses[max(memory["start"], report.warmup) :]
        if len(losses) < 2 * self.window or rate < 1.0:
            return Train(rate=rate), memory
        recent = sum(losses[-self.window :]) / self.window
        before = sum(losses[-2 * self.window : -self.window]) / self.window
        if before - recent > self.tolerance * abs(before):
            return Train(rate=rate), memory
        memory = {"start": len(report.losses), "reduced": True}
        return Reduce(fraction=self.fraction, rate=rate), memory

"""Reduce every few epochs."""

from dataclasses import dataclass

from bmrjax.criteria.order import Order, smallest_snr_first
from bmrjax.schedules.actions import Action, Reduce, Train
from bmrjax.schedules.base import (
    Memory,
    Report,
    Schedule,
    check_at_least,
    check_fraction,
    linear_decay,
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
        order: Which elements are removed first under the cap.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> result = bmr.sparsify(
        ...     program, (x, 2.0 * x[:, 0]), key=jax.random.key(1), num_epochs=8, batch_size=None,
        ...     steps_per_epoch=100, schedule=bmr.schedules.Every(2, wait=4), progress=False,
        ... )
        >>> [row["kept"] for row in result.history]
        [3, 3, 3, 3, 1, 1, 1, 1]

    References:
        Marković, Friston and Kiebel (2024), Algorithm 1.
    """

    every: int = 1
    wait: int = 1
    fraction: float = 1.0
    cooldown: int = 0
    order: Order = smallest_snr_first

    def __post_init__(self) -> None:
        check_at_least(self, every=1, wait=0, cooldown=0)
        check_fraction(self, "fraction")

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        since = report.epoch - self.wait
        cooling = report.num_epochs - report.epoch <= self.cooldown
        rate = linear_decay(report, self.cooldown)
        if since >= 0 and since % self.every == 0 and not cooling:
            return Reduce(fraction=self.fraction, rate=rate), memory
        return Train(rate=rate), memory

"""Train to convergence, reduce, repeat."""

from dataclasses import dataclass, replace

from bmrjax.convergence import Settled
from bmrjax.criteria.order import Order, smallest_snr_first
from bmrjax.schedules.actions import Action, Reduce, Regrow, Restore, Stop, Train
from bmrjax.schedules.base import (
    Memory,
    Report,
    Schedule,
    check_at_least,
    check_fraction,
)


@dataclass(frozen=True)
class Iterative(Schedule):
    """Train until the VFE has settled, reduce, and so on, until nothing is removed.

    An epoch ends where `until` says so, inside the compiled program; ``steps_per_epoch`` is the most that it
    may take. After the epochs of one training, one a learning rate, the VFE is measured; then comes
    the reduction, and the VFE is measured once more, so that the path has what each reduction did
    before anything was re-fitted. Once nothing is removed any more, rounds go further than is
    proposed: a large part of what is kept goes, and the round is taken back unless the VFE is lower
    after re-fitting. Weights that have to go together, as those of a unit, are found in this way. The result
    is the point with the lowest VFE.

    Args:
        until: When an epoch has converged.
        rates: Factors on the learning rate, one per epoch of a training.
        search: Whether the measured VFE says how far a reduction goes: all that the criterion
            proposes, or the part of it, by `order`, with the lowest VFE; and once it proposes nothing,
            more while that still lowers the VFE. Without, what the criterion proposes goes, as published.
        fraction: Part of what is kept that goes in the first round beyond what is proposed; 0 for no
            such rounds. A round that is taken back is followed by one of half the fraction. It is taken
            back after the first rate if the other rates would have to bring more than they ever did.
        min_fraction: These rounds are over when the fraction falls below this.
        regrowths: How often at most, once nothing more is removed, all that is gone comes back, is
            trained and reduced again. What then has the higher VFE is taken back, and the run ends.
        order: Which elements are removed first.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> settled = bmr.infer.Settled(window=100)
        >>> result = bmr.sparsify(
        ...     program, (x, 2.0 * x[:, 0]), key=jax.random.key(1), num_epochs=8, batch_size=None,
        ...     steps_per_epoch=1000, schedule=bmr.schedules.Iterative(settled), progress=False,
        ... )
        >>> result.num_kept, sum(row["steps"] for row in result.history) < 8000
        (1, True)

    References:
        Beckers et al. (2024), Algorithm 1, which has neither the search nor the rounds beyond; section
        7 for regrowth.
    """

    until: Settled = Settled()  # noqa: RUF009 - frozen
    rates: tuple[float, ...] = (1.0, 0.1)
    search: bool = True
    fraction: float = 0.8
    min_fraction: float = 0.03
    regrowths: int = 0
    order: Order = smallest_snr_first
    measures = True

    def __post_init__(self) -> None:
        check_at_least(self, regrowths=0)
        check_fraction(self, "min_fraction")
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"Iterative: fraction must be in [0, 1], got {self.fraction}.")
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(
                f"Iterative: rates must be positive factors on the learning rate, got {self.rates}."
            )

    def init(self) -> Memory:
        """See `Schedule`."""
        return {
            "trained": 0,
            "regrowths": 0,
            "fraction": self.fraction,
            "before": None,
            "halfway": None,
            "gain": 0.0,
            "judging": None,
        }

    def __call__(self, report: Report, memory: Memory) -> tuple[Action, Memory]:
        """See `Schedule`."""
        memory = dict(memory)
        if memory["judging"] == "search":
            memory["judging"] = None
            if report.removed == 0:
                return self._try(memory, restore=False)
        if memory["judging"] == "removal" and report.removed == 0:
            memory["fraction"] = 0.0
            return self._try(memory, restore=True)
        if memory["trained"] < len(self.rates):
            if memory["trained"] == 1:
                vfe = report.measure()
                if memory["judging"] == "removal" and not vfe - memory["gain"] < memory["before"]:
                    return self._take_back(vfe, memory)
                memory["halfway"] = vfe
            memory["trained"] += 1
            return Train(rate=self.rates[memory["trained"] - 1]), memory
        memory["trained"] = 1
        if memory["judging"] == "regrown":
            memory["judging"] = "regrowth"
            return Reduce(rate=self.rates[0]), memory
        vfe = report.measure()
        if memory["halfway"] is not None:
            memory["gain"] = max(memory["gain"], memory["halfway"] - vfe)
        if memory["judging"] is not None:
            if not vfe < memory["before"]:
                return self._take_back(vfe, memory)
            if memory["judging"] == "removal":
                memory["before"] = vfe
                return self._try(memory, restore=False, vfe=vfe)
            memory["fraction"] = self.fraction
        elif not self.search and report.removed == 0:
            memory["before"] = vfe
            return self._try(memory, restore=False, vfe=vfe)
        memory.update(before=vfe, judging="search" if self.search else None)
        by = "search" if self.search else "criterion"
        return Reduce(by=by, vfe=vfe, rate=self.rates[0]), memory

    def _take_back(self, vfe: float, memory: Memory) -> tuple[Action, Memory]:
        if memory["judging"] == "regrowth":
            return Restore(then=Stop(), vfe=vfe), memory
        memory["fraction"] /= 2
        return self._try(memory, restore=True, vfe=vfe)

    def _try(
        self, memory: Memory, *, restore: bool, vfe: float | None = None
    ) -> tuple[Action, Memory]:
        """Remove more than was proposed, or let all come back, or stop."""
        if memory["fraction"] >= self.min_fraction:
            memory["judging"] = "removal"
            then = Reduce(by="beyond", fraction=memory["fraction"], rate=self.rates[0])
        elif memory["regrowths"] == self.regrowths:
            then = Stop()
        else:
            memory.update(regrowths=memory["regrowths"] + 1, judging="regrown")
            then = Regrow(rate=self.rates[0])
        return Restore(then=then, vfe=vfe) if restore else replace(then, vfe=vfe), memory

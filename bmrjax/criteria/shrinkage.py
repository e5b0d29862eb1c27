"""Reduction to a prior that is narrow around zero."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.criteria.base import Criterion, Decision, Masks, masks, require
from bmrjax.criteria.groups import Groups
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import Normal, delta_f_under


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shrinkage(Criterion):
    r"""Remove what the evidence does not miss when its prior shrinks to N(0, ε).

    .. math:: ΔF_i = \ln \tilde p(D) - \ln p(D) ≈ \ln E_q[N(z_i; 0, ε) / p(z_i)]

    in nats, for any normal or Laplace prior; an element is removed where ΔF ≥ 0, so also
    where the data say nothing of it and ΔF = 0. There is no threshold to choose. What a round removes stays
    removed.

    With `groups`, the elements of a group stay or go together, by the sum of their ΔF.

    Args:
        variance: ε ≥ 0; zero is a point mass. Safe in float32 down to 1e-16 and below.
        groups: Which elements go together; by default each one is on its own.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.01, 3.0]), jnp.array([0.1, 0.1]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.Shrinkage()
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Beckers et al. (2024), equations 18 and 19, whose rule ΔF ≤ 0 has the opposite sign; Friston,
        Parr and Zeidman (2019), arXiv:1805.07092.
    """

    variance: float | Float[Array, ""] = 1e-16
    groups: Groups | None = None

    def __post_init__(self) -> None:
        require(self, "variance", lambda value: value >= 0, "at least 0")

    @property
    def may_go_beyond(self) -> bool:
        """Only where each element is on its own."""
        return self.groups is None

    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`. The `delta_f` of an element is its own, not its group's."""
        kept = masks(found, keep)
        delta_f = {}
        for name, q in found.posterior.items():
            scale = jnp.sqrt(jnp.asarray(self.variance, q.loc.dtype))
            narrow = Normal(jnp.zeros_like(q.loc), jnp.broadcast_to(scale, q.loc.shape))
            delta_f[name] = delta_f_under(found.prior[name], q, narrow)
        if self.groups is None:
            stays = {name: kept[name] & ~(df >= 0) for name, df in delta_f.items()}
            return Decision(stays, delta_f)
        # Removed elements do not contribute to the score of the rest of their group.
        counted = {name: jnp.where(kept[name], df, 0.0) for name, df in delta_f.items()}
        together = self.groups.spread(~(self.groups.sum(counted) >= 0), delta_f)
        stays = {name: kept[name] & together[name] for name in delta_f}
        return Decision(stays, delta_f)

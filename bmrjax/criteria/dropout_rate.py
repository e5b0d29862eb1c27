"""Sparse variational dropout: what is nearly all noise is removed."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax import reduction
from bmrjax.criteria.base import Criterion, Decision, Masks, masks, require
from bmrjax.criteria.site_posteriors import SitePosteriors


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DropoutRate(Criterion):
    r"""Remove weights with a dropout rate b = σ² / (μ² + σ²) of `threshold` and more.

    The rule of sparse variational dropout, for posteriors under `priors.LogUniformPrior`. That prior has no
    evidence, so `delta_f` says something else here: minus the divergence of the weight's posterior from the
    prior, what the fit pays for it in nats. It is at most zero, and nearly that for removed elements.

    Args:
        threshold: Least b that is removed, between 0 and 1.

    Raises:
        ValueError: For a threshold outside (0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.2, -3.0]), jnp.array([1.0, 1.0]))}
        >>> p = {"w": reduction.ImproperLogUniform(jnp.ones(2))}
        >>> criterion = criteria.DropoutRate()
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Molchanov, Ashukha and Vetrov (2017), section 4.3; Federici, Ullrich and Welling (2017), Appendix B.1.
    """

    threshold: float | Float[Array, ""] = 0.95

    def __post_init__(self) -> None:
        require(self, "threshold", lambda value: (value > 0) & (value <= 1), "in (0, 1]")

    @property
    def may_go_beyond(self) -> bool:
        """No: the threshold is the user's."""
        return False

    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`."""
        kept = masks(found, keep)
        # |μ| / σ at the threshold, so that nothing is squared.
        least = jnp.sqrt((1.0 - self.threshold) / self.threshold)
        stays = {
            name: kept[name] & (jnp.abs(q.loc) > least * q.scale)
            for name, q in found.posterior.items()
        }
        delta_f = {
            name: -reduction.log_uniform_divergence(q) for name, q in found.posterior.items()
        }
        return Decision(stays, delta_f)

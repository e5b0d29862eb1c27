"""Keep what a fitted spike-and-slab posterior includes."""

from dataclasses import dataclass
from typing import Any

import jax

from bmrjax import reduction
from bmrjax.criteria.base import Criterion, Decision, Masks, masks
from bmrjax.criteria.site_posteriors import SitePosteriors


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inclusion(Criterion):
    """Keep the elements with q(λ = 1) ≥ ½: the median probability model.

    For sites of `priors.SpikeAndSlabPrior` that were fitted directly, with indicators of their own. What
    a round removes stays removed.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.ZeroOrNormal(jnp.zeros(2), jnp.ones(2), jnp.array([-1.0, 3.0]))}
        >>> p = {"w": reduction.ZeroOrNormal(jnp.zeros(2), jnp.ones(2), jnp.zeros(2))}
        >>> criterion = criteria.Inclusion()
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Barbieri and Berger (2004).
    """

    family = reduction.ZeroOrNormal

    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`."""
        kept = masks(found, keep)
        delta_f = {
            name: reduction.delta_f_each(q, found.prior[name])
            for name, q in found.posterior.items()
        }
        stays = {
            name: kept[name] & (q.inclusion_prob >= 0.5) for name, q in found.posterior.items()
        }
        return Decision(stays, delta_f)

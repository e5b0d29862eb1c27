"""Keep what a fitted spike-and-slab posterior includes."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from bmrjax import reduction
from bmrjax.criteria.base import Decision, MaskCriterion, MaskState, Sites


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inclusion(MaskCriterion):
    """Keep the elements with q(λ = 1) ≥ ½: the median probability model.

    For sites of `priors.SpikeAndSlab` that were fitted directly, with indicators of their own. What
    a round removes stays removed.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.SpikeAndSlab(jnp.zeros(2), jnp.ones(2), jnp.array([-1.0, 3.0]))}
        >>> p = {"w": reduction.SpikeAndSlab(jnp.zeros(2), jnp.ones(2), jnp.zeros(2))}
        >>> criterion = criteria.Inclusion()
        >>> criterion(q, p, criterion.init(q)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Barbieri and Berger (2004).
    """

    family = reduction.SpikeAndSlab

    def __call__(
        self,
        posterior: Sites,
        prior: Sites,
        state: MaskState,
        *,
        layers: Mapping[str, str] | None = None,
    ) -> Decision:
        """Reduce once; see `Criterion`."""
        delta_f = {name: reduction.delta_f_each(q, prior[name]) for name, q in posterior.items()}
        keep = {name: state.keep[name] & (q.inclusion_prob >= 0.5) for name, q in posterior.items()}
        return Decision(keep, delta_f, MaskState(keep))

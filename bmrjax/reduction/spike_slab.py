"""Bayesian model reduction for spike-and-slab posteriors and priors."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, sigmoid
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpikeAndSlab:
    """Independent variables that are zero or normal.

    Attributes:
        loc: Means of the slabs, any shape.
        scale: Standard deviations of the slabs, broadcastable with `loc`.
        logits: Log odds of the slab against the spike, broadcastable with `loc`.
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]
    logits: Float[Array, "..."]

    @property
    def inclusion_prob(self) -> Float[Array, "..."]:
        """Probability of the slab, broadcastable with `loc`."""
        return sigmoid(self.logits)


def exclude(posterior: SpikeAndSlab, prior: SpikeAndSlab) -> Float[Array, "..."]:
    r"""Compute the evidence difference of removing each variable.

    The Savage-Dickey ratio at the point mass: the posterior probability of the spike over the
    prior one,

    .. math:: ΔF = \ln q(λ = 0) - \ln p(λ = 0),

    in nats, an element at a time. Positive favours removal. Exact when the posterior is the exact
    one; at most −ln p(λ = 0), since a model that includes the variable contains the one without.

    Args:
        posterior: The fitted posterior, any shape.
        prior: Its prior; broadcasts.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.SpikeAndSlab(jnp.zeros(2), jnp.ones(2), jnp.array([-5.0, 5.0]))
        >>> p = reduction.SpikeAndSlab(jnp.zeros(2), jnp.ones(2), jnp.zeros(2))
        >>> reduction.exclude(q, p).round(1)
        Array([ 0.7, -4.3], dtype=float32)

    References:
        Dickey (1971); Mitchell and Beauchamp (1988) for the prior.
    """
    delta_f = log_sigmoid(-posterior.logits) - log_sigmoid(-prior.logits)
    return jnp.broadcast_to(delta_f, jnp.broadcast_shapes(delta_f.shape, posterior.loc.shape))

"""Bayesian model reduction for spike-and-slab posteriors and priors."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, sigmoid
from jaxtyping import Array, Float

from bmrjax.reduction import removal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ZeroOrNormal:
    """Independent variables that are zero or normal.

    Attributes:
        loc: Means of the slabs, any shape.
        scale: Standard deviations of the slabs, broadcastable with `loc`.
        logits: Log odds of the slab against the spike, broadcastable with `loc`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.ZeroOrNormal(
        ...     loc=jnp.array([0.1, 2.0]), scale=jnp.array([0.5, 0.5]), logits=jnp.array([-3.0, 6.0])
        ... )
        >>> q.inclusion_prob.round(3), q.snr
        (Array([0.047, 0.998], dtype=float32), Array([0.2, 4. ], dtype=float32))
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]
    logits: Float[Array, "..."]

    @property
    def inclusion_prob(self) -> Float[Array, "..."]:
        """Probability of the slab, broadcastable with `loc`."""
        return sigmoid(self.logits)

    @property
    def standard_deviation(self) -> Float[Array, "..."]:
        """Standard deviation of the slab."""
        return self.scale

    @property
    def magnitude(self) -> Float[Array, "..."]:
        """Size of the slab's mean."""
        return jnp.abs(self.loc)

    @property
    def snr(self) -> Float[Array, "..."]:
        """Signal-to-noise ratio of the slab."""
        return jnp.abs(self.loc) / self.scale


@removal.delta_f_each.register(ZeroOrNormal)
def delta_f_each(posterior: ZeroOrNormal, prior: ZeroOrNormal) -> Float[Array, "..."]:
    r"""See `bmrjax.reduction.delta_f_each`: the posterior probability of the spike over the prior's.

    .. math:: ΔF = \ln q(λ = 0) - \ln p(λ = 0)

    At most −ln p(λ = 0), since a model that includes the variable contains the one without.

    References:
        Dickey (1971); Mitchell and Beauchamp (1988) for the prior.
    """
    delta_f = log_sigmoid(-posterior.logits) - log_sigmoid(-prior.logits)
    return jnp.broadcast_to(delta_f, jnp.broadcast_shapes(delta_f.shape, posterior.loc.shape))

"""Normals with one learned scale per layer."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jaxtyping import Array, Float

from bmrjax.priors.base import Prior, require_positive, standard_normal
from bmrjax.priors.layer import Layer


@dataclass(frozen=True)
class Flat(Prior):
    r"""Normals with one learned scale per layer: the prior that stochastic BMR starts from.

    .. math:: w = γ_0 c_l \hat w, \quad c_l^{-2} \sim Γ(2, 2), \quad \hat w \sim N(0, 1)

    Sites: each tensor's site holds ŵ, and ``<layer>.precision`` holds c_l⁻². The tensors of a
    layer share its scale.

    Args:
        scale: γ_0, the prior standard deviation of a weight at c_l = 1.
        concentration: Shape of the Gamma prior of c_l⁻².
        rate: Rate of the Gamma prior of c_l⁻².

    Example:
        >>> import jax, numpyro
        >>> from bmrjax import priors
        >>> def program():
        ...     return priors.Flat().sample("beta", (3,))
        >>> list(numpyro.handlers.trace(numpyro.handlers.seed(program, jax.random.key(0))).get_trace())
        ['beta.precision', 'beta']

    References:
        Marković, Friston and Kiebel (2024), equations 7 and 8.
    """

    scale: float = 0.1
    concentration: float = 2.0
    rate: float = 2.0

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale, concentration=self.concentration, rate=self.rate)

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        precision = jnp.asarray(
            numpyro.sample(
                layer.site("precision"),
                dist.Gamma(self.concentration, self.rate),
                infer={"init": 1.0},
            )
        )
        scale = self.scale * lax.rsqrt(precision)
        return {
            part: tensor.over_all(scale) * standard_normal(layer, part, tensor, self.scale)
            for part, tensor in layer.tensors.items()
        }

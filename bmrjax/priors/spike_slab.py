"""The hierarchical spike-and-slab prior."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from bmrjax.distributions import DiscreteSpikeAndSlab as SpikeAndSlabDistribution
from bmrjax.priors.base import Prior, require_positive
from bmrjax.priors.layer import Layer


@dataclass(frozen=True)
class SpikeAndSlabPrior(Prior):
    r"""Weights that are zero, or normal, with a learned share of each in every layer.

    .. math::

        w = γ_0 λ \hat w, \quad \hat w \sim N(0, 1), \quad
        λ \sim \mathrm{Bernoulli}(π_l), \quad π_l \sim \mathrm{Beta}(α, β)

    Fit it directly with `infer.AutoMeanField` (which `sparsify` takes by default for a program
    with this prior) and `criteria.Inclusion`; or assume it in stochastic BMR, where the
    indicators never enter the fit: `criteria.SpikeAndSlab(prior.alpha, prior.beta)`. MCMC cannot
    sample the indicators, and other automatic guides know nothing of them: both refuse. Use
    `RegularizedHorseshoe` there. Of NumPyro's losses, only `TraceMeanField_ELBO` fits it.

    Sites: each tensor's site holds λ ŵ, exactly zero where λ = 0, and ``<layer>.inclusion``
    holds π_l.

    Args:
        scale: γ_0, the standard deviation of the slab.
        alpha: Prior count of included elements.
        beta: Prior count of excluded elements.

    Example:
        >>> import jax, numpyro
        >>> from bmrjax import priors
        >>> with numpyro.handlers.seed(rng_seed=jax.random.key(0)):
        ...     priors.SpikeAndSlabPrior(beta=9.0).sample("beta", (3,)).shape
        (3,)

    References:
        Mitchell and Beauchamp (1988); George and McCulloch (1993); Marković, Friston and Kiebel
        (2024), section II-E.
    """

    scale: float = 1.0
    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale, alpha=self.alpha, beta=self.beta)

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        share = jnp.asarray(
            numpyro.sample(layer.site("inclusion"), dist.Beta(self.alpha, self.beta))
        )
        logits = jnp.log(share) - jnp.log1p(-share)
        values = {}
        for part, tensor in layer.tensors.items():
            infer: dict = {"layer": layer.name}
            if tensor.init is not None:
                infer["init"] = tensor.init / self.scale
            unit = SpikeAndSlabDistribution(0.0, 1.0, tensor.over_all(logits))
            unit = unit.expand((*jnp.shape(logits), *tensor.shape))
            drawn = numpyro.sample(layer.site(part), unit.to_event(len(tensor.shape)), infer=infer)
            values[part] = self.scale * jnp.asarray(drawn)
        return values

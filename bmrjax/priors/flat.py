"""Normals with one learned scale per layer."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float

from bmrjax.priors.base import Prior, require_positive, standard_normal
from bmrjax.priors.layer import Layer

# Standard deviation that the posterior of a weight starts with, in units of its prior. That of ŵ starts with
# the same, by the default of `infer.AutoMeanField`.
_START = 0.1


@dataclass(frozen=True)
class Flat(Prior):
    r"""Normals with one learned scale per layer: the prior that stochastic BMR starts from.

    .. math:: w = γ_0 c_l \hat w, \quad c_l^{-2} \sim Γ(2, 2), \quad \hat w \sim N(0, 1)

    Sites: each tensor's site holds ŵ, and ``<layer>.precision`` holds c_l⁻². The tensors of a
    layer share its scale.

    With ``collapsed=True`` it is the same prior of the weights in another form: each tensor's site holds the
    weights w themselves, and ``<layer>.weight_precision`` holds c_l⁻², whose posterior `infer.AutoMeanField`
    computes from those of the weights at every step (`families.CollapsedForm`). It is not learned, so it is
    right at once, and does not have to move together with all weights of its layer. Learning rates are then
    in units of the weights, and so is the order in which a capped round removes them
    (`criteria.smallest_magnitude_first`). Guides with correlations learn the scale. `reduce_fit` takes
    fits of the other form only.

    Args:
        scale: γ_0, the prior standard deviation of a weight at c_l = 1.
        concentration: Shape of the Gamma prior of c_l⁻².
        rate: Rate of the Gamma prior of c_l⁻².
        collapsed: Whether the scale is integrated out.

    Example:
        >>> import jax, numpyro
        >>> from bmrjax import priors
        >>> def program(prior):
        ...     return prior.sample("beta", (3,))
        >>> def names(prior):
        ...     with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        ...         program(prior)
        ...     return list(trace)
        >>> names(priors.Flat()), names(priors.Flat(collapsed=True))
        (['beta.precision', 'beta'], ['beta.weight_precision', 'beta'])

    References:
        Marković, Friston and Kiebel (2024), equations 7 and 8; Tomczak et al. (2021), collapsed bounds.
    """

    scale: float = 0.1
    concentration: float = 2.0
    rate: float = 2.0
    collapsed: bool = False

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale, concentration=self.concentration, rate=self.rate)
        numbers = (self.scale, self.concentration, self.rate)
        if self.collapsed and any(isinstance(number, Tracer) for number in numbers):
            raise ValueError(
                "Flat: with collapsed=True, scale, concentration and rate must be numbers, not "
                "hyperparameters of a program. Give numbers, or collapsed=False."
            )

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        if self.collapsed:
            return self._weights(layer)
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

    def _weights(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        name = layer.site("weight_precision")
        infer: dict[str, Any] = {
            "init": 1.0,
            "posterior": "collapsed",
            "scales": {layer.site(part): self.scale for part in layer.tensors},
            "name": name,
        }
        precision = numpyro.sample(name, dist.Gamma(self.concentration, self.rate), infer=infer)
        scale = self.scale * lax.rsqrt(jnp.asarray(precision))
        found = {}
        for part, tensor in layer.tensors.items():
            infer = {"layer": layer.name, "init_scale": _START * self.scale}
            if tensor.init is not None:
                infer["init"] = tensor.init
            prior = dist.Normal(0.0, tensor.over_all(scale))
            fn = prior.expand((*scale.shape, *tensor.shape)).to_event(len(tensor.shape))
            found[part] = jnp.asarray(numpyro.sample(layer.site(part), fn, infer=infer))
        return found

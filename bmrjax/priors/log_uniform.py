"""The prior of sparse variational dropout."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float

from bmrjax.distributions import ImproperReciprocal
from bmrjax.priors.base import Prior
from bmrjax.priors.layer import Layer


@dataclass(frozen=True)
class LogUniformPrior(Prior):
    """The improper prior p(w) ∝ 1/``|w|`` of sparse variational dropout, for posteriors of normals.

    Under it a weight that the data do not need becomes noise, with a standard deviation above its mean;
    `criteria.DropoutRate` removes those. The divergence acts at once and strongly: start from a trained
    network with a narrow posterior, ``infer.AutoMeanField(program, init_scale=math.exp(-5))``, or from
    scratch with that and ``FitOptions(kl_warmup=...)``. ``estimator="local"`` is the published one.

    Sites: the tensors themselves, in the network's own unit.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> from bmrjax import priors
        >>> def program():
        ...     return priors.LogUniformPrior().sample("beta", (3,))
        >>> numpyro.handlers.substitute(program, {"beta": jnp.ones(3)})()
        Array([1., 1., 1.], dtype=float32)

    References:
        Kingma, Salimans and Welling (2015); Molchanov, Ashukha and Vetrov (2017).
    """

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        values = {}
        for part, tensor in layer.tensors.items():
            init = jnp.zeros(tensor.shape) if tensor.init is None else tensor.init
            prior = ImproperReciprocal(tensor.shape).to_event(len(tensor.shape))
            infer = {"layer": layer.name, "init": init}
            values[part] = jnp.asarray(numpyro.sample(layer.site(part), prior, infer=infer))
        return values

"""Independent normals of a fixed scale."""

from dataclasses import dataclass

import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from bmrjax.priors.base import Prior, require_positive
from bmrjax.priors.layer import Layer


@dataclass(frozen=True)
class NormalPrior(Prior):
    """Independent normals with a fixed standard deviation, w ~ N(0, scale²).

    Args:
        scale: Standard deviation of every element.

    Example:
        >>> import jax, numpyro
        >>> from bmrjax import priors
        >>> with numpyro.handlers.seed(rng_seed=jax.random.key(0)):
        ...     priors.NormalPrior(0.1).sample("beta", (3,)).shape
        (3,)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale)

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`. Sites: the tensors themselves."""
        values = {}
        for part, tensor in layer.tensors.items():
            infer: dict = {"layer": layer.name}
            if tensor.init is not None:
                infer["init"] = tensor.init
            prior = dist.Normal(0.0, self.scale).expand(tensor.shape).to_event(len(tensor.shape))
            values[part] = numpyro.sample(layer.site(part), prior, infer=infer)
        return values

"""Priors as NumPyro sub-programs: each draws the tensors of one layer.

A prior is an object with one method to write, `layer`. It may sample what it likes (scales,
indicators) beside the tensors, under names from `Layer.site`, and returns the tensors. A site that
a criterion may reduce is a normal one; ``infer={"layer": layer.name}`` makes it share the
statistics of its layer, and ``infer={"init": value}`` says where a fit starts, and
``infer={"init_scale": value}`` with which standard deviation under `infer.AutoMeanField`.
"""

import abc
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, Float

from bmrjax.priors.layer import Layer, Tensor


def require_positive(prior: object, **values: float) -> None:
    """Raise ValueError, naming the prior and the number, for one that is not positive.

    A traced number, such as a `hyperparameter`, has no value yet, and passes.
    """
    for name, value in values.items():
        if not isinstance(value, Tracer) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"{type(prior).__name__}: {name} must be positive, got {value}.")


def standard_normal(
    layer: Layer, part: str, tensor: Tensor, unit: float | Float[Array, "..."]
) -> Float[Array, "..."]:
    """Sample a tensor of independent N(0, 1), started where `unit` times it is the network's."""
    infer: dict = {"layer": layer.name}
    if tensor.init is not None:
        infer["init"] = tensor.init / unit
    unit_normal = dist.Normal(0.0, 1.0).expand(tensor.shape).to_event(len(tensor.shape))
    return jnp.asarray(numpyro.sample(layer.site(part), unit_normal, infer=infer))


class Prior(abc.ABC):
    """A prior over the tensors of a layer.

    Example:
        A prior of one's own: Laplace weights, narrower the more inputs a layer has.

        >>> import jax, numpyro, numpyro.distributions as dist
        >>> from bmrjax import priors
        >>> class LaplacePrior(priors.Prior):
        ...     def layer(self, layer):
        ...         found = {}
        ...         for part, tensor in layer.tensors.items():
        ...             each = dist.Laplace(0.0, tensor.fan_in**-0.5).expand(tensor.shape)
        ...             found[part] = numpyro.sample(layer.site(part), each.to_event(len(tensor.shape)))
        ...         return found
        >>> with numpyro.handlers.seed(rng_seed=0):
        ...     LaplacePrior().sample("beta", (3,)).shape
        (3,)
    """

    def begin(self, name: str, layers: Sequence[Layer]) -> "Prior":
        """Sample what all layers share, before the first of them; runs inside a NumPyro program.

        Args:
            name: Of the network.
            layers: All that will be drawn.

        Returns:
            The prior that draws them: by default this one, as layers share nothing.
        """
        del name, layers
        return self

    @abc.abstractmethod
    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """Sample the tensors of `layer`; runs inside a NumPyro program.

        Args:
            layer: Names, shapes, fan-in and position.

        Returns:
            Tensor name to value, every tensor of the layer.
        """

    def sample(self, name: str, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Sample a plain array, such as the coefficients of a regression, under this prior.

        Args:
            name: The site's name.
            shape: The array's shape.

        Returns:
            The array; inside a NumPyro program.
        """
        tensor = Tensor(shape=tuple(shape), fan_in=shape[-1] if shape else 1)
        return self.layer(Layer(name=name, tensors={"value": tensor}, sites={"value": name}))[
            "value"
        ]

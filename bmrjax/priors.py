"""Priors as NumPyro sub-programs: each draws the tensors of one layer.

A prior is an object with one method to write, `layer`. It may sample what it likes (scales,
indicators) beside the tensors, under names from `Layer.site`, and returns the tensors. A site that
a criterion may reduce is a normal one; ``infer={"layer": layer.name}`` makes it share the
statistics of its layer, and ``infer={"init": value}`` says where a fit starts.
"""

import abc
from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jaxtyping import Array, Float

from bmrjax.layers import Layer, Tensor


def _require_positive(prior: object, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{type(prior).__name__}: {name} must be positive, got {value}.")


def _standard_normal(layer: Layer, part: str, tensor: Tensor, unit: float) -> Array:
    infer: dict = {"layer": layer.name}
    if tensor.init is not None:
        infer["init"] = tensor.init / unit
    unit_normal = dist.Normal(0.0, 1.0).expand(tensor.shape).to_event(len(tensor.shape))
    return jnp.asarray(numpyro.sample(layer.site(part), unit_normal, infer=infer))


class Prior(abc.ABC):
    """A prior over the tensors of a layer."""

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


@dataclass(frozen=True)
class Normal(Prior):
    """Independent normals with a fixed standard deviation, w ~ N(0, scale²).

    Args:
        scale: Standard deviation of every element.

    Example:
        >>> import jax, numpyro
        >>> from bmrjax import priors
        >>> with numpyro.handlers.seed(rng_seed=jax.random.key(0)):
        ...     priors.Normal(0.1).sample("beta", (3,)).shape
        (3,)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        _require_positive(self, scale=self.scale)

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


@dataclass(frozen=True)
class Flat(Prior):
    r"""Normals with one learned scale a layer: the prior that stochastic BMR starts from.

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
        _require_positive(self, scale=self.scale, concentration=self.concentration, rate=self.rate)

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        precision = numpyro.sample(
            layer.site("precision"),
            dist.Gamma(self.concentration, self.rate),
            infer={"init": 1.0},
        )
        scale = self.scale * lax.rsqrt(precision)
        return {
            part: scale * _standard_normal(layer, part, tensor, self.scale)
            for part, tensor in layer.tensors.items()
        }

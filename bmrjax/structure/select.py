"""A network that reads some of its inputs."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lazy_loader
import numpy as np
from jaxtyping import Array, Float, Int

_nnx_select: Any = lazy_loader.load(
    "bmrjax.structure.nnx_select", suppress_warning=True
)  # loads Flax


class SelectInputs(eqx.Module):
    """An Equinox network on some elements of its flattened input.

    Args:
        network: Takes as many features as there are indices.
        indices: Their positions in the flattened input.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(2, (3,), 1, key=jax.random.key(0))
        >>> bmr.structure.SelectInputs(network, jnp.array([0, 63]))(jnp.ones((8, 8))).shape
        (1,)
    """

    network: Any
    indices: Int[Array, " features"]

    def __init__(self, network: Any, indices: Any):
        self.network, self.indices = network, jnp.asarray(indices)

    def __call__(self, x: Float[Array, "..."], *args: Any, **kwargs: Any) -> Any:
        """Apply to one data point."""
        return self.network(x.ravel()[self.indices], *args, **kwargs)


def select_inputs(network: Any, indices: np.ndarray) -> Any:
    """Wrap a network so that it is given some elements of its flattened input.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, or a Flax NNX module.
        indices: Positions of the features that it takes.
    """
    if isinstance(network, tuple):
        return SelectInputs(network[0], indices), network[1]
    if isinstance(network, eqx.Module):
        return SelectInputs(network, indices)

    return _nnx_select.NNXSelectInputs(network, indices)

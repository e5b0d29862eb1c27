"""A Flax NNX network that reads some of its inputs."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


class NNXSelectInputs(nnx.Module):
    """A Flax NNX network on some features of its flattened input; see `SelectInputs`.

    Args:
        network: Takes as many features as there are indices.
        indices: Their positions in a flattened data point.
    """

    def __init__(self, network: nnx.Module, indices: Any):
        self.network = network
        self.indices = nnx.Variable(jnp.asarray(indices))

    def __call__(self, x: Float[Array, "batch ..."]) -> Any:
        """Apply to a batch."""
        network: Any = self.network
        return network(x.reshape(x.shape[0], -1)[:, self.indices[...]])

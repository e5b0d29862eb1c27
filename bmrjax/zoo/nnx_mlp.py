"""The multilayer perceptron, as a Flax NNX module."""

from collections.abc import Callable, Sequence

import jax
from flax import nnx
from jaxtyping import Array, Float


class NNXMLP(nnx.Module):
    """A fully connected network on flattened inputs; the network of `bmrjax.zoo.MLP` in Flax NNX.

    Args:
        in_size: Number of input features (the product of the input's shape).
        hidden: Width of each hidden layer.
        out_size: Number of outputs.
        activation: Applied after each hidden layer.
        dropout: Probability of dropping a hidden activation while training.
        rngs: Source of the initial weights and of dropout.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from bmrjax import zoo
        >>> network = zoo.NNXMLP(4, [16], 2, rngs=nnx.Rngs(0))
        >>> network(jnp.ones((5, 4))).shape
        (5, 2)
    """

    def __init__(
        self,
        in_size: int,
        hidden: Sequence[int],
        out_size: int,
        *,
        activation: Callable = jax.nn.swish,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        sizes = [in_size, *hidden, out_size]
        draw = jax.nn.initializers.variance_scaling(2.0, "fan_in", "normal")
        self.layers = nnx.List(
            [
                nnx.Linear(i, o, kernel_init=draw, rngs=rngs)
                for i, o in zip(sizes[:-1], sizes[1:], strict=True)
            ]
        )
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.activation = activation

    def __call__(self, x: Float[Array, "batch ..."]) -> Float[Array, "batch out_size"]:
        """Apply to a batch of data of any shape."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = self.dropout(self.activation(layer(x)))
        return self.layers[-1](x)

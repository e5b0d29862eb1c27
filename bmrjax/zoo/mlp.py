"""The multilayer perceptron."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float

from bmrjax.backend.random_keys import split_keys
from bmrjax.zoo.scaled_init import scaled


class MLP(eqx.Module):
    """A fully connected network on a flattened input.

    Args:
        in_size: Number of input features (the product of the input's shape).
        hidden: Width of each hidden layer.
        out_size: Number of outputs.
        activation: Applied after each hidden layer.
        dropout: Probability of dropping a hidden activation while training.
        key: Source of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import zoo
        >>> network = zoo.MLP(784, (300, 100), 10, key=jax.random.key(0))
        >>> [layer.weight.shape for layer in network.layers], network(jnp.ones((28, 28))).shape
        ([(300, 784), (100, 300), (10, 100)], (10,))

    References:
        Marković, Friston and Kiebel (2024), Appendix A: five hidden layers of 400, swish. Neklyudov et
        al. (2017), LeNet-500-300: ``hidden=(500, 300), activation=jax.nn.relu``. Federici, Ullrich and
        Welling (2017), LeNet-300-100, likewise. Wright, Igel and Selvan (2024), Appendix C.1: seven
        hidden layers of 100, one and five of 150; their code has tanh, and one layer more.
    """

    layers: list[eqx.nn.Linear]
    dropout: eqx.nn.Dropout
    activation: Callable = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden: Sequence[int],
        out_size: int,
        *,
        activation: Callable = jax.nn.swish,
        dropout: float = 0.0,
        key: Array,
    ):
        sizes = [in_size, *hidden, out_size]
        keys = split_keys(key, len(sizes) - 1)
        self.layers = [
            scaled(eqx.nn.Linear, i, o, gain=2.0, key=k)
            for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]
        self.dropout = eqx.nn.Dropout(dropout)
        self.activation = activation

    def __call__(
        self, x: Float[Array, "..."], *, key: Array | None = None
    ) -> Float[Array, " out_size"]:
        """Apply to one data point of any shape."""
        x = x.ravel()
        keys = [None] * len(self.layers) if key is None else jax.random.split(key, len(self.layers))
        for layer, k in zip(self.layers[:-1], keys[:-1], strict=True):
            x = self.dropout(self.activation(layer(x)), key=k)
        return self.layers[-1](x)

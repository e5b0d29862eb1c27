"""The two-layer perceptron inside a block of a transformer or a mixer."""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from bmrjax.nn.with_noise import Noisy
from bmrjax.zoo.scaled_init import scaled


def on_rows(
    layer: eqx.nn.Linear | Noisy, x: Float[Array, "rows in_size"]
) -> Float[Array, "rows out_size"]:
    """Apply a linear layer with a bias to every row, as one matrix product.

    ``jax.vmap(layer)`` computes the transpose; with a batch around it the gradient of a mixer
    takes 1.5 times as long on CPU. Noise around the layer is shared by the rows.
    """
    if isinstance(layer, Noisy):
        inside = layer.layer
        return layer.around(lambda rows: on_rows(inside, rows), x)
    assert layer.bias is not None
    return x @ layer.weight.T + layer.bias[None]


class FeedForward(eqx.Module):
    """Linear, GELU, linear, back to the size of the input, on each row.

    Args:
        size: Number of inputs and of outputs.
        hidden: Width of the hidden layer.
        dropout: Probability of dropping an output of either layer while training.
        exact_gelu: Whether the GELU has the error function in it instead of an approximation by tanh.
        key: Source of the initial weights.
    """

    hidden: eqx.nn.Linear
    output: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    exact_gelu: bool = eqx.field(static=True)

    def __init__(
        self, size: int, hidden: int, *, dropout: float = 0.0, exact_gelu: bool = False, key: Array
    ):
        keys = jax.random.split(key)
        self.hidden = scaled(eqx.nn.Linear, size, hidden, gain=2.0, key=keys[0])
        self.output = scaled(eqx.nn.Linear, hidden, size, key=keys[1])
        self.dropout = eqx.nn.Dropout(dropout)
        self.exact_gelu = exact_gelu

    def __call__(
        self, x: Float[Array, "rows size"], *, key: Array | None = None
    ) -> Float[Array, "rows size"]:
        """Apply to every row."""
        keys = (None, None) if key is None else jax.random.split(key)
        x = jax.nn.gelu(on_rows(self.hidden, x), approximate=not self.exact_gelu)
        x = self.dropout(x, key=keys[0])
        return self.dropout(on_rows(self.output, x), key=keys[1])

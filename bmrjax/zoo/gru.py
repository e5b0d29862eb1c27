"""A recurrent network with one gated layer."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.zoo.scaled_init import scaled


class GRU(eqx.Module):
    """A gated recurrent layer over a sequence, and a linear layer on its last state.

    Args:
        in_size: Features of one step of the sequence.
        hidden: Width of the state.
        out_size: Number of outputs.
        key: Source of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import zoo
        >>> zoo.GRU(1, 16, 1, key=jax.random.key(0))(jnp.ones((8, 1))).shape
        (1,)

    References:
        Cho et al. (2014); Beckers et al. (2024), section 5.1: 16 units on sequences of 8.
    """

    cell: eqx.nn.GRUCell
    last: eqx.nn.Linear

    def __init__(self, in_size: int = 1, hidden: int = 16, out_size: int = 1, *, key: Array):
        cell_key, last_key = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(in_size, hidden, key=cell_key)
        self.last = scaled(eqx.nn.Linear, hidden, out_size, key=last_key)

    def __call__(self, x: Float[Array, "length in_size"]) -> Float[Array, " out_size"]:
        """Apply to one sequence."""
        if x.ndim != 2 or x.shape[1] != self.cell.input_size:
            raise ValueError(
                f"GRU takes sequences of shape (length, {self.cell.input_size}), got {x.shape}."
            )

        def step(state: Array, value: Array) -> tuple[Array, None]:
            return self.cell(value, state), None

        state, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size, x.dtype), x)
        return self.last(state)

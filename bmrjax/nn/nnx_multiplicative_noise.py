"""Multiplicative noise, as a Flax NNX module."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bmrjax.nn.multiplicative_noise import check_input, check_noise
from bmrjax.priors.layer import Noise


class NNXMultiplicativeNoise(nnx.Module):
    """Multiply a batch by noise, one element a group; `bmrjax.nn.MultiplicativeNoise` in Flax NNX.

    Args:
        shape: Broadcasts against one data point, from the last axis: ``(20,)`` for channels in the last axis.
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.
        kl_weight: Factor on the divergence.
        per_datum: Whether every data point has a draw of its own; else one per batch.

    Raises:
        ValueError: For settings that make no sense, or an input that the shape does not fit.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        low: float = -20.0,
        high: float = 0.0,
        kl_weight: float = 1.0,
        per_datum: bool = True,
    ):
        check_noise(shape, low, high, kl_weight)
        self.value = nnx.Param(jnp.ones(shape))
        self.rank: int = len(shape)
        self.noise: Noise = Noise(low, high, kl_weight, per_datum)

    def __call__(self, x: Float[Array, "batch ..."]) -> Float[Array, "batch ..."]:
        """Multiply a batch."""
        value = self.value[...]
        shape = value.shape[value.ndim - self.rank :]
        check_input(shape, x.shape[1:])
        if value.ndim > self.rank:
            value = value.reshape(-1, *(1,) * (x.ndim - 1 - self.rank), *shape)
        return x * value

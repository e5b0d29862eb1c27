"""Noise that multiplies activations, and tells which of them a network can do without."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.priors.layer import Noise


def check_noise(shape: tuple[int, ...], low: float, high: float, kl_weight: float) -> None:
    """Refuse settings of a noise layer that make no sense."""
    if any(not isinstance(size, int) or size < 1 for size in shape):
        raise ValueError(f"MultiplicativeNoise: shape must be positive integers, got {shape}.")
    if not low < high:
        raise ValueError(
            f"MultiplicativeNoise: the bounds of ln θ must be low < high, got {low} and {high}."
        )
    if not kl_weight >= 0:
        raise ValueError(f"MultiplicativeNoise: kl_weight must be at least 0, got {kl_weight}.")


def check_input(shape: tuple[int, ...], datum: tuple[int, ...]) -> None:
    """Refuse an input that the noise does not fit."""
    padded = (1,) * (len(datum) - len(shape)) + shape
    fits = len(padded) == len(datum) and all(
        s in (1, d) for s, d in zip(padded, datum, strict=True)
    )
    if not fits:
        raise ValueError(
            f"MultiplicativeNoise: noise of shape {shape} does not broadcast against a data point of shape "
            f"{datum}. Give one element a group and 1 along the axes that share it, such as (20, 1, 1) for "
            "20 channels of an image."
        )


class MultiplicativeNoise(eqx.Module):
    r"""Multiply by θ, one element a group, log-uniform a priori and log-normal a posteriori.

    .. math:: \ln θ \sim U(low, high), \qquad q(\ln θ) = N(μ, σ^2) \text{ on } [low, high]

    Under `bmrjax.random_module` the noise is a latent site of its own, whatever the prior of the weights:
    every data point of a batch has its own draw in training, and predictions use the mean. The criteria
    `criteria.BMRSNormal`, `criteria.BMRSUniform` and `criteria.SignalToNoise` read it. Without
    a program it multiplies by one. A removed element multiplies by zero, and `bmrjax.compact` takes away
    what is behind it.

    Args:
        shape: Broadcasts against one data point, from the last axis: ``(500,)`` for 500 features,
            ``(20, 1, 1)`` for the channels of an image, ``(1, 8, 1)`` for 8 heads in the middle, ``()``
            for all of it, as to remove a whole block.
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.
        kl_weight: Factor on the divergence. More where a group costs more operations makes a
            network faster rather than smaller.
        per_datum: Whether every data point has a draw of its own; else one per batch.

    Raises:
        ValueError: For settings that make no sense, or an input that the shape does not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import nn
        >>> nn.MultiplicativeNoise((3,))(jnp.arange(3.0))
        Array([0., 1., 2.], dtype=float32)

    References:
        Neklyudov et al. (2017), sections 4 and 5 (also for scaling the divergence); Wright, Igel and
        Selvan (2024).
    """

    value: Float[Array, "..."]
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    kl_weight: float = eqx.field(static=True)
    per_datum: bool = eqx.field(static=True)

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
        self.value = jnp.ones(shape)
        self.low, self.high = low, high
        self.kl_weight, self.per_datum = kl_weight, per_datum

    @property
    def noise(self) -> Noise:
        """What `bmrjax.random_module` makes of it."""
        return Noise(self.low, self.high, self.kl_weight, self.per_datum)

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Multiply one data point."""
        check_input(self.value.shape, x.shape)
        return x * self.value

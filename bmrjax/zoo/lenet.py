"""LeNet-5."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.zoo.pool import HalvingMaxPool2d
from bmrjax.zoo.scaled_init import scaled


class LeNet5(eqx.Module):
    """Three 5×5 convolutions, two poolings and two linear layers.

    Inputs of 28×28 are padded to 32×32, as in the original. The third convolution sees an image of
    5×5, so it is the linear layer of 400 inputs that others write in its place.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        conv_features: Channels of the three convolutions.
        hidden: Width of the hidden linear layer.
        activation: Applied after every layer but the last; tanh in the original.
        max_pool: Whether the pooling takes the largest value instead of the mean.
        dropout: Probability of dropping an activation of the hidden linear layer while training.
        key: Source of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import zoo
        >>> network = zoo.LeNet5(conv_features=(2, 4, 8), hidden=6, key=jax.random.key(0))
        >>> network(jnp.ones((1, 28, 28))).shape
        (10,)

    References:
        LeCun et al. (1998); Marković, Friston and Kiebel (2024), Appendix A; Wright, Igel and Selvan
        (2024), Appendix C.2: ``activation=jax.nn.relu, max_pool=True``; their code has three times the
        widths for colour images.
    """

    convs: list[eqx.nn.Conv2d]
    linears: list[eqx.nn.Linear]
    pool: eqx.nn.AvgPool2d | eqx.nn.MaxPool2d
    dropout: eqx.nn.Dropout
    activation: Callable = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int = 1,
        out_size: int = 10,
        *,
        conv_features: Sequence[int] = (6, 16, 120),
        hidden: int = 84,
        activation: Callable = jnp.tanh,
        max_pool: bool = False,
        dropout: float = 0.0,
        key: Array,
    ):
        keys = jax.random.split(key, 5)
        channels = [in_channels, *conv_features]
        gain = 1.0 if activation is jnp.tanh else 2.0
        self.convs = [
            scaled(eqx.nn.Conv2d, i, o, gain=gain, kernel_size=5, key=k)
            for i, o, k in zip(channels[:-1], channels[1:], keys[:3], strict=True)
        ]
        self.linears = [
            scaled(eqx.nn.Linear, i, o, gain=gain, key=k)
            for i, o, k in zip(
                [conv_features[-1], hidden], [hidden, out_size], keys[3:], strict=True
            )
        ]
        average = eqx.nn.AvgPool2d(kernel_size=2, stride=2)
        self.pool = HalvingMaxPool2d() if max_pool else average
        self.dropout = eqx.nn.Dropout(dropout)
        self.activation = activation

    def __call__(
        self, x: Float[Array, "channels height width"], *, key: Array | None = None
    ) -> Float[Array, " out_size"]:
        """Apply to one image of 28×28 or 32×32."""
        if x.shape[1:] == (28, 28):
            x = jnp.pad(x, ((0, 0), (2, 2), (2, 2)))
        elif x.shape[1:] != (32, 32):
            raise ValueError(f"LeNet5 takes images of 28×28 or 32×32, got {x.shape[1:]}.")
        x = self.pool(self.activation(self.convs[0](x)))
        x = self.pool(self.activation(self.convs[1](x)))
        x = self.activation(self.convs[2](x)).ravel()
        x = self.dropout(self.activation(self.linears[0](x)), key=key)
        return self.linears[1](x)

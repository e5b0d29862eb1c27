"""LeNet-5 as it came with Caffe."""

from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float

from bmrjax.zoo.pool import HalvingMaxPool2d
from bmrjax.zoo.scaled_init import scaled


class LeNet5Caffe(eqx.Module):
    """Two 5×5 convolutions, each with max pooling, a hidden linear layer with ReLU, and a linear one.

    The convolutions have no activation but the pooling, as in Caffe.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        conv_features: Channels of the two convolutions.
        hidden: Width of the hidden linear layer.
        dropout: Probability of dropping an activation of the hidden linear layer while training.
        key: Source of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import zoo
        >>> zoo.LeNet5Caffe(key=jax.random.key(0)).linears[0].weight.shape
        (500, 800)

    References:
        Neklyudov et al. (2017), section 5.3; Federici, Ullrich and Welling (2017), Table 2.
    """

    convs: list[eqx.nn.Conv2d]
    linears: list[eqx.nn.Linear]
    pool: eqx.nn.MaxPool2d
    dropout: eqx.nn.Dropout

    def __init__(
        self,
        in_channels: int = 1,
        out_size: int = 10,
        *,
        conv_features: Sequence[int] = (20, 50),
        hidden: int = 500,
        dropout: float = 0.0,
        key: Array,
    ):
        keys = jax.random.split(key, 4)
        first, second = conv_features
        self.convs = [
            scaled(eqx.nn.Conv2d, in_channels, first, kernel_size=5, key=keys[0]),
            scaled(eqx.nn.Conv2d, first, second, kernel_size=5, key=keys[1]),
        ]
        # An image of 28×28 has 4×4 pixels left here.
        self.linears = [
            scaled(eqx.nn.Linear, 16 * second, hidden, gain=2.0, key=keys[2]),
            scaled(eqx.nn.Linear, hidden, out_size, key=keys[3]),
        ]
        self.pool = HalvingMaxPool2d()
        self.dropout = eqx.nn.Dropout(dropout)

    def __call__(
        self, x: Float[Array, "channels height width"], *, key: Array | None = None
    ) -> Float[Array, " out_size"]:
        """Apply to one image of 28×28."""
        if x.shape[1:] != (28, 28):
            raise ValueError(f"LeNet5Caffe takes images of 28×28, got {x.shape[1:]}.")
        for conv in self.convs:
            x = self.pool(conv(x))
        x = self.dropout(jax.nn.relu(self.linears[0](x.ravel())), key=key)
        return self.linears[1](x)

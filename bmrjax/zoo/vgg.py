"""The VGG-like network for CIFAR."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float

from bmrjax.zoo.norm import batch_norm
from bmrjax.zoo.scaled_init import scaled


class VGG(eqx.Module):
    """Stages of 3×3 convolutions and max pooling, a hidden linear layer, and a linear one.

    Batch normalisation and ReLU follow all but the last. So it has running statistics: build it with
    ``equinox.nn.make_with_state``, and call it on one image under ``jax.vmap(..., axis_name="batch")``,
    which `random_module` does.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        image_size: Side of a square image, in pixels.
        features: Channels of the convolutions of each stage.
        depths: Number of convolutions of each stage.
        hidden: Width of the hidden linear layer.
        k: Factor on all widths, which are rounded down.
        dropout: Probabilities of dropping an activation while training: after the first convolution, after
            every other one that is not the last of its stage, and before each linear layer. The
            original has (0.3, 0.4, 0.5).
        key: Source of the initial weights.

    Example:
        >>> import equinox as eqx, jax
        >>> from bmrjax import zoo
        >>> network, state = eqx.nn.make_with_state(zoo.VGG)(k=0.25, key=jax.random.key(0))
        >>> len(network.convs), network.hidden.weight.shape
        (13, (128, 128))

    References:
        Zagoruyko (2015), 92.45 % on CIFAR-10 in Torch; Neklyudov et al. (2017), section 5.4, Table 2.
    """

    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    hidden: eqx.nn.Linear
    hidden_norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear
    pool: eqx.nn.MaxPool2d
    dropouts: list[eqx.nn.Dropout]
    depths: tuple[int, ...] = eqx.field(static=True)
    image_size: int = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int = 3,
        out_size: int = 10,
        *,
        image_size: int = 32,
        features: Sequence[int] = (64, 128, 256, 512, 512),
        depths: Sequence[int] = (2, 2, 3, 3, 3),
        hidden: int = 512,
        k: float = 1.0,
        dropout: tuple[float, float, float] = (0.0, 0.0, 0.0),
        key: Array,
    ):
        widths = [int(k * w) for w, n in zip(features, depths, strict=True) for _ in range(n)]
        if min(widths) < 1 or int(k * hidden) < 1:
            raise ValueError(f"VGG: k={k} leaves a layer without units; give a larger one.")
        *keys, hidden_key, head_key = jax.random.split(key, len(widths) + 2)
        self.convs = [
            scaled(eqx.nn.Conv2d, i, o, gain=2.0, kernel_size=3, padding=1, key=c)
            for i, o, c in zip([in_channels, *widths[:-1]], widths, keys, strict=True)
        ]
        self.norms = [batch_norm(w) for w in widths]
        # Each stage halves the image, a half pixel counts as a whole one.
        side = math.ceil(image_size / 2 ** len(depths))
        self.hidden = scaled(
            eqx.nn.Linear, side * side * widths[-1], int(k * hidden), gain=2.0, key=hidden_key
        )
        self.hidden_norm = batch_norm(int(k * hidden))
        self.head = scaled(eqx.nn.Linear, int(k * hidden), out_size, key=head_key)
        self.pool = eqx.nn.MaxPool2d(kernel_size=2, stride=2, use_ceil=True)
        self.dropouts = [eqx.nn.Dropout(p) for p in dropout]
        self.depths, self.image_size = tuple(depths), image_size

    def __call__(
        self,
        x: Float[Array, "channels height width"],
        state: eqx.nn.State,
        *,
        key: Array | None = None,
    ) -> tuple[Float[Array, " out_size"], eqx.nn.State]:
        """Apply to one image; return the outputs and the running statistics."""
        if x.shape[1:] != (self.image_size, self.image_size):
            raise ValueError(
                f"The VGG was built for images of {self.image_size}×{self.image_size}, got "
                f"{x.shape[1:]}. Give image_size when building it."
            )
        count = len(self.convs) + 2
        keys = [None] * count if key is None else list(jax.random.split(key, count))
        first, rest, dense = self.dropouts
        last = [sum(self.depths[: i + 1]) - 1 for i in range(len(self.depths))]
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x, state = norm(conv(x), state)
            x = jax.nn.relu(x)
            x = self.pool(x) if i in last else (rest if i else first)(x, key=keys[i])
        x, state = self.hidden_norm(self.hidden(dense(x.ravel(), key=keys[-2])), state)
        return self.head(dense(jax.nn.relu(x), key=keys[-1])), state

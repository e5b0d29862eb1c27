"""Residual networks."""

from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float

from bmrjax.zoo.norm import batch_norm
from bmrjax.zoo.scaled_init import scaled

# How many times wider the outputs of a bottleneck are than its other convolutions.
EXPANSION = 4


def _conv(ins: int, out: int, size: int, *, stride: int = 1, key: Array) -> eqx.nn.Conv2d:
    return scaled(
        eqx.nn.Conv2d, ins, out, gain=2.0, kernel_size=size, stride=stride, padding=size // 2,
        use_bias=False, key=key,
    )  # fmt: skip


class ResidualBlock(eqx.Module):
    """Convolutions, each with batch normalisation, and a skip around them; ReLU between and at the end.

    Args:
        in_channels: Channels of the input.
        width: Channels of the convolutions, of the last one of a bottleneck a fourth.
        stride: Of the first 3×3 convolution, and of the skip.
        bottleneck: Whether the convolutions are 1×1, 3×3 and 1×1 instead of two of 3×3.
        key: Source of the initial weights.
    """

    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    shortcut: eqx.nn.Conv2d | None
    shortcut_norm: eqx.nn.BatchNorm | None

    def __init__(self, in_channels: int, width: int, *, stride: int, bottleneck: bool, key: Array):
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        widths = (width, width, EXPANSION * width) if bottleneck else (width, width)
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        *keys, last = jax.random.split(key, len(sizes) + 1)
        ins = (in_channels, *widths)
        self.convs = [
            _conv(i, o, size, stride=s, key=k)
            for i, o, size, s, k in zip(ins[:-1], widths, sizes, strides, keys, strict=True)
        ]
        self.norms = [batch_norm(w) for w in widths]
        self.shortcut, self.shortcut_norm = None, None
        if stride != 1 or in_channels != widths[-1]:
            self.shortcut = _conv(in_channels, widths[-1], 1, stride=stride, key=last)
            self.shortcut_norm = batch_norm(widths[-1])

    def __call__(
        self, x: Float[Array, "channels height width"], state: eqx.nn.State
    ) -> tuple[Float[Array, "out_channels out_height out_width"], eqx.nn.State]:
        """Apply to the features of one image."""
        skip = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x, state = norm(conv(x if i == 0 else jax.nn.relu(x)), state)
        if self.shortcut is not None and self.shortcut_norm is not None:
            skip, state = self.shortcut_norm(self.shortcut(skip), state)
        return jax.nn.relu(x + skip), state


class ResNet(eqx.Module):
    """A residual network with batch normalisation; use `resnet18` and `resnet50` for the usual ones.

    It has running statistics: build it with ``equinox.nn.make_with_state``, and call it on one image under
    ``jax.vmap(..., axis_name="batch")``, which `random_module` does. Weight files of torchvision fit: see
    `load_weights`. As there, the stride of a bottleneck is in its 3×3 convolution.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        blocks: Number of blocks of each stage; every stage after the first halves the image's sides.
        bottleneck: Whether blocks have three convolutions, outputs four times as wide.
        width: Channels of the first stage; every other has twice as many as the one before.
        small_images: Whether the stem is one 3×3 convolution, as is usual for 32×32 pixels, instead of a
            7×7 one of stride 2 and max pooling.
        key: Source of the initial weights.

    Example:
        >>> import equinox as eqx, jax
        >>> from bmrjax import zoo
        >>> build = eqx.nn.make_with_state(zoo.ResNet)
        >>> network, state = build(3, 10, blocks=(1, 1), width=8, key=jax.random.key(0))
        >>> network.stages[1][0].convs[0].weight.shape
        (16, 8, 3, 3)

    References:
        He et al. (2016), Table 1; section 4.2 for the stem of `small_images`.
    """

    stem: eqx.nn.Conv2d
    stem_norm: eqx.nn.BatchNorm
    pool: eqx.nn.MaxPool2d | None
    stages: list[list[ResidualBlock]]
    head: eqx.nn.Linear

    def __init__(
        self,
        in_channels: int = 3,
        out_size: int = 10,
        *,
        blocks: Sequence[int] = (2, 2, 2, 2),
        bottleneck: bool = False,
        width: int = 64,
        small_images: bool = False,
        key: Array,
    ):
        stem_key, head_key, *keys = jax.random.split(key, 2 + sum(blocks))
        if small_images:
            self.stem, self.pool = _conv(in_channels, width, 3, key=stem_key), None
        else:
            self.stem = _conv(in_channels, width, 7, stride=2, key=stem_key)
            self.pool = eqx.nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.stem_norm = batch_norm(width)
        self.stages, channels = [], width
        for i, count in enumerate(blocks):
            stage = []
            for j in range(count):
                stride = 2 if i and not j else 1
                block = ResidualBlock(
                    channels, width * 2**i, stride=stride, bottleneck=bottleneck, key=keys.pop(0)
                )
                channels = block.norms[-1].input_size
                stage.append(block)
            self.stages.append(stage)
        self.head = scaled(eqx.nn.Linear, channels, out_size, key=head_key)

    def __call__(
        self, x: Float[Array, "channels height width"], state: eqx.nn.State
    ) -> tuple[Float[Array, " out_size"], eqx.nn.State]:
        """Apply to one image; return the outputs and the running statistics."""
        x, state = self.stem_norm(self.stem(x), state)
        x = jax.nn.relu(x)
        if self.pool is not None:
            x = self.pool(x)
        for stage in self.stages:
            for block in stage:
                x, state = block(x, state)
        return self.head(x.mean((1, 2))), state


def resnet18(
    in_channels: int = 3, out_size: int = 10, *, small_images: bool = False, key: Array
) -> tuple[ResNet, eqx.nn.State]:
    """Return a `ResNet` of 18 layers and its running statistics.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        small_images: See `ResNet`.
        key: Source of the initial weights.

    Example:
        >>> import equinox as eqx, jax
        >>> from bmrjax import zoo
        >>> build = lambda key: zoo.resnet18(out_size=100, small_images=True, key=key)
        >>> network, state = eqx.filter_eval_shape(build, jax.random.key(0))  # shapes only
        >>> network.stages[3][1].convs[1].weight.shape, network.head.weight.shape
        ((512, 512, 3, 3), (100, 512))
    """
    build = eqx.nn.make_with_state(ResNet)
    return build(in_channels, out_size, small_images=small_images, key=key)


def resnet50(
    in_channels: int = 3, out_size: int = 10, *, small_images: bool = False, key: Array
) -> tuple[ResNet, eqx.nn.State]:
    """Return a `ResNet` of 50 layers, with bottlenecks, and its running statistics.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        small_images: See `ResNet`.
        key: Source of the initial weights.

    Example:
        >>> import equinox as eqx, jax
        >>> from bmrjax import zoo
        >>> network, state = eqx.filter_eval_shape(lambda key: zoo.resnet50(key=key), jax.random.key(0))
        >>> len(network.stages), [len(stage) for stage in network.stages]
        (4, [3, 4, 6, 3])
    """
    return eqx.nn.make_with_state(ResNet)(
        in_channels,
        out_size,
        blocks=(3, 4, 6, 3),
        bottleneck=True,
        small_images=small_images,
        key=key,
    )

"""Small convolutional networks in the style of public Equinox and Flax NNX code."""

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox.nn import AvgPool2d, BatchNorm, Conv2d, ConvTranspose2d, LayerNorm, Linear, MaxPool2d
from flax import nnx

from .keys import keys


def batch_norm(channels):
    return BatchNorm(channels, "batch", mode="batch")


class BasicBlock(eqx.Module):
    conv1: Conv2d
    bn1: BatchNorm
    conv2: Conv2d
    bn2: BatchNorm
    down: Conv2d | None

    def __init__(self, ins, outs, stride, *, key):
        k = keys(key)
        self.conv1 = Conv2d(ins, outs, 3, stride, padding=1, use_bias=False, key=next(k))
        self.conv2 = Conv2d(outs, outs, 3, padding=1, use_bias=False, key=next(k))
        self.bn1, self.bn2 = batch_norm(outs), batch_norm(outs)
        self.down = None
        if stride > 1 or ins != outs:
            self.down = Conv2d(ins, outs, 1, stride, use_bias=False, key=next(k))

    def __call__(self, x, state):
        y, state = self.bn1(self.conv1(x), state)
        y, state = self.bn2(self.conv2(jax.nn.relu(y)), state)
        return jax.nn.relu(y + (x if self.down is None else self.down(x))), state


class ResNet(eqx.Module):
    stem: Conv2d
    blocks: list
    fc: Linear

    def __init__(self, key):
        k = keys(key)
        self.stem = Conv2d(3, 6, 3, padding=1, key=next(k))
        self.blocks = [
            BasicBlock(6, 6, 1, key=next(k)),
            BasicBlock(6, 8, 2, key=next(k)),
        ]
        self.fc = Linear(8, 4, key=next(k))

    def __call__(self, x, state):
        x = jax.nn.relu(self.stem(x))
        for block in self.blocks:
            x, state = block(x, state)
        return self.fc(jnp.mean(x, axis=(1, 2))), state


class PreActBlock(nnx.Module):
    def __init__(self, ins, outs, rngs):
        self.bn1 = nnx.BatchNorm(ins, rngs=rngs)
        self.conv1 = nnx.Conv(ins, outs, (3, 3), use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(outs, rngs=rngs)
        self.conv2 = nnx.Conv(outs, outs, (3, 3), use_bias=False, rngs=rngs)
        self.short = nnx.Conv(ins, outs, (1, 1), use_bias=False, rngs=rngs)

    def __call__(self, x):
        y = nnx.relu(self.bn1(x))
        return self.short(y) + self.conv2(nnx.relu(self.bn2(self.conv1(y))))


class PreActResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 5, (3, 3), rngs=rngs)
        self.blocks = nnx.List([PreActBlock(5, 6, rngs), PreActBlock(6, 6, rngs)])
        self.bn = nnx.BatchNorm(6, rngs=rngs)
        self.fc = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(nnx.relu(self.bn(x)).mean(axis=(1, 2)))


class DenseLayer(eqx.Module):
    bn1: BatchNorm
    conv1: Conv2d
    bn2: BatchNorm
    conv2: Conv2d

    def __init__(self, ins, growth, *, key):
        k = keys(key)
        self.bn1, self.bn2 = batch_norm(ins), batch_norm(8)
        self.conv1 = Conv2d(ins, 8, 1, use_bias=False, key=next(k))
        self.conv2 = Conv2d(8, growth, 3, padding=1, use_bias=False, key=next(k))

    def __call__(self, x, state):
        y, state = self.bn1(x, state)
        y, state = self.bn2(self.conv1(jax.nn.relu(y)), state)
        return jnp.concatenate([x, self.conv2(jax.nn.relu(y))], axis=0), state


class DenseNet(eqx.Module):
    stem: Conv2d
    layers: list
    norm: BatchNorm
    fc: Linear

    def __init__(self, key):
        k = keys(key)
        self.stem = Conv2d(3, 6, 3, padding=1, use_bias=False, key=next(k))
        self.layers = [DenseLayer(6 + 4 * i, 4, key=next(k)) for i in range(2)]
        self.norm, self.fc = batch_norm(14), Linear(14, 4, key=next(k))

    def __call__(self, x, state):
        x = MaxPool2d(2, 2)(self.stem(x))
        for layer in self.layers:
            x, state = layer(x, state)
        x, state = self.norm(x, state)
        return self.fc(jax.nn.relu(x).mean((1, 2))), state


class InvertedResidual(eqx.Module):
    expand: Conv2d
    bn1: BatchNorm
    depthwise: Conv2d
    bn2: BatchNorm
    project: Conv2d

    def __init__(self, width, hidden, *, key):
        k = keys(key)
        self.expand = Conv2d(width, hidden, 1, use_bias=False, key=next(k))
        self.depthwise = Conv2d(
            hidden, hidden, 3, padding=1, groups=hidden, use_bias=False, key=next(k)
        )
        self.project = Conv2d(hidden, width, 1, key=next(k))
        self.bn1, self.bn2 = batch_norm(hidden), batch_norm(hidden)

    def __call__(self, x, state):
        y, state = self.bn1(self.expand(x), state)
        y, state = self.bn2(self.depthwise(jax.nn.relu6(y)), state)
        return x + self.project(jax.nn.relu6(y)), state


class MobileNet(eqx.Module):
    stem: Conv2d
    block: InvertedResidual
    fc: Linear

    def __init__(self, key):
        k = keys(key)
        self.stem = Conv2d(3, 6, 3, stride=2, padding=1, key=next(k))
        self.block = InvertedResidual(6, 12, key=next(k))
        self.fc = Linear(6, 4, key=next(k))

    def __call__(self, x, state):
        x, state = self.block(jax.nn.relu6(self.stem(x)), state)
        return self.fc(x.mean((1, 2))), state


class SqueezeExcite(nnx.Module):
    def __init__(self, channels, reduced, rngs):
        self.reduce = nnx.Conv(channels, reduced, (1, 1), rngs=rngs)
        self.expand = nnx.Conv(reduced, channels, (1, 1), rngs=rngs)

    def __call__(self, x):
        s = nnx.silu(self.reduce(x.mean(axis=(1, 2), keepdims=True)))
        return x * nnx.sigmoid(self.expand(s))


class MBConv(nnx.Module):
    def __init__(self, width, hidden, rngs):
        self.expand = nnx.Conv(width, hidden, (1, 1), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(hidden, rngs=rngs)
        self.depthwise = nnx.Conv(
            hidden, hidden, (3, 3), feature_group_count=hidden, use_bias=False, rngs=rngs
        )
        self.bn2 = nnx.BatchNorm(hidden, rngs=rngs)
        self.se = SqueezeExcite(hidden, 3, rngs)
        self.project = nnx.Conv(hidden, width, (1, 1), rngs=rngs)

    def __call__(self, x):
        y = nnx.silu(self.bn1(self.expand(x)))
        y = self.se(nnx.silu(self.bn2(self.depthwise(y))))
        return x + self.project(y)


class EfficientNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 6, (3, 3), strides=2, rngs=rngs)
        self.block = MBConv(6, 12, rngs)
        self.fc = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, x):
        return self.fc(self.block(nnx.silu(self.stem(x))).mean(axis=(1, 2)))


class ConvNeXtBlock(eqx.Module):
    depthwise: Conv2d
    norm: LayerNorm
    pw1: Linear
    pw2: Linear
    gamma: jax.Array

    def __init__(self, width, *, key):
        k = keys(key)
        self.depthwise = Conv2d(width, width, 7, padding=3, groups=width, key=next(k))
        self.norm = LayerNorm(width)
        self.pw1 = Linear(width, 4 * width, key=next(k))
        self.pw2 = Linear(4 * width, width, key=next(k))
        self.gamma = 0.1 * jnp.ones(width)

    def __call__(self, x):
        y = jnp.transpose(self.depthwise(x), (1, 2, 0))

        def pointwise(v):
            return self.gamma * self.pw2(jax.nn.gelu(self.pw1(self.norm(v))))

        return x + jnp.transpose(jax.vmap(jax.vmap(pointwise))(y), (2, 0, 1))


class ConvNeXt(eqx.Module):
    stem: Conv2d
    blocks: list
    norm: LayerNorm
    head: Linear

    def __init__(self, key):
        k = keys(key)
        self.stem = Conv2d(3, 4, 2, stride=2, key=next(k))
        self.blocks = [ConvNeXtBlock(4, key=next(k)) for _ in range(2)]
        self.norm, self.head = LayerNorm(4), Linear(4, 3, key=next(k))

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean((1, 2))))


def channel_shuffle(x, groups):
    c, h, w = x.shape
    return x.reshape(groups, c // groups, h, w).transpose(1, 0, 2, 3).reshape(c, h, w)


class ShuffleUnit(eqx.Module):
    reduce: Conv2d
    depthwise: Conv2d
    expand: Conv2d
    groups: int = eqx.field(static=True)

    def __init__(self, width, hidden, groups, *, key):
        k = keys(key)
        self.groups = groups
        self.reduce = Conv2d(width, hidden, 1, groups=groups, key=next(k))
        self.depthwise = Conv2d(hidden, hidden, 3, padding=1, groups=hidden, key=next(k))
        self.expand = Conv2d(hidden, width, 1, groups=groups, key=next(k))

    def __call__(self, x):
        y = channel_shuffle(jax.nn.relu(self.reduce(x)), self.groups)
        return jax.nn.relu(x + self.expand(self.depthwise(y)))


class ShuffleNet(eqx.Module):
    stem: Conv2d
    unit: ShuffleUnit
    conv: Conv2d
    fc: Linear

    def __init__(self, key):
        k = keys(key)
        self.stem = Conv2d(3, 6, 3, stride=2, padding=1, key=next(k))
        self.unit = ShuffleUnit(6, 6, 3, key=next(k))
        self.conv = Conv2d(6, 9, 1, key=next(k))
        self.fc = Linear(9, 4, key=next(k))

    def __call__(self, x):
        x = jax.nn.relu(self.conv(self.unit(jax.nn.relu(self.stem(x)))))
        return self.fc(x.mean((1, 2)))


class VGG(nnx.Module):
    def __init__(self, rngs):
        widths = [3, 6, 6, 8]
        self.convs = nnx.List(
            [nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in zip(widths, widths[1:], strict=False)]
        )
        self.norms = nnx.List([nnx.BatchNorm(n, rngs=rngs) for n in widths[1:]])
        self.fc1 = nnx.Linear(2 * 2 * 8, 10, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.fc2 = nnx.Linear(10, 4, rngs=rngs)

    def __call__(self, x):
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = nnx.relu(norm(conv(x)))
            if i:
                x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        return self.fc2(self.dropout(nnx.relu(self.fc1(x))))


class DoubleConv(eqx.Module):
    conv1: Conv2d
    conv2: Conv2d

    def __init__(self, ins, outs, *, key):
        k = keys(key)
        self.conv1 = Conv2d(ins, outs, 3, padding=1, key=next(k))
        self.conv2 = Conv2d(outs, outs, 3, padding=1, key=next(k))

    def __call__(self, x):
        return jax.nn.relu(self.conv2(jax.nn.relu(self.conv1(x))))


class UNet(eqx.Module):
    enter: DoubleConv
    down: DoubleConv
    up: ConvTranspose2d
    leave: DoubleConv
    last: Conv2d

    def __init__(self, key):
        k = keys(key)
        self.enter = DoubleConv(1, 4, key=next(k))
        self.down = DoubleConv(4, 8, key=next(k))
        self.up = ConvTranspose2d(8, 4, 2, stride=2, key=next(k))
        self.leave = DoubleConv(8, 4, key=next(k))
        self.last = Conv2d(4, 2, 1, key=next(k))

    def __call__(self, x):
        skip = self.enter(x)
        y = self.up(self.down(AvgPool2d(2, 2)(skip)))
        return self.last(self.leave(jnp.concatenate([skip, y], axis=0)))

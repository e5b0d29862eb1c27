"""Small recurrent, graph, and other networks in the style of public Equinox and Flax NNX code."""

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox.nn import MLP, Conv2d, ConvTranspose2d, GRUCell, LayerNorm, Linear
from flax import nnx

from .keys import keys


class GRU(eqx.Module):
    cell: GRUCell
    out: Linear
    hidden_size: int = eqx.field(static=True)

    def __init__(self, key):
        k = keys(key)
        self.hidden_size = 8
        self.cell, self.out = GRUCell(2, 8, key=next(k)), Linear(8, 3, key=next(k))

    def __call__(self, xs):
        def step(h, x):
            return self.cell(x, h), None

        h, _ = jax.lax.scan(step, jnp.zeros(self.hidden_size), xs)
        return self.out(h)


class LSTM(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(9, 5, rngs=rngs)
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(5, 6, rngs=rngs))
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[:, -1])


class MixerBlock(eqx.Module):
    norm1: LayerNorm
    norm2: LayerNorm
    tokens: MLP
    channels: MLP

    def __init__(self, patches, width, *, key):
        k = keys(key)
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.tokens = MLP(patches, patches, 5, 1, activation=jax.nn.gelu, key=next(k))
        self.channels = MLP(width, width, 7, 1, activation=jax.nn.gelu, key=next(k))

    def __call__(self, x):
        y = jax.vmap(self.norm1)(x)
        x = x + jax.vmap(self.tokens, in_axes=1, out_axes=1)(y)
        return x + jax.vmap(self.channels)(jax.vmap(self.norm2)(x))


class Mixer(eqx.Module):
    patch: Conv2d
    blocks: list
    head: Linear

    def __init__(self, key):
        k = keys(key)
        self.patch = Conv2d(1, 6, 4, stride=4, key=next(k))
        self.blocks = [MixerBlock(4, 6, key=next(k)) for _ in range(2)]
        self.head = Linear(6, 3, key=next(k))

    def __call__(self, x):
        x = self.patch(x).reshape(6, -1).T
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(0))


class Mixer2dBlock(eqx.Module):
    patch_mixer: MLP
    hidden_mixer: MLP
    norm1: LayerNorm
    norm2: LayerNorm

    def __init__(self, patches, hidden, *, key):
        k = keys(key)
        self.patch_mixer = MLP(patches, patches, 5, 1, key=next(k))
        self.hidden_mixer = MLP(hidden, hidden, 7, 1, key=next(k))
        self.norm1, self.norm2 = LayerNorm((hidden, patches)), LayerNorm((patches, hidden))

    def __call__(self, y):
        y = y + jax.vmap(self.patch_mixer)(self.norm1(y))
        y = y.T
        y = y + jax.vmap(self.hidden_mixer)(self.norm2(y))
        return y.T


class DiffusionMixer(eqx.Module):
    """The score network of Equinox's example of diffusion."""

    conv_in: Conv2d
    conv_out: ConvTranspose2d
    blocks: list
    norm: LayerNorm
    t1: float

    def __init__(self, key):
        k = keys(key)
        self.conv_in = Conv2d(2, 6, 4, stride=4, key=next(k))
        self.conv_out = ConvTranspose2d(6, 1, 4, stride=4, key=next(k))
        self.blocks = [Mixer2dBlock(4, 6, key=next(k)) for _ in range(2)]
        self.norm, self.t1 = LayerNorm((6, 4)), 10.0

    def __call__(self, t, y):
        t = jnp.broadcast_to(t / self.t1, (1, *y.shape[1:]))
        y = self.conv_in(jnp.concatenate([y, t]))
        hidden, height, width = y.shape
        y = y.reshape(hidden, height * width)
        for block in self.blocks:
            y = block(y)
        return self.conv_out(self.norm(y).reshape(hidden, height, width))


class Field(eqx.Module):
    mlp: MLP

    def __call__(self, t, y):
        return self.mlp(jnp.append(y, t))


class NeuralODE(eqx.Module):
    """Runge-Kutta steps in a loop whose length is not known."""

    func: Field

    def __init__(self, key):
        self.func = Field(MLP(3, 2, 8, 2, activation=jax.nn.softplus, key=key))

    def __call__(self, y0, t1):
        dt = 0.1

        def step(carry):
            t, y = carry
            k1 = self.func(t, y)
            k2 = self.func(t + dt / 2, y + dt / 2 * k1)
            return t + dt, y + dt * k2

        return jax.lax.while_loop(lambda c: c[0] < t1, step, (jnp.zeros(()), y0))[1]


class MessagePassing(eqx.Module):
    """A graph network of two rounds; messages are added up at the nodes that receive them."""

    embed: Linear
    message: list
    update: list
    out: Linear

    def __init__(self, key):
        k = keys(key)
        self.embed = Linear(3, 6, key=next(k))
        self.message = [Linear(12, 7, key=next(k)) for _ in range(2)]
        self.update = [Linear(13, 6, key=next(k)) for _ in range(2)]
        self.out = Linear(6, 2, key=next(k))

    def __call__(self, graph):
        h = jax.nn.relu(jax.vmap(self.embed)(graph["nodes"]))
        for message, update in zip(self.message, self.update, strict=True):
            pairs = jnp.concatenate([h[graph["senders"]], h[graph["receivers"]]], axis=-1)
            sent = jax.nn.relu(jax.vmap(message)(pairs))
            got = jax.ops.segment_sum(sent, graph["receivers"], h.shape[0])
            h = h + jax.nn.relu(jax.vmap(update)(jnp.concatenate([h, got], axis=-1)))
        return self.out(h.sum(0))


class Autoencoder(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Sequential(
            nnx.Linear(16, 10, rngs=rngs), nnx.relu, nnx.Linear(10, 4, rngs=rngs)
        )
        self.decoder = nnx.Sequential(
            nnx.Linear(4, 10, rngs=rngs), nnx.relu, nnx.Linear(10, 16, rngs=rngs)
        )

    def __call__(self, x):
        return nnx.sigmoid(self.decoder(self.encoder(x)))


class PointNet(eqx.Module):
    local: MLP
    head: MLP

    def __init__(self, key):
        k = keys(key)
        self.local = MLP(3, 10, 8, 1, key=next(k))
        self.head = MLP(10, 4, 6, 1, key=next(k))

    def __call__(self, points):
        return self.head(jax.nn.relu(jax.vmap(self.local)(points)).max(axis=0))

"""Small transformers in the style of public Equinox and Flax NNX code."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox.nn import Conv2d, Embedding, LayerNorm, Linear
from flax import nnx

from .keys import keys


class FusedAttention(eqx.Module):
    """Heads as in timm: one layer for queries, keys and values, cut by a reshape."""

    qkv: Linear
    proj: Linear
    num_heads: int = eqx.field(static=True)
    head_dim: int = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(self, dim, num_heads, *, key):
        k = keys(key)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = Linear(dim, 3 * dim, key=next(k))
        self.proj = Linear(dim, dim, key=next(k))

    def __call__(self, x, mask=None, bias=0.0):
        n = x.shape[0]
        qkv = jax.vmap(self.qkv)(x).reshape(n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.transpose(1, 2, 0, 3)
        attn = (q * self.scale) @ k.swapaxes(-2, -1) + bias
        if mask is not None:
            attn = jnp.where(mask, attn, -jnp.inf)
        x = (jax.nn.softmax(attn, axis=-1) @ v).transpose(1, 0, 2).reshape(n, -1)
        return jax.vmap(self.proj)(x)


class Block(eqx.Module):
    norm1: LayerNorm
    attn: FusedAttention
    norm2: LayerNorm
    fc1: Linear
    fc2: Linear

    def __init__(self, dim, heads, hidden, *, key):
        k = keys(key)
        self.norm1, self.norm2 = LayerNorm(dim), LayerNorm(dim)
        self.attn = FusedAttention(dim, heads, key=next(k))
        self.fc1, self.fc2 = Linear(dim, hidden, key=next(k)), Linear(hidden, dim, key=next(k))

    def __call__(self, x, mask=None):
        x = x + self.attn(jax.vmap(self.norm1)(x), mask)
        y = jax.vmap(self.fc1)(jax.vmap(self.norm2)(x))
        return x + jax.vmap(self.fc2)(jax.nn.gelu(y))


class ViT(eqx.Module):
    patch: Conv2d
    cls: jax.Array
    pos: jax.Array
    blocks: list
    norm: LayerNorm
    head: Linear

    def __init__(self, key):
        k = keys(key)
        self.patch = Conv2d(1, 12, 4, stride=4, key=next(k))
        self.cls = jax.random.normal(next(k), (1, 12))
        self.pos = jax.random.normal(next(k), (5, 12))
        self.blocks = [Block(12, 3, 10, key=next(k)) for _ in range(2)]
        self.norm, self.head = LayerNorm(12), Linear(12, 4, key=next(k))

    def __call__(self, x):
        x = self.patch(x).reshape(12, -1).T
        x = jnp.concatenate([self.cls, x]) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[0]))


class GPT(eqx.Module):
    """Causal, and with one table for tokens that come in and go out."""

    wte: Embedding
    wpe: Embedding
    blocks: list
    norm: LayerNorm

    def __init__(self, key):
        k = keys(key)
        self.wte, self.wpe = Embedding(11, 12, key=next(k)), Embedding(6, 12, key=next(k))
        self.blocks = [Block(12, 3, 10, key=next(k)) for _ in range(2)]
        self.norm = LayerNorm(12)

    def __call__(self, tokens):
        n = len(tokens)
        x = jax.vmap(self.wte)(tokens) + jax.vmap(self.wpe)(jnp.arange(n))
        mask = jnp.tril(jnp.ones((n, n), bool))
        for block in self.blocks:
            x = block(x, mask)
        return jax.vmap(self.norm)(x) @ self.wte.weight.T


class NNXAttention(nnx.Module):
    """Heads of a fused layer, the three of a head side by side."""

    def __init__(self, dim, num_heads, rngs):
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nnx.Linear(dim, 3 * dim, rngs=rngs)
        self.proj = nnx.Linear(dim, dim, rngs=rngs)

    def __call__(self, x):
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, self.num_heads, 3, self.head_dim)
        q, k, v = (qkv[:, :, :, i] for i in range(3))
        y = jax.nn.dot_product_attention(q, k, v)
        return self.proj(y.reshape(b, n, self.num_heads * self.head_dim))


class NNXViT(nnx.Module):
    def __init__(self, rngs):
        self.patch = nnx.Conv(1, 12, (4, 4), strides=(4, 4), rngs=rngs)
        self.pos = nnx.Param(jax.random.normal(rngs.params(), (1, 4, 12)))
        self.norm1 = nnx.LayerNorm(12, rngs=rngs)
        self.attn = NNXAttention(12, 3, rngs)
        self.norm2 = nnx.LayerNorm(12, rngs=rngs)
        self.mlp = nnx.Sequential(
            nnx.Linear(12, 10, rngs=rngs), nnx.gelu, nnx.Linear(10, 12, rngs=rngs)
        )
        self.head = nnx.Linear(12, 4, rngs=rngs)

    def __call__(self, x):
        x = self.patch(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.pos[...]
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(axis=1))


def window_partition(x, size):
    h, w, c = x.shape
    x = x.reshape(h // size, size, w // size, size, c)
    return x.transpose(0, 2, 1, 3, 4).reshape(-1, size * size, c)


def window_reverse(windows, size, h, w):
    x = windows.reshape(h // size, w // size, size, size, -1)
    return x.transpose(0, 2, 1, 3, 4).reshape(h, w, -1)


def relative_index(size):
    at = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")).reshape(2, -1)
    apart = at[:, :, None] - at[:, None] + size - 1
    return apart[0] * (2 * size - 1) + apart[1]


class SwinBlock(eqx.Module):
    norm1: LayerNorm
    attn: FusedAttention
    table: jax.Array
    norm2: LayerNorm
    fc1: Linear
    fc2: Linear
    shift: int = eqx.field(static=True)
    window: int = eqx.field(static=True)

    def __init__(self, dim, heads, shift, *, key):
        k = keys(key)
        self.shift, self.window = shift, 2
        self.norm1, self.norm2 = LayerNorm(dim), LayerNorm(dim)
        self.attn = FusedAttention(dim, heads, key=next(k))
        self.table = 0.1 * jax.random.normal(next(k), (9, heads))
        self.fc1, self.fc2 = Linear(dim, 10, key=next(k)), Linear(10, dim, key=next(k))

    def __call__(self, x):
        h, w, c = x.shape
        y = jax.vmap(jax.vmap(self.norm1))(x)
        y = jnp.roll(y, (-self.shift, -self.shift), axis=(0, 1))
        bias = self.table[relative_index(self.window)].transpose(2, 0, 1)
        windows = window_partition(y, self.window)
        windows = jax.vmap(lambda t: self.attn(t, bias=bias))(windows)
        y = window_reverse(windows, self.window, h, w)
        x = x + jnp.roll(y, (self.shift, self.shift), axis=(0, 1))

        def mlp(t):
            return self.fc2(jax.nn.gelu(self.fc1(self.norm2(t))))

        return x + jax.vmap(jax.vmap(mlp))(x)


class Swin(eqx.Module):
    patch: Conv2d
    blocks: list
    merge: Linear
    merge_norm: LayerNorm
    head: Linear

    def __init__(self, key):
        k = keys(key)
        self.patch = Conv2d(1, 12, 2, stride=2, key=next(k))
        self.blocks = [SwinBlock(12, 3, shift, key=next(k)) for shift in (0, 1)]
        self.merge_norm = LayerNorm(48)
        self.merge = Linear(48, 10, use_bias=False, key=next(k))
        self.head = Linear(10, 3, key=next(k))

    def __call__(self, x):
        x = self.patch(x).transpose(1, 2, 0)
        for block in self.blocks:
            x = block(x)
        parts = [x[i::2, j::2] for j in (0, 1) for i in (0, 1)]
        x = jnp.concatenate(parts, axis=-1)
        x = jax.vmap(jax.vmap(lambda t: self.merge(self.merge_norm(t))))(x)
        return self.head(x.mean((0, 1)))


class BertLayer(nnx.Module):
    def __init__(self, dim, heads, hidden, rngs):
        self.attention = nnx.MultiHeadAttention(heads, dim, decode=False, rngs=rngs)
        self.norm1 = nnx.LayerNorm(dim, rngs=rngs)
        self.intermediate = nnx.Linear(dim, hidden, rngs=rngs)
        self.output = nnx.Linear(hidden, dim, rngs=rngs)
        self.norm2 = nnx.LayerNorm(dim, rngs=rngs)

    def __call__(self, x, mask):
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.output(nnx.gelu(self.intermediate(x))))


class BERT(nnx.Module):
    def __init__(self, rngs):
        self.tokens = nnx.Embed(11, 12, rngs=rngs)
        self.segments = nnx.Embed(2, 12, rngs=rngs)
        self.positions = nnx.Embed(6, 12, rngs=rngs)
        self.norm = nnx.LayerNorm(12, rngs=rngs)
        self.layers = nnx.List([BertLayer(12, 3, 10, rngs) for _ in range(2)])
        self.pooler = nnx.Linear(12, 8, rngs=rngs)
        self.classifier = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, batch):
        ids = batch["input_ids"]
        where = jnp.arange(ids.shape[1])
        x = self.tokens(ids) + self.positions(where) + self.segments(batch["token_type_ids"])
        x = self.norm(x)
        mask = batch["attention_mask"][:, None, None, :] > 0
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(jnp.tanh(self.pooler(x[:, 0])))

"""The Vision Transformer, as a Flax NNX module."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bmrjax.structure.sizes import ModuleSplit, sizes_of
from bmrjax.zoo.patches import count_patches, to_patches
from bmrjax.zoo.vit import EMBEDDING_SCALE, check_heads


def _linear(size: int, out_size: int, *, gain: float = 1.0, rngs: nnx.Rngs) -> nnx.Linear:
    draw = jax.nn.initializers.variance_scaling(gain, "fan_in", "normal")
    return nnx.Linear(size, out_size, kernel_init=draw, rngs=rngs)


def _norm(width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # As in Equinox: the same epsilon, and a variance that does not cancel in float32.
    return nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)


class NNXAttention(nnx.Module):
    """Multi-head self-attention; `bmrjax.zoo.vit.Attention` in Flax NNX.

    Kernels are transposed here: columns of query, key and value are grouped by head, and rows of
    the output.

    Args:
        width: Features of a token.
        heads: Number of heads; divides `width`.
        rngs: Source of the initial weights.
    """

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        check_heads(width, heads)
        self.query: nnx.Linear = _linear(width, width, rngs=rngs)
        self.key: nnx.Linear = _linear(width, width, rngs=rngs)
        self.value: nnx.Linear = _linear(width, width, rngs=rngs)
        self.output: nnx.Linear = _linear(width, width, rngs=rngs)
        self.heads = heads

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Let every token attend to all tokens of its image."""
        batch, tokens, _ = x.shape
        query, key, value = (
            layer(x).reshape(batch, tokens, self.heads, -1)
            for layer in (self.query, self.key, self.value)
        )
        mixed = jax.nn.dot_product_attention(query, key, value)
        return self.output(mixed.reshape(batch, tokens, -1))


@sizes_of("bmrjax.zoo.nnx_vit.NNXAttention")
def _attention_sizes(old: Any, new: Any, split: ModuleSplit) -> dict[str, Any]:
    del new
    width = old.query.kernel.shape[1]
    return {"heads": split("query.kernel", 1, (old.heads, width // old.heads))[0]}


class NNXFeedForward(nnx.Module):
    """Linear, GELU, linear; `bmrjax.zoo.feed_forward.FeedForward` in Flax NNX.

    Args:
        size: Number of inputs and of outputs.
        hidden: Width of the hidden layer.
        dropout: Probability of dropping an output of either layer while training.
        rngs: Source of the initial weights and of dropout.
    """

    def __init__(self, size: int, hidden: int, *, dropout: float, rngs: nnx.Rngs):
        self.hidden: nnx.Linear = _linear(size, hidden, gain=2.0, rngs=rngs)
        self.output: nnx.Linear = _linear(hidden, size, rngs=rngs)
        self.dropout: nnx.Dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Float[Array, "batch tokens size"]) -> Float[Array, "batch tokens size"]:
        """Apply to every token."""
        x = self.dropout(jax.nn.gelu(self.hidden(x)))
        return self.dropout(self.output(x))


class NNXTransformerBlock(nnx.Module):
    """Attention and a perceptron; `bmrjax.zoo.vit.TransformerBlock` in Flax NNX.

    Args:
        width: Features of a token.
        heads: Number of attention heads; divides `width`.
        hidden: Width of the perceptron's hidden layer.
        dropout: Probability of dropping an output of the attention or of a perceptron's layer
            while training.
        rngs: Source of the initial weights and of dropout.
    """

    def __init__(self, width: int, heads: int, hidden: int, *, dropout: float, rngs: nnx.Rngs):
        self.attention_norm: nnx.LayerNorm = _norm(width, rngs)
        self.attention: NNXAttention = NNXAttention(width, heads, rngs=rngs)
        self.mlp_norm: nnx.LayerNorm = _norm(width, rngs)
        self.mlp: NNXFeedForward = NNXFeedForward(width, hidden, dropout=dropout, rngs=rngs)
        self.dropout: nnx.Dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Apply to the tokens of a batch of images."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.mlp(self.mlp_norm(x))


class NNXViT(nnx.Module):
    """A Vision Transformer on batches of images; the network of `bmrjax.zoo.ViT` in Flax NNX.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        image_size: Side of a square image, or (height, width), in pixels; 28×28 is padded to 32×32.
        patch: Side of a patch, in pixels; divides both sides of the image.
        depth: Number of blocks.
        width: Features of a token.
        heads: Attention heads of a block; divides `width`.
        hidden: Width of the hidden layer of a block's perceptron.
        dropout: Probability of dropping an activation while training.
        rngs: Source of the initial weights and of dropout.

    Raises:
        ValueError: If the patches do not tile the image, or `heads` does not divide `width`.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from bmrjax import zoo
        >>> network = zoo.NNXViT(image_size=8, depth=1, width=8, heads=2, hidden=8, rngs=nnx.Rngs(0))
        >>> network(jnp.ones((3, 1, 8, 8))).shape
        (3, 10)
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_size: int = 10,
        *,
        image_size: int | tuple[int, int] = 32,
        patch: int = 4,
        depth: int = 6,
        width: int = 256,
        heads: int = 8,
        hidden: int = 512,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        num_patches = count_patches(image_size, patch)
        draw = jax.nn.initializers.normal(EMBEDDING_SCALE)
        self.patches: nnx.Linear = _linear(patch * patch * in_channels, width, rngs=rngs)
        self.class_token: nnx.Embed = nnx.Embed(1, width, embedding_init=draw, rngs=rngs)
        self.positions: nnx.Embed = nnx.Embed(
            1 + num_patches, width, embedding_init=draw, rngs=rngs
        )
        self.blocks = nnx.List(
            [
                NNXTransformerBlock(width, heads, hidden, dropout=dropout, rngs=rngs)
                for _ in range(depth)
            ]
        )
        self.norm: nnx.LayerNorm = _norm(width, rngs)
        self.head: nnx.Linear = _linear(width, out_size, rngs=rngs)
        self.dropout: nnx.Dropout = nnx.Dropout(dropout, rngs=rngs)
        self.image_size = image_size
        self.patch: int = patch

    def __call__(
        self, x: Float[Array, "batch channels height width"]
    ) -> Float[Array, "batch out_size"]:
        """Apply to a batch of images."""
        tokens = self.patches(to_patches(x, self.image_size, self.patch))
        first = self.class_token.embedding[...][None]
        first = jnp.broadcast_to(first, (tokens.shape[0], *first.shape[1:]))
        tokens = jnp.concatenate([first, tokens], axis=1) + self.positions.embedding[...][None]
        tokens = self.dropout(tokens)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens[:, 0]))

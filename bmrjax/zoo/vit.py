"""The Vision Transformer."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.structure.sizes import ModuleSplit, layer_weight, sizes_of
from bmrjax.zoo.feed_forward import FeedForward, on_rows
from bmrjax.zoo.patches import count_patches, to_patches
from bmrjax.zoo.scaled_init import scaled

# Standard deviation of the initial class token and position embeddings, as is usual.
EMBEDDING_SCALE = 0.02


def check_heads(width: int, heads: int) -> None:
    """Refuse heads that do not divide the width."""
    if heads < 1 or width % heads:
        raise ValueError(f"Attention: {heads} heads do not divide a width of {width}.")


class Attention(eqx.Module):
    """Multi-head self-attention with a linear layer each for query, key, value and output.

    The rows of the query, key and value weights are grouped by head, ``(heads · head_size,
    width)``, and so are the columns of the output weight: head h owns ``[h · head_size,
    (h + 1) · head_size)``. The softmax is computed in float32 at least. The bias of the keys moves
    every logit of a query alike, so the softmax cancels it; it is there because the published
    architecture has it.

    Args:
        width: Features of a token.
        heads: Number of heads; divides `width`.
        key: Source of the initial weights.

    Raises:
        ValueError: If `heads` does not divide `width`.
    """

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: Array):
        check_heads(width, heads)
        self.query, self.key, self.value, self.output = (
            scaled(eqx.nn.Linear, width, width, key=k) for k in jax.random.split(key, 4)
        )
        self.heads = heads

    def __call__(self, x: Float[Array, "tokens width"]) -> Float[Array, "tokens width"]:
        """Let every token attend to all tokens."""
        tokens = x.shape[0]
        query, key, value = (
            on_rows(layer, x).reshape(tokens, self.heads, -1)
            for layer in (self.query, self.key, self.value)
        )
        mixed = jax.nn.dot_product_attention(query, key, value)
        return on_rows(self.output, mixed.reshape(tokens, -1))


@sizes_of("bmrjax.zoo.vit.Attention")
def _attention_sizes(old: Any, new: Any, split: ModuleSplit) -> dict[str, Any]:
    del new
    width = layer_weight(old.query).shape[0]
    return {"heads": split("query.weight", 0, (old.heads, width // old.heads))[0]}


class TransformerBlock(eqx.Module):
    """Attention and a two-layer perceptron, each after a LayerNorm and around it a skip.

    Args:
        width: Features of a token.
        heads: Number of attention heads; divides `width`.
        hidden: Width of the perceptron's hidden layer.
        dropout: Probability of dropping an output of the attention or of a perceptron's layer
            while training.
        exact_gelu: See `FeedForward`.
        norm_eps: What a LayerNorm adds to the variance.
        key: Source of the initial weights.
    """

    attention_norm: eqx.nn.LayerNorm
    attention: Attention
    mlp_norm: eqx.nn.LayerNorm
    mlp: FeedForward
    dropout: eqx.nn.Dropout

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        dropout: float,
        exact_gelu: bool,
        norm_eps: float,
        key: Array,
    ):
        keys = jax.random.split(key)
        self.attention_norm = eqx.nn.LayerNorm(width, norm_eps)
        self.attention = Attention(width, heads, key=keys[0])
        self.mlp_norm = eqx.nn.LayerNorm(width, norm_eps)
        self.mlp = FeedForward(width, hidden, dropout=dropout, exact_gelu=exact_gelu, key=keys[1])
        self.dropout = eqx.nn.Dropout(dropout)

    def __call__(
        self, x: Float[Array, "tokens width"], *, key: Array | None = None
    ) -> Float[Array, "tokens width"]:
        """Apply to the tokens of one image."""
        keys = (None, None) if key is None else jax.random.split(key)
        x = x + self.dropout(self.attention(jax.vmap(self.attention_norm)(x)), key=keys[0])
        return x + self.mlp(jax.vmap(self.mlp_norm)(x), key=keys[1])


class ViT(eqx.Module):
    """A Vision Transformer: patches, a class token, position embeddings, pre-norm blocks, a head.

    Images of 28×28 are padded to 32×32, as `LeNet5` does, so ``image_size=28`` and
    ``image_size=32`` build the same network. Dropout follows the position embeddings and every
    linear layer of a block but query, key and value.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        image_size: Side of a square image, or (height, width), in pixels.
        patch: Side of a patch, in pixels; divides both sides of the image.
        depth: Number of blocks.
        width: Features of a token.
        heads: Attention heads of a block; divides `width`.
        hidden: Width of the hidden layer of a block's perceptron.
        dropout: Probability of dropping an activation while training.
        exact_gelu: Whether the GELU has the error function in it instead of an approximation by tanh.
        norm_eps: What a LayerNorm adds to the variance.
        key: Source of the initial weights.

    Raises:
        ValueError: If the patches do not tile the image, or `heads` does not divide `width`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import zoo
        >>> network = zoo.ViT(image_size=8, depth=1, width=8, heads=2, hidden=8, key=jax.random.key(0))
        >>> network(jnp.ones((1, 8, 8))).shape
        (10,)

    References:
        Dosovitskiy et al. (2021), equations 1 to 4 and Appendix B.1 (dropout); Marković, Friston
        and Kiebel (2024), Appendix A: the defaults.
    """

    patches: eqx.nn.Linear
    class_token: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: list[TransformerBlock]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    image_size: int | tuple[int, int] = eqx.field(static=True)
    patch: int = eqx.field(static=True)

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
        exact_gelu: bool = False,
        norm_eps: float = 1e-5,
        key: Array,
    ):
        num_patches = count_patches(image_size, patch)
        patch_key, token_key, position_key, head_key, *block_keys = jax.random.split(key, 4 + depth)
        self.patches = scaled(eqx.nn.Linear, patch * patch * in_channels, width, key=patch_key)
        self.class_token = eqx.nn.Embedding(
            weight=EMBEDDING_SCALE * jax.random.normal(token_key, (1, width))
        )
        self.positions = eqx.nn.Embedding(
            weight=EMBEDDING_SCALE * jax.random.normal(position_key, (1 + num_patches, width))
        )
        self.blocks = [
            TransformerBlock(
                width,
                heads,
                hidden,
                dropout=dropout,
                exact_gelu=exact_gelu,
                norm_eps=norm_eps,
                key=k,
            )
            for k in block_keys
        ]
        self.norm = eqx.nn.LayerNorm(width, norm_eps)
        self.head = scaled(eqx.nn.Linear, width, out_size, key=head_key)
        self.dropout = eqx.nn.Dropout(dropout)
        self.image_size, self.patch = image_size, patch

    def __call__(
        self, x: Float[Array, "channels height width"], *, key: Array | None = None
    ) -> Float[Array, " out_size"]:
        """Apply to one image."""
        keys = [None] * (1 + len(self.blocks))
        if key is not None:
            keys = list(jax.random.split(key, len(keys)))
        tokens = on_rows(self.patches, to_patches(x, self.image_size, self.patch))
        tokens = jnp.concatenate([self.class_token.weight, tokens]) + self.positions.weight
        tokens = self.dropout(tokens, key=keys[0])
        for block, k in zip(self.blocks, keys[1:], strict=True):
            tokens = block(tokens, key=k)
        return self.head(self.norm(tokens[0]))

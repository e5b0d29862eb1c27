"""The MLP-Mixer."""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from bmrjax.zoo.feed_forward import FeedForward, on_rows
from bmrjax.zoo.patches import count_patches, to_patches
from bmrjax.zoo.scaled_init import scaled


class MixerBlock(eqx.Module):
    """A perceptron across the patches and one across the channels, each pre-norm with a skip.

    The output bias of the token mixing adds a constant to all channels of a patch, which every
    later LayerNorm takes out; it is there because the published architecture has it.

    Args:
        num_patches: Number of patches.
        width: Channels of a patch.
        token_hidden: Hidden width of the perceptron across the patches.
        channel_hidden: Hidden width of the perceptron across the channels.
        key: Source of the initial weights.
    """

    token_norm: eqx.nn.LayerNorm
    token_mlp: FeedForward
    channel_norm: eqx.nn.LayerNorm
    channel_mlp: FeedForward

    def __init__(
        self, num_patches: int, width: int, token_hidden: int, channel_hidden: int, *, key: Array
    ):
        keys = jax.random.split(key)
        self.token_norm = eqx.nn.LayerNorm(width)
        self.token_mlp = FeedForward(num_patches, token_hidden, key=keys[0])
        self.channel_norm = eqx.nn.LayerNorm(width)
        self.channel_mlp = FeedForward(width, channel_hidden, key=keys[1])

    def __call__(self, x: Float[Array, "patches width"]) -> Float[Array, "patches width"]:
        """Apply to the patches of one image."""
        x = x + self.token_mlp(jax.vmap(self.token_norm)(x).T).T
        return x + self.channel_mlp(jax.vmap(self.channel_norm)(x))


class MLPMixer(eqx.Module):
    """An MLP-Mixer: patches, blocks that mix patches and channels, mean over the patches, a head.

    Images of 28×28 are padded to 32×32, as `LeNet5` does, so ``image_size=28`` and
    ``image_size=32`` build the same network.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        out_size: Number of outputs.
        image_size: Side of a square image, or (height, width), in pixels.
        patch: Side of a patch, in pixels; divides both sides of the image.
        depth: Number of blocks.
        width: Channels of a patch (C in the papers).
        token_hidden: Hidden width of the perceptrons across the patches (D_S).
        channel_hidden: Hidden width of the perceptrons across the channels (D_C).
        key: Source of the initial weights.

    Raises:
        ValueError: If the patches do not tile the image.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import zoo
        >>> network = zoo.MLPMixer(image_size=8, depth=1, width=8, key=jax.random.key(0))
        >>> network(jnp.ones((1, 8, 8))).shape
        (10,)

    References:
        Tolstikhin et al. (2021), equation 1; Marković, Friston and Kiebel (2024), Appendix A: the
        defaults.
    """

    patches: eqx.nn.Linear
    blocks: list[MixerBlock]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
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
        token_hidden: int = 512,
        channel_hidden: int = 512,
        key: Array,
    ):
        num_patches = count_patches(image_size, patch)
        patch_key, head_key, *block_keys = jax.random.split(key, 2 + depth)
        self.patches = scaled(eqx.nn.Linear, patch * patch * in_channels, width, key=patch_key)
        self.blocks = [
            MixerBlock(num_patches, width, token_hidden, channel_hidden, key=k) for k in block_keys
        ]
        self.norm = eqx.nn.LayerNorm(width)
        self.head = scaled(eqx.nn.Linear, width, out_size, key=head_key)
        self.image_size, self.patch = image_size, patch

    def __call__(self, x: Float[Array, "channels height width"]) -> Float[Array, " out_size"]:
        """Apply to one image."""
        x = on_rows(self.patches, to_patches(x, self.image_size, self.patch))
        for block in self.blocks:
            x = block(x)
        return self.head(jax.vmap(self.norm)(x).mean(axis=0))

"""Images cut into patches."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def padded_size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) after padding: 32×32 for 28×28, any other size as it is."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return (32, 32) if (height, width) == (28, 28) else (height, width)


def count_patches(image_size: int | tuple[int, int], patch: int) -> int:
    """Return how many square patches an image has, after padding 28×28 to 32×32.

    Args:
        image_size: Side of a square image, or (height, width), in pixels.
        patch: Side of a patch, in pixels.

    Returns:
        Number of patches.

    Raises:
        ValueError: If the patches do not tile the image.

    Example:
        >>> count_patches(28, 4), count_patches((8, 16), 4)
        (64, 8)
    """
    height, width = padded_size(image_size)
    if patch < 1 or height < 1 or width < 1 or height % patch or width % patch:
        padding = ", the size to which 28×28 is padded" if (height, width) == (32, 32) else ""
        raise ValueError(
            f"Patches of {patch}×{patch} do not tile images of {height}×{width}{padding}. Choose a "
            "patch that divides both sides."
        )
    return (height // patch) * (width // patch)


def to_patches(
    x: Float[Array, "*batch channels height width"],
    image_size: int | tuple[int, int],
    patch: int,
) -> Float[Array, "*batch patches features"]:
    """Cut images into square patches, row by row, each flattened to patch · patch · channels.

    Args:
        x: One image or a batch; images of 28×28 are padded with zeros to 32×32.
        image_size: The size that images must have after padding.
        patch: Side of a patch, in pixels; divides both sides.

    Raises:
        ValueError: For images of another size.

    Example:
        >>> import jax.numpy as jnp
        >>> to_patches(jnp.arange(16.0).reshape(1, 4, 4), 4, 2)[1]
        Array([2., 3., 6., 7.], dtype=float32)
    """
    *batch, channels, height, width = x.shape
    expected = padded_size(image_size)
    if padded_size((height, width)) != expected:
        also = " or 28×28" if expected == (32, 32) else ""
        raise ValueError(
            f"The network was built for images of {expected[0]}×{expected[1]}{also}, got "
            f"{height}×{width}. Give image_size=({height}, {width}) when building it."
        )
    if (height, width) != expected:
        x = jnp.pad(x, (*[(0, 0)] * (x.ndim - 2), (2, 2), (2, 2)))
        height, width = expected
    x = x.reshape(*batch, channels, height // patch, patch, width // patch, patch)
    # To (…, row, column, y, x, channel).
    x = jnp.moveaxis(x, (-4, -2, -3, -1, -5), (-5, -4, -3, -2, -1))
    return x.reshape(*batch, -1, patch * patch * channels)

"""Max pooling whose gradient is fast on a CPU."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


@jax.custom_jvp
def halve(x: Float[Array, "channels height width"]) -> Float[Array, "channels rows columns"]:
    """Return the largest of each 2×2 pixels; an odd last row or column is left out.

    The value is that of `jax.lax.reduce_window`. Its own gradient looks through every window for the
    largest again, and takes longer than a convolution on a CPU; this one compares four shifted images. Of
    equal pixels each gets a part of the gradient.

    Args:
        x: An image.
    """
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID")


@halve.defjvp
def _halve_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return jax.jvp(_shifted, primals, tangents)


def _shifted(x: Array) -> Array:
    rows, columns = (2 * (n // 2) for n in x.shape[1:])
    a, b, c, d = (x[:, i:rows:2, j:columns:2] for i in (0, 1) for j in (0, 1))
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


class HalvingMaxPool2d(eqx.nn.MaxPool2d):
    """`equinox.nn.MaxPool2d` over 2×2 pixels with stride 2; see `halve`."""

    def __init__(self) -> None:
        super().__init__(kernel_size=2, stride=2)

    def __call__(
        self, x: Float[Array, "channels height width"], *, key: Array | None = None
    ) -> Float[Array, "channels rows columns"]:
        """Apply to one image."""
        del key
        return halve(x)

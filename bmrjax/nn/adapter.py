"""What `random_module` needs to know of a network library."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.priors.layer import Tensor

Values = Mapping[str, Mapping[str, Array]]


class Adapter(Protocol):
    """What `random_module` needs to know of a network library; one file per library."""

    def layers(self) -> dict[str, tuple[str, dict[str, Tensor]]]:
        """Return layer path to (kind, tensors), in the order of the network."""
        ...

    def buffers(self) -> dict[str, Array]:
        """Return running statistics by name; empty for a network without any."""
        ...

    def build(self, values: Values) -> Any:
        """Return the network with `values` in place of its own tensors."""
        ...

    def whole(self, values: Values, buffers: Mapping[str, Array]) -> Any:
        """Return the network as it was given, with these tensors and running statistics."""
        ...

    def apply(
        self,
        values: Values,
        buffers: Mapping[str, Array],
        args: tuple[Array, ...],
        *,
        inference: bool,
        key: Array | None,
    ) -> tuple[Any, dict[str, Array]]:
        """Run the network on a batch; return the outputs and the new running statistics."""
        ...


def check_tensor(name: str, path: str, value: Any) -> bool:
    """Say whether an array becomes random; refuse what cannot.

    Args:
        name: The name given to `random_module`.
        path: Where the array is in the network.
        value: The array.

    Returns:
        True for floating arrays, False for integers, booleans and PRNG keys.

    Raises:
        TypeError: For complex or reduced-precision arrays that no real-valued prior can draw.
    """
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return False
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(
            f"random_module('{name}'): layer '{path}' holds a complex array ({value.dtype}), which a real "
            "prior cannot draw. Split it into real and imaginary parts."
        )
    return bool(jnp.issubdtype(value.dtype, jnp.floating))

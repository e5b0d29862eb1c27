"""Groups of elements that are kept or removed together."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """Which group each element of each site is in. For a factorised posterior, ΔF adds over a group.

    Args:
        ids: Site name to the number of each element's group, from 0, shaped as the site. A group may
            reach over several sites, such as a row of weights and its bias.
        count: How many groups there are.

    Raises:
        ValueError: For numbers outside of 0 … count - 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria
        >>> row = jnp.arange(2)
        >>> units = criteria.Groups({"weight": jnp.tile(row[:, None], (1, 3)), "bias": row}, 2)
        >>> units.sum({"weight": jnp.ones((2, 3)), "bias": jnp.array([10.0, 20.0])})
        Array([13., 23.], dtype=float32)
    """

    ids: Mapping[str, Int[Array, "..."]]
    count: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        for name, ids in self.ids.items():
            if not isinstance(ids, np.ndarray | jax.Array) or isinstance(ids, Tracer):
                continue  # a transformation is rebuilding the tree
            numbers = np.asarray(ids)
            if numbers.size and not (0 <= numbers.min() and numbers.max() < self.count):
                raise ValueError(
                    f"Groups: the groups of '{name}' are numbered {numbers.min()} to {numbers.max()}; "
                    f"with count={self.count} they must be within 0 and {self.count - 1}."
                )

    def sum(self, values: Mapping[str, Float[Array, "..."]]) -> Float[Array, " count"]:
        """Add the values of each group.

        Args:
            values: Site name to values, shaped as the sites.
        """
        total = jnp.zeros(self.count, jnp.result_type(*values.values()))
        for name, value in values.items():
            total = total.at[self._of(name, value.shape)].add(value)
        return total

    def any(self, flags: Mapping[str, Bool[Array, "..."]]) -> Bool[Array, " count"]:
        """Say for each group whether any of its elements is flagged.

        Args:
            flags: Site name to flags, shaped as the sites.
        """
        found = jnp.zeros(self.count, bool)
        for name, flag in flags.items():
            found = found.at[self._of(name, flag.shape)].max(flag)
        return found

    def spread(
        self, values: Float[Array, " count"] | Bool[Array, " count"], like: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Give each element the value of its group.

        Args:
            values: One value per group.
            like: Site name to an array shaped as the site.
        """
        return {name: values[self._of(name, array.shape)] for name, array in like.items()}

    def _of(self, name: str, shape: tuple[int, ...]) -> Int[Array, "..."]:
        if name not in self.ids:
            raise ValueError(f"Groups: no groups for the site '{name}'; give each site its own.")
        if self.ids[name].shape != shape:
            raise ValueError(
                f"Groups: the groups of '{name}' have shape {self.ids[name].shape}, the site {shape}."
            )
        return self.ids[name]

"""Options of a reduction by whole units."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class UnitOptions:
    """How units are removed from a trained network.

    Args:
        limits: Least share of the units that stay, by the path of the array that makes them, such as
            ``{"layers.0.*": 0.5}`` for the neurons of the first layer.
        round_to: The number of units that stay in a layer is a multiple of this where some are removed.

    Raises:
        ValueError: For a share that is not between 0 and 1, or a `round_to` that is not a positive integer.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> noise = 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> data = x, jax.vmap(network)(x) + noise
        >>> units = bmr.trained.UnitOptions(limits={"layers.0.*": 0.5}, round_to=2)
        >>> found = bmr.reduce_network(network, data, units=units, keep=0.6)
        >>> found.network.layers[0].weight.shape
        (4, 3)
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    round_to: int = 1

    def __post_init__(self) -> None:
        for pattern, share in self.limits.items():
            if not 0 <= share <= 1:
                raise ValueError(
                    f"UnitOptions: limits are least shares between 0 and 1, got {share} for {pattern!r}."
                )
        count = self.round_to
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"UnitOptions: round_to is a positive integer, got {count!r}.")

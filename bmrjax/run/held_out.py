"""Data kept out of a fit, and how often it is evaluated on them."""

from dataclasses import dataclass
from typing import Any

from bmrjax.infer.arguments import Data


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Data kept out of the training, and when the metrics on them are taken.

    Used for reporting only, unless the schedule's `judge` is ``"held-out"``: the metrics stand in
    `Result.history`, in the points of `Result.path` and in `Result.metrics`. `sparsify` and `ensemble` take
    it as ``held_out=``, or the data alone.

    Attributes:
        data: Data like those that the program is fitted on.
        samples: Posterior samples of the metrics of the history and of the path, and of what judges rounds.
        every: Epochs between them; by default so many that they cost under a tenth of the training, counted
            in passes through the network. Points of the path have them too.
        final_samples: Posterior samples of the metrics at the end.

    Raises:
        ValueError: For fewer than one sample or epoch.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> x, y = jnp.ones((20, 3)), jnp.zeros(20)
        >>> bmr.HeldOut((x, y), every=5).samples
        5
    """

    data: Data
    samples: int = 5
    every: int | None = None
    final_samples: int = 100

    def __post_init__(self) -> None:
        for name in ("samples", "every", "final_samples"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(f"HeldOut: {name} must be at least 1, got {value}.")


def as_held_out(given: Any) -> HeldOut | None:
    """Return data that were given with or without a `HeldOut` around them."""
    return given if given is None or isinstance(given, HeldOut) else HeldOut(given)

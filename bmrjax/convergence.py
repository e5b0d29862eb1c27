"""When a fit has converged, evaluated on the device between two steps."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@dataclass(frozen=True)
class Settled:
    """The mean VFE of `window` steps is no longer below that of the `window` steps before them.

    Asked every `window` steps, from the second window on. "Below" is by more than the standard error
    of the difference of the two means, which the noise of minibatches and samples sets, and by more
    than `tolerance`.

    Args:
        window: Steps averaged on either side.
        tolerance: Least fall that counts, nats per data point.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.infer import Settled
        >>> falling = jnp.linspace(2.0, 1.0, 20)
        >>> settled = Settled(window=10)
        >>> bool(settled(falling, jnp.int32(20))), bool(settled(0 * falling, jnp.int32(20)))
        (False, True)
    """

    window: int = 1000
    tolerance: float = 5e-4

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"Settled: window must be at least 2 steps, got {self.window}.")
        if not self.tolerance >= 0:
            raise ValueError(f"Settled: tolerance must be at least 0, got {self.tolerance}.")

    def __call__(self, losses: Float[Array, " steps"], step: Array) -> Bool[Array, ""]:
        """Say whether the fit has settled.

        Args:
            losses: VFE of each step, nats per data point; NaN where it was skipped.
            step: Steps taken so far.
        """
        window = self.window
        if losses.shape[0] < 2 * window:
            return jnp.zeros((), bool)
        begin = jnp.maximum(step - 2 * window, 0)
        both = jax.lax.dynamic_slice_in_dim(losses, begin, 2 * window).reshape(2, window)
        before, recent = jnp.nanmean(both, 1)
        error = jnp.sqrt(jnp.sum(jnp.nanvar(both, 1)) / window)
        settled = before - recent <= jnp.maximum(error, self.tolerance)
        return settled & (step >= 2 * window) & (step % window == 0)

"""Batch normalisation of the zoo."""

import equinox as eqx
import jax.numpy as jnp

# So many batches that Equinox divides its running statistics by one, also in float64.
SETTLED = 1_000_000


def batch_norm(size: int) -> eqx.nn.BatchNorm:
    """Return a layer whose running statistics are used as they are, as elsewhere.

    Equinox divides them by 1 - momentum^batches. Right for a mean that started at zero, that makes the
    variance, which starts at one, a hundred times too large after the first batch, and it would multiply
    statistics from a weight file likewise. The momentum is 0.9, so what they start from is soon forgotten.

    Args:
        size: Number of channels.
    """
    norm = eqx.nn.BatchNorm(size, "batch", momentum=0.9, mode="batch")
    count = eqx.nn.StateIndex(jnp.asarray(SETTLED))
    return eqx.tree_at(lambda n: n.batch_counter, norm, count)

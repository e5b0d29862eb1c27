"""Which observed values count, in a program with masks on its likelihood."""

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool


def counted_values(fn: Any, shape: tuple[int, ...]) -> Bool[Array, "..."] | None:
    """Return which values of an observed site its masks leave in the log density; None without masks.

    Args:
        fn: Its distribution, with the masks of `numpyro.handlers.mask` and of ``obs_mask=``.
        shape: Of its values.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist
        >>> from bmrjax.infer.masked_values import counted_values
        >>> fn = dist.Normal(jnp.zeros((2, 2)), 1.0).to_event(1).mask(jnp.array([True, False]))
        >>> counted_values(fn, (2, 2)).tolist()
        [[True, True], [False, False]]
    """
    found = None
    while hasattr(fn, "base_dist"):
        if isinstance(fn, dist.MaskedDistribution) and fn._mask is not True:
            mask = jnp.asarray(fn._mask, bool)
            mask = jnp.broadcast_to(mask.reshape(mask.shape + (1,) * fn.event_dim), shape)
            found = mask if found is None else found & mask
        fn = fn.base_dist
    return found

"""Which elements are removed first where a round is capped."""

from collections.abc import Mapping
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.criteria.base import Decision, Sites


class Order(Protocol):
    """Which of the elements that a criterion would remove are removed first when a round is capped.

    Example:
        An order of one's own, for a schedule: the least certain first.

        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction, schedules
        >>> def widest_first(posterior, decision):
        ...     return {name: 1 / q.scale for name, q in posterior.items()}
        >>> q = {"w": reduction.Normal(jnp.array([1.0, 1.0]), jnp.array([0.5, 0.25]))}
        >>> widest_first(q, criteria.Decision({}, {}))["w"]
        Array([2., 4.], dtype=float32)
        >>> schedule = schedules.Verified(order=widest_first)
    """

    def __call__(self, posterior: Sites, decision: Decision) -> Mapping[str, Array]:
        """Return a non-negative score per element, by site; the smallest are removed first."""
        ...


def smallest_snr_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the signal-to-noise ratio, mean over standard deviation, of the posterior.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.5, 1.0]), jnp.array([0.1, 0.5]))}
        >>> criteria.smallest_snr_first(q, criteria.Decision({}, {}))["w"]  # the second is removed first
        Array([5., 2.], dtype=float32)
    """
    del decision
    return {name: q.snr for name, q in posterior.items()}


def smallest_magnitude_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the size of the mean in units of the site: what a removal moves in the function.

    Under `priors.Flat` the site holds the standardised weight, so layers compare; with ``collapsed=True`` it
    holds the weight itself.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.5, -1.0]), jnp.array([0.1, 0.5]))}
        >>> criteria.smallest_magnitude_first(q, criteria.Decision({}, {}))["w"]  # the first is removed first
        Array([0.5, 1. ], dtype=float32)
    """
    del decision
    return {name: q.magnitude for name, q in posterior.items()}


def largest_delta_f_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the evidence that a removal is predicted to gain.

    This takes precisely known small weights first, which act together; the other orders end
    sparser.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria
        >>> decision = criteria.Decision({}, {"w": jnp.array([2.0, 5.0, -40.0])})
        >>> criteria.largest_delta_f_first({}, decision)["w"].round(1)  # the second is removed first
        Array([ 0.90000004,  0.7       , 12.2       ], dtype=float32)
    """
    del posterior
    return {name: jnp.exp(-jnp.maximum(df, -80.0) / 16.0) for name, df in decision.delta_f.items()}

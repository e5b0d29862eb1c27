"""Which elements are removed first where a round is capped."""

from collections.abc import Mapping
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.criteria.base import Decision
from bmrjax.criteria.in_turn import has_turns, in_turn
from bmrjax.criteria.site_posteriors import SitePosteriors


class Order(Protocol):
    """Which of the elements that a criterion would remove are removed first when a round is capped.

    Example:
        An order of one's own, for a schedule: the least certain first.

        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction, schedules
        >>> def widest_first(found, decision):
        ...     return {name: 1 / q.scale for name, q in found.posterior.items()}
        >>> q = {"w": reduction.Normal(jnp.array([1.0, 1.0]), jnp.array([0.5, 0.25]))}
        >>> widest_first(criteria.SitePosteriors(q, {}), criteria.Decision({}, {}))["w"]
        Array([2., 4.], dtype=float32)
        >>> schedule = schedules.Verified(order=widest_first)
    """

    def __call__(self, found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
        """Return a non-negative score per element, by site; the smallest are removed first."""
        ...


def smallest_snr_first(found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
    """Score by the signal-to-noise ratio, mean over standard deviation, of the posterior.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.5, 1.0]), jnp.array([0.1, 0.5]))}
        >>> found, decision = criteria.SitePosteriors(q, {}), criteria.Decision({}, {})
        >>> criteria.smallest_snr_first(found, decision)["w"]  # the second is removed first
        Array([5., 2.], dtype=float32)
    """
    del decision
    return {name: q.snr for name, q in found.posterior.items()}


def smallest_magnitude_first(found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
    """Score by the size of the mean in units of the site: what a removal moves in the function.

    Under `priors.Flat` the site holds the standardised weight, so layers compare; with ``collapsed=True`` it
    holds the weight itself.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.5, -1.0]), jnp.array([0.1, 0.5]))}
        >>> found, decision = criteria.SitePosteriors(q, {}), criteria.Decision({}, {})
        >>> criteria.smallest_magnitude_first(found, decision)["w"]  # the first is removed first
        Array([0.5, 1. ], dtype=float32)
    """
    del decision
    return {name: q.magnitude for name, q in found.posterior.items()}


def largest_delta_f_first(found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
    """Score by the evidence that a removal is predicted to gain.

    This takes precisely known small weights first, which act together; the other orders end
    sparser.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria
        >>> decision = criteria.Decision({}, {"w": jnp.array([2.0, 5.0, -40.0])})
        >>> found = criteria.SitePosteriors({}, {})
        >>> criteria.largest_delta_f_first(found, decision)["w"].round(1)  # the second is removed first
        Array([ 0.90000004,  0.7       , 12.2       ], dtype=float32)
    """
    del found
    return {name: jnp.exp(-jnp.maximum(df, -80.0) / 16.0) for name, df in decision.delta_f.items()}


def default_order(found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
    """Order as fits the posterior: in turn by the evidence where it is joint, else by magnitude.

    In the posterior of `infer.AutoMultivariate` the next element is the one whose removal gains the most
    evidence, or loses the least, given that those before it are removed. That is exact where the posterior
    is. The scores are turns, from 0 on. In other posteriors, with groups, and for more than 300 elements, it
    is `smallest_magnitude_first`.

    Example:
        Two coefficients of which the data know only the sum: one is removed first, and the other last.

        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.6, 0.5, 0.7]), jnp.array([0.8, 0.8, 0.4]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(3), jnp.ones(3))}
        >>> factors = {"w": jnp.array([[0.8, 0.0, 0.0], [-0.79, 0.1, 0.0], [0.0, 0.0, 0.4]])}
        >>> found = criteria.SitePosteriors(q, p, factors=factors)
        >>> criteria.default_order(found, criteria.Shrinkage()(found))["w"]
        Array([2., 0., 1.], dtype=float32)

    References:
        Friston and Penny (2011), NeuroImage 56, post hoc model selection, there over all subsets.
    """
    if not has_turns(found):
        return smallest_magnitude_first(found, decision)
    return in_turn(found, {name: ~keep for name, keep in decision.keep.items()})

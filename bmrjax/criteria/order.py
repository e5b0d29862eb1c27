"""Which elements are removed first where a round is capped."""

from collections.abc import Mapping
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.criteria.base import Decision, Sites


class Order(Protocol):
    """Which of the elements that a criterion would remove are removed first when a round is capped."""

    def __call__(self, posterior: Sites, decision: Decision) -> Mapping[str, Array]:
        """Return a non-negative score per element, by site; the smallest are removed first."""
        ...


def smallest_snr_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the signal-to-noise ratio, mean over standard deviation, of the posterior."""
    del decision
    return {name: q.snr for name, q in posterior.items()}


def smallest_magnitude_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the size of the mean in units of the site: what a removal moves in the function.

    Under `priors.Flat` the site holds the standardised weight, so layers compare.
    """
    del decision
    return {name: q.magnitude for name, q in posterior.items()}


def largest_delta_f_first(posterior: Sites, decision: Decision) -> Mapping[str, Array]:
    """Score by the evidence that a removal is predicted to gain.

    This takes precisely known small weights first, which act together; the other orders end
    sparser.
    """
    del posterior
    return {name: jnp.exp(-jnp.maximum(df, -80.0) / 16.0) for name, df in decision.delta_f.items()}

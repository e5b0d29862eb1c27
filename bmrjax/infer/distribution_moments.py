"""The mean and the variance of what a distribution predicts, or the probabilities of its classes."""

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from bmrjax.families import inside

_CLASSES = (
    dist.CategoricalLogits,
    dist.CategoricalProbs,
    dist.BernoulliLogits,
    dist.BernoulliProbs,
)


def is_probability(fn: Any) -> bool:
    """Return whether what a distribution predicts are classes, with a probability each."""
    return isinstance(_base(fn), _CLASSES)


def _base(fn: Any) -> Any:
    return inside(fn, (dist.ExpandedDistribution, dist.MaskedDistribution))


def of_classes(fn: Any) -> dict[str, Array]:
    """Return the class probabilities as mean and draw; a posterior sample leaves nothing to vary."""
    base = _base(fn)
    classes = jnp.shape(base.probs)[len(base.batch_shape) :]
    probs: Any = jnp.broadcast_to(base.probs, (*fn.batch_shape, *classes))
    if isinstance(base, dist.BernoulliLogits | dist.BernoulliProbs):
        probs = jnp.stack([1 - probs, probs], -1)
    return {"mean": probs, "draw": probs, "variance": jnp.zeros_like(probs)}


def moments_of(fn: Any) -> dict[str, Array]:
    """Return mean and variance where the distribution has both in closed form."""
    shape = fn.batch_shape + fn.event_shape
    try:
        moments = {"mean": jnp.asarray(fn.mean), "variance": jnp.asarray(fn.variance)}
    except NotImplementedError:
        return {}
    return {name: jnp.broadcast_to(value, shape) for name, value in moments.items()}

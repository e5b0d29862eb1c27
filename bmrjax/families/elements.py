"""Taking distributions apart into independent elements."""

import abc
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool
from numpyro.distributions import transforms


class NotElementwiseError(ValueError):
    """A distribution whose elements depend on each other where independent ones are needed."""


class Prunable(dist.Distribution):
    """A distribution over dependent elements that knows how single ones are removed."""

    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of a mask; ``batch_shape + event_shape``, unless a draw has more axes."""
        return self.batch_shape + self.event_shape

    @abc.abstractmethod
    def without(self, keep: Bool[Array, "..."]) -> dist.Distribution:
        """Return the distribution of the elements that stay; the others are zero.

        Args:
            keep: True stays; shaped as `element_shape`.
        """


def elementwise(fn: dist.Distribution) -> dist.Distribution:
    """Return `fn` with every event dimension turned into a batch dimension.

    Args:
        fn: A distribution over independent elements: a univariate one, or `Independent`,
            expanded, masked, transformed (elementwise) and delta forms of it.

    Returns:
        The same distribution with batch shape ``fn.batch_shape + fn.event_shape`` and no event
        dimension.

    Raises:
        NotElementwiseError: If the elements depend on each other.
    """
    if not fn.event_shape:
        return fn
    shape = fn.batch_shape + fn.event_shape
    if isinstance(fn, dist.Independent):
        return elementwise(fn.base_dist)
    if isinstance(fn, dist.ExpandedDistribution):
        return elementwise(fn.base_dist).expand(shape)
    if isinstance(fn, dist.MaskedDistribution):
        mask = jnp.reshape(fn._mask, jnp.shape(fn._mask) + (1,) * len(fn.event_shape))
        return elementwise(fn.base_dist).expand(shape).mask(jnp.broadcast_to(mask, shape))
    if isinstance(fn, dist.Delta):
        return dist.Delta(fn.v, event_dim=0)
    if isinstance(fn, dist.TransformedDistribution):
        parts = [_elementwise_transform(t) for t in fn.transforms]
        if all(part is not None for part in parts):
            return dist.TransformedDistribution(elementwise(fn.base_dist).expand(shape), parts)
    raise NotElementwiseError(
        f"the elements of {type(fn).__name__} depend on each other, so single ones cannot be removed"
    )


def _elementwise_transform(transform: Any) -> Any:
    if isinstance(transform, transforms.IndependentTransform):
        return _elementwise_transform(transform.base_transform)
    flat = transform.domain.event_dim == 0 and transform.codomain.event_dim == 0
    return transform if flat else None

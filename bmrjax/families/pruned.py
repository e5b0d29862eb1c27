"""NumPyro distributions with removed elements."""

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Bool
from numpyro.distributions.kl import kl_divergence

from bmrjax.families.base import divergence_of_elements, read, stored
from bmrjax.families.elements import NotElementwiseError, Prunable, elementwise


def drawn_once(msg: dict[str, Any]) -> dist.Distribution:
    """Return the distribution of a site with its `sample_shape`, which the site then has no more.

    The plates of NumPyro do the same.

    Args:
        msg: The site, before it is drawn.
    """
    if shape := tuple(msg["kwargs"].get("sample_shape", ())):
        msg["fn"] = msg["fn"].expand(shape + msg["fn"].batch_shape)
        msg["kwargs"]["sample_shape"] = ()
    return msg["fn"]


def pruned(fn: dist.Distribution, keep: Bool[Array, "..."], *, name: str) -> dist.Distribution:
    """Return `fn` without the elements that `keep` drops.

    Args:
        fn: A distribution over independent elements, or a `Prunable` one.
        keep: True stays; shaped as ``fn.batch_shape + fn.event_shape``.
        name: The site, for error messages.

    Raises:
        ValueError: For a mask that is not boolean or has another shape.
        NotElementwiseError: If the elements of `fn` depend on each other.
    """
    prunable = isinstance(fn, Prunable)
    shape = fn.element_shape if prunable else fn.batch_shape + fn.event_shape
    if keep.dtype != jnp.bool_:
        raise ValueError(
            f"prune: the mask of site '{name}' has dtype {keep.dtype}; give booleans, True = stays."
        )
    if keep.shape != shape:
        raise ValueError(
            f"prune: the mask of site '{name}' has shape {keep.shape}, the site has {shape} "
            "(plates, batch and event dimensions). Give one boolean an element."
        )
    if prunable:
        return fn.without(keep)
    try:
        base = elementwise(fn)
    except NotElementwiseError as error:
        raise NotElementwiseError(f"prune: site '{name}': {error}.") from None
    elements = PrunedElements(base.expand(shape), keep)
    return PrunedSite(elements, fn.event_dim) if fn.event_dim else elements


class PrunedElements(dist.Distribution):
    """Independent elements of which some are removed.

    A removed element is exactly zero, and adds nothing to the log density or to the
    Kullback-Leibler divergence. Its stored parameters get a gradient of exactly zero.
    """

    arg_constraints: dict[Any, Any] = {}
    pytree_data_fields: tuple[str, ...] = ("base_dist", "keep")

    def __init__(
        self,
        base_dist: dist.Distribution,
        keep: Bool[Array, "..."],
        *,
        validate_args: bool | None = None,
    ):
        self.base_dist = base_dist
        self.keep = keep
        super().__init__(base_dist.batch_shape, (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """The support of the elements that stay."""
        return self.base_dist.support

    @property
    def has_rsample(self) -> bool:
        """Whether samples are differentiable."""
        return self.base_dist.has_rsample

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw; removed elements are zero."""
        value: Any = self.base_dist.sample(key, sample_shape)
        return jnp.where(self.keep, value, jnp.zeros((), value.dtype))

    def sample_with_intermediates(
        self, key: Array, sample_shape: tuple[int, ...] = ()
    ) -> tuple[Array, list[Any]]:
        """Draw, with what `log_prob` can reuse."""
        value, intermediates = self.base_dist.sample_with_intermediates(key, sample_shape)
        return jnp.where(self.keep, value, jnp.zeros_like(value)), intermediates

    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Log density an element; zero where removed."""
        # A removed element is zero, which may lie outside the support or at a pole. It is
        # replaced before the density is taken, so that its gradient is zero, not NaN.
        support: Any = self.base_dist.support
        inside = support.feasible_like(value)
        safe = jnp.where(self.keep, value, inside)
        if intermediates:
            log_prob = self.base_dist.log_prob(safe, intermediates)
        else:
            log_prob = self.base_dist.log_prob(safe)
        return jnp.where(self.keep, log_prob, 0.0)

    @property
    def mean(self) -> Array:
        """Mean an element; zero where removed."""
        return jnp.where(self.keep, self.base_dist.mean, 0.0)

    @property
    def variance(self) -> Array:
        """Variance an element; zero where removed."""
        return jnp.where(self.keep, self.base_dist.variance, 0.0)


@kl_divergence.register(PrunedElements, PrunedElements)
def _kl_pruned(p: PrunedElements, q: PrunedElements) -> Array:
    keep = jnp.logical_and(p.keep, q.keep)
    if isinstance(p.base_dist, dist.Delta):
        return jnp.where(keep, -q.log_prob(p.base_dist.v), 0.0)
    divergence = divergence_of_elements(read(p.base_dist), p.base_dist, q.base_dist)
    return jnp.where(keep, divergence, 0.0)


class PrunedSite(dist.Independent):
    """The elements of a site, as one event."""


@kl_divergence.register(PrunedSite, PrunedSite)
def _kl_of_sites(p: PrunedSite, q: PrunedSite) -> Array:
    # NumPyro flattens what it sums, and an array that is parted over devices would be gathered for that.
    events = min(p.reinterpreted_batch_ndims, q.reinterpreted_batch_ndims)
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        return kl_divergence.dispatch(dist.Independent, dist.Independent)(p, q)
    return jnp.sum(kl_divergence(p.base_dist, q.base_dist), axis=tuple(range(-events, 0)))


@stored.register(PrunedElements)
def _(fn: PrunedElements) -> Any:
    return stored(fn.base_dist)

"""NumPyro distributions with removed elements, and the rules that make them exact."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Bool
from numpyro.distributions import transforms
from numpyro.distributions.kl import kl_divergence


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

    arg_constraints = {}
    pytree_data_fields = ("base_dist", "keep")

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
    ours, theirs = normal_parameters(p.base_dist), normal_parameters(q.base_dist)
    if ours is None or theirs is None:
        return jnp.where(keep, kl_divergence(p.base_dist, q.base_dist), 0.0)
    # The logarithms apart: that of an exponential costs nothing, and nothing overflows.
    (loc, scale), (prior_loc, prior_scale) = ours, theirs
    distance = ((loc - prior_loc) / prior_scale) ** 2 + (scale / prior_scale) ** 2
    return jnp.where(keep, 0.5 * (distance - 1.0) - jnp.log(scale) + jnp.log(prior_scale), 0.0)


class PrunedSite(dist.Independent):
    """The elements of a site, as one event."""


@kl_divergence.register(PrunedSite, PrunedSite)
def _kl_of_sites(p: PrunedSite, q: PrunedSite) -> Array:
    # NumPyro flattens what it sums, and an array that is parted over devices would be gathered for that.
    events = min(p.reinterpreted_batch_ndims, q.reinterpreted_batch_ndims)
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        return kl_divergence.dispatch(dist.Independent, dist.Independent)(p, q)
    return jnp.sum(kl_divergence(p.base_dist, q.base_dist), axis=tuple(range(-events, 0)))


def normal_parameters(fn: dist.Distribution) -> tuple[Array, Array] | None:
    """Return (loc, scale), shaped as the site, if `fn` is independent normals; else None.

    A normal under affine transforms, element by element, is a normal: N(m, s) becomes N(a + bm, |b|s).
    """
    parameters = stored_normal_parameters(fn)
    if parameters is None:
        return None
    shape = fn.batch_shape + fn.event_shape
    loc, scale = (jnp.broadcast_to(jnp.asarray(value), shape) for value in parameters)
    return loc, scale


def stored_normal_parameters(fn: dist.Distribution) -> tuple[Any, Any] | None:
    """Return (loc, scale) as `normal_parameters` does, but as they are stored.

    They are not broadcast to the shape of the site, and numbers of Python and NumPy stay what they are.
    """
    try:
        return _normal_parameters(elementwise(fn))
    except NotElementwiseError:
        return None


def _normal_parameters(base: dist.Distribution) -> tuple[Any, Any] | None:
    """Return the parameters of a distribution without event dimensions."""
    while isinstance(base, dist.ExpandedDistribution | PrunedElements):
        base = base.base_dist
    if isinstance(base, dist.Normal):
        return base.loc, base.scale
    if not isinstance(base, dist.TransformedDistribution):
        return None
    kinds = transforms.AffineTransform | transforms.IdentityTransform
    affine = all(isinstance(transform, kinds) for transform in base.transforms)
    parameters = _normal_parameters(base.base_dist) if affine else None
    if parameters is None:
        return None
    loc, scale = parameters
    for transform in base.transforms:
        if isinstance(transform, transforms.AffineTransform):
            loc = transform.loc + transform.scale * loc
            scale = abs(transform.scale) * scale
    return loc, scale


def center(fn: dist.Distribution) -> Array | None:
    """Return a typical point of `fn`: a normal's mean, its image under a transform, a delta's point.

    Args:
        fn: A distribution of a guide.

    Returns:
        The point, shaped as the site, or None where the distribution has no such closed form.
    """
    if isinstance(fn, dist.Delta):
        return jnp.asarray(fn.v)
    if isinstance(fn, dist.TransformedDistribution):
        point = center(fn.base_dist)
        if point is None:
            return None
        for transform in fn.transforms:
            point = transform(point)
        return jnp.asarray(point)
    parameters = normal_parameters(fn)
    if parameters is not None:
        return parameters[0]
    try:
        return jnp.broadcast_to(jax.lax.stop_gradient(fn.mean), fn.batch_shape + fn.event_shape)
    except NotImplementedError:
        return None

"""What the library asks of a family of posteriors. Each question dispatches; each family's file answers."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool
from numpyro.distributions import transforms
from numpyro.distributions.kl import kl_divergence

from bmrjax.families.elements import NotElementwiseError, Prunable, elementwise


def read(fn: dist.Distribution) -> Any:
    """Return the family of a NumPyro distribution, with parameters shaped as the site; None if it has none.

    Args:
        fn: Independent elements, in plates, as one event, expanded or pruned.

    Returns:
        A class of `bmrjax.reduction`, such as `reduction.Normal`, with one parameter per element.

    Example:
        >>> import numpyro.distributions as dist
        >>> from bmrjax import families
        >>> families.read(dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        Normal(loc=Array([0., 0.], dtype=float32...), scale=Array([2., 2.], dtype=float32...))
        >>> families.read(dist.Cauchy(0.0, 1.0))
    """
    found = read_as_stored(fn)
    if found is None:
        return None
    shape = fn.element_shape if isinstance(fn, Prunable) else fn.batch_shape + fn.event_shape
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), shape), found)


def read_as_stored(fn: dist.Distribution) -> Any:
    """Return the family of a NumPyro distribution as `read` does, with parameters as they are stored.

    They are not broadcast to the shape of the site, and numbers of Python and NumPy stay what they are.
    """
    if own_density(fn):
        return None
    try:
        return stored(elementwise(fn))
    except NotElementwiseError:
        return stored(fn)


def own_density(fn: dist.Distribution) -> type | None:
    """Return the class, in `fn` or what it is made of, that has a log density of its own; None if none has.

    Such a subclass of a distribution, say of a normal one, is of another family than the distribution is.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist
        >>> from bmrjax.families import own_density
        >>> class Peaked(dist.Normal):
        ...     def log_prob(self, value):
        ...         return super().log_prob(value) - jnp.abs(value)
        >>> own_density(Peaked(jnp.zeros(2), 1.0).to_event(1)) is Peaked
        True
        >>> own_density(dist.Normal(0.0, 1.0)) is None
        True
    """
    part: Any = fn
    while isinstance(part, dist.Distribution):
        known = next(kind for kind in type(part).__mro__ if kind in stored.registry)
        if known is not object and getattr(known, "log_prob", None) is not type(part).log_prob:
            return type(part)
        part = getattr(part, "base_dist", None)
    return None


@functools.singledispatch
def stored(fn: Any) -> Any:
    """Return the family of a NumPyro distribution without event dimensions; None if it has none.

    Register the NumPyro distributions of a new family here; call `read` or `read_as_stored`.

    Args:
        fn: A NumPyro distribution.

    Example:
        >>> import numpyro.distributions as dist
        >>> from bmrjax import families
        >>> families.stored(dist.Normal(0.0, 2.0)), families.stored(dist.Cauchy(0.0, 1.0))
        (Normal(loc=0.0, scale=2.0), None)
    """
    del fn


@stored.register(dist.ExpandedDistribution)
def _(fn: Any) -> Any:
    return stored(fn.base_dist)


@stored.register(dist.Independent)
def _(fn: Any) -> Any:
    return stored(fn.base_dist)


@stored.register(dist.TransformedDistribution)
def _(fn: Any) -> Any:
    kinds = transforms.AffineTransform | transforms.IdentityTransform
    if not all(isinstance(transform, kinds) for transform in fn.transforms):
        return None
    found = stored(fn.base_dist)
    for transform in fn.transforms:
        if found is not None and isinstance(transform, transforms.AffineTransform):
            found = affine(found, transform.loc, transform.scale)
    return found


@functools.singledispatch
def affine(q: Any, loc: Any, scale: Any) -> Any:
    """Return the family of loc + scale z, where z is of the family `q`; None if that is another.

    Args:
        q: A class of `bmrjax.reduction`, with parameters as they are stored.
        loc: Of the transform.
        scale: Of the transform, of either sign.

    Example:
        >>> from bmrjax import families, reduction
        >>> families.affine(reduction.Normal(1.0, 2.0), 0.5, -3.0)
        Normal(loc=-2.5, scale=6.0)
        >>> families.affine(reduction.Gamma(2.0, 1.0), 0.5, 1.0) is None  # a shifted gamma is none
        True
    """
    del q, loc, scale


@functools.singledispatch
def location(q: Any) -> tuple[Any, Any] | None:
    """Return (location, scale) of a family on the real line that has both; None for any other.

    The location is the mean of each element, and it is zero where a prior shrinks elements towards zero.

    Args:
        q: A class of `bmrjax.reduction`.

    Example:
        >>> from bmrjax import families, reduction
        >>> families.location(reduction.Laplace(0.0, 2.0)), families.location(reduction.Gamma(2.0, 1.0))
        ((0.0, 2.0), None)
    """
    del q


class FamilyFacts(NamedTuple):
    """How tables and messages describe a family.

    Attributes:
        name: Name in words.
        posterior: Name of the family of posteriors that it is the prior of, where that has another name.
        criteria: The criteria that read its posteriors, in words.

    Example:
        >>> from bmrjax import families, reduction
        >>> found = families.facts(reduction.LogUniform(-20.0, 0.0))
        >>> found.name, found.posterior
        ('log-uniform', 'log-normal')
    """

    name: str
    posterior: str = ""
    criteria: str = ""


@functools.singledispatch
def facts(q: Any) -> FamilyFacts:
    """Return how tables and messages describe a family.

    Args:
        q: A class of `bmrjax.reduction`. For the class itself, in place of an object, there is `facts_of`.

    Example:
        >>> from bmrjax import families, reduction
        >>> families.facts(reduction.LogNormal(0.0, 1.0, -20.0, 0.0)).name
        'log-normal'
    """
    return FamilyFacts(type(q).__name__)


def facts_of(family: type) -> FamilyFacts:
    """Return how tables and messages describe a family, given its class."""
    answer = facts.dispatch(family)
    return FamilyFacts(family.__name__) if answer is facts.dispatch(object) else answer(None)


@functools.singledispatch
def has_closed_form(posterior: Any, prior: Any) -> bool:
    """Say whether criteria can read a posterior under this prior.

    Args:
        posterior: A class of `bmrjax.reduction`.
        prior: Another, or the same.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import families, reduction
        >>> q = reduction.Normal(jnp.zeros(2), jnp.ones(2))
        >>> priors = reduction.Normal(0.0, 1.0), reduction.Laplace(0.0, 1.0), reduction.Gamma(1.0, 1.0)
        >>> [families.has_closed_form(q, prior) for prior in priors]
        [True, True, False]
    """
    del posterior, prior
    return False


@functools.singledispatch
def removed(q: Any, keep: Bool[Array, "..."]) -> Any:
    """Return a posterior in which the elements that `keep` drops are removed.

    They are zero for certain (multiplicative noise is one for certain); the others are what they were.

    Args:
        q: Posterior of independent elements, a class of `bmrjax.reduction`.
        keep: True = kept; shaped as the posterior.

    Raises:
        TypeError: For a family whose elements cannot be removed.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import families, reduction
        >>> q = reduction.Normal(jnp.array([0.1, 3.0]), jnp.array([0.2, 0.2]))
        >>> families.removed(q, jnp.array([False, True]))
        Normal(loc=Array([0., 3.], dtype=float32), scale=Array([0. , 0.2], dtype=float32))
    """
    del keep
    raise TypeError(f"removed: no element can be removed from a posterior that is {facts(q).name}.")


def is_removable(q: Any) -> bool:
    """Say whether single elements can be removed from a posterior of this family."""
    return removed.dispatch(type(q)) is not removed.dispatch(object)


class Shown(NamedTuple):
    """How the elements of a posterior are shown in a table.

    Attributes:
        distribution: NumPyro distribution of the elements; of removed ones, some proper stand-in.
        value: Value of a removed element.
        inclusion_prob: Probability that an element is not zero, for families that have it.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import families, reduction
        >>> keep = jnp.array([True, False])
        >>> q = families.removed(reduction.Normal(jnp.array([3.0, 0.1]), jnp.array([0.2, 0.2])), keep)
        >>> shown = families.shown_elements(q, keep)
        >>> jnp.where(keep, shown.distribution.icdf(0.975), shown.value).round(1)  # upper ends
        Array([3.4, 0. ], dtype=float32)
    """

    distribution: Any
    value: float = 0.0
    inclusion_prob: Any = None


@functools.singledispatch
def shown_elements(q: Any, keep: Bool[Array, "..."]) -> Shown:
    """Return the NumPyro distribution of the elements of a posterior, and the value of removed ones.

    Args:
        q: Posterior as `removed` returns it, a class of `bmrjax.reduction`.
        keep: Its mask; True = kept.

    Raises:
        TypeError: For a family without distribution.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import families, reduction
        >>> q = reduction.ZeroOrNormal(jnp.array([0.1, 2.0]), jnp.ones(2), jnp.array([-3.0, 6.0]))
        >>> shown = families.shown_elements(q, jnp.array([True, True]))
        >>> type(shown.distribution).__name__, shown.inclusion_prob.round(2)
        ('DiscreteSpikeAndSlab', Array([0.05, 1.  ], dtype=float32))
    """
    del keep
    raise TypeError(f"shown_elements: there is no NumPyro distribution of a {type(q).__name__}.")


@functools.singledispatch
def divergence_of_elements(q: Any, posterior: dist.Distribution, prior: dist.Distribution) -> Any:
    """Return KL(posterior, prior) of each element, in nats; by default that of NumPyro's `kl_divergence`.

    It is what a pruned site adds to the loss. Register a family only where its divergence needs another
    form than NumPyro has.

    Args:
        q: What `read` returns for the posterior.
        posterior: NumPyro distribution without event dimensions.
        prior: Another.
    """
    del q
    return kl_divergence(posterior, prior)


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
    parameters = location(read(fn))
    if parameters is not None:
        return parameters[0]
    try:
        return jnp.broadcast_to(jax.lax.stop_gradient(fn.mean), fn.batch_shape + fn.event_shape)
    except NotImplementedError:
        return None

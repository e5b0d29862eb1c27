"""Joint normal posteriors: their distribution without removed elements, and their marginals."""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float
from numpyro.distributions import constraints

from bmrjax.reduction import LowRankNormal, MultivariateNormal, Normal


class PrunedJoint(dist.Distribution):
    """A joint normal over the elements that stay; the others are zero and have no density.

    Args:
        base_dist: A `numpyro.distributions.MultivariateNormal` or `LowRankMultivariateNormal` under
            which the removed elements are independent standard normals around zero.
        keep: True stays, shape (n,).
    """

    arg_constraints: dict[Any, Any] = {}
    pytree_data_fields: tuple[str, ...] = ("base_dist", "keep")
    support: Any = constraints.real_vector

    def __init__(
        self,
        base_dist: dist.Distribution,
        keep: Bool[Array, " n"],
        *,
        validate_args: bool | None = None,
    ):
        self.base_dist: Any = base_dist
        self.keep: Array = keep
        super().__init__(base_dist.batch_shape, base_dist.event_shape, validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "... n"]:
        """Draw; removed elements are zero."""
        value: Any = self.base_dist.sample(key, sample_shape)
        return jnp.where(self.keep, value, 0.0)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density of the elements that stay."""
        at_zero = jnp.where(self.keep, value, 0.0)
        removed = jnp.sum(~self.keep, dtype=at_zero.dtype)
        density_of_removed = -0.5 * math.log(2 * math.pi) * removed
        return jnp.asarray(self.base_dist.log_prob(at_zero)) - density_of_removed


@functools.singledispatch
def pruned_joint(fn: Any, keep: Bool[Array, " n"]) -> PrunedJoint:
    """Return a joint normal of the elements of `fn` that stay.

    A factor of the covariance loses the rows (and, where it is triangular, the columns) of the
    removed elements, so the elements that stay keep a covariance of full rank.

    Args:
        fn: A `numpyro.distributions.MultivariateNormal` or `LowRankMultivariateNormal`.
        keep: True stays, shape (n,).

    Raises:
        TypeError: For another distribution.
    """
    raise TypeError(f"pruned_joint: no reduction for a {type(fn).__name__}.")


@pruned_joint.register(dist.MultivariateNormal)
def _(fn: Any, keep: Bool[Array, " n"]) -> PrunedJoint:
    both = keep[:, None] & keep[None, :]
    diagonal = jnp.diag(jnp.where(keep, 0.0, 1.0))
    scale_tril = jnp.where(both, fn.scale_tril, diagonal)
    base: Any = dist.MultivariateNormal(
        jnp.where(keep, fn.loc, 0.0), scale_tril=scale_tril, validate_args=False
    )
    return PrunedJoint(base, keep)


@pruned_joint.register(dist.LowRankMultivariateNormal)
def _(fn: Any, keep: Bool[Array, " n"]) -> PrunedJoint:
    base = dist.LowRankMultivariateNormal(
        jnp.where(keep, fn.loc, 0.0),
        jnp.where(keep[:, None], fn.cov_factor, 0.0),
        jnp.where(keep, fn.cov_diag, 1.0),
    )
    return PrunedJoint(base, keep)


@functools.singledispatch
def read_joint(fn: Any) -> Any:
    """Return the joint normal of `bmrjax.reduction` that a NumPyro distribution is; None for any other.

    Args:
        fn: A `numpyro.distributions.MultivariateNormal` or `LowRankMultivariateNormal`, or pruned.
    """
    del fn


@read_joint.register(dist.MultivariateNormal)
def _(fn: Any) -> MultivariateNormal:
    return MultivariateNormal(fn.loc, fn.scale_tril)


@read_joint.register(dist.LowRankMultivariateNormal)
def _(fn: Any) -> LowRankNormal:
    return LowRankNormal(fn.loc, fn.cov_factor, fn.cov_diag)


@read_joint.register(PrunedJoint)
def _(fn: PrunedJoint) -> Any:
    return read_joint(fn.base_dist)


@functools.singledispatch
def marginals(joint: Any) -> Normal:
    """Return the normal marginals of a joint normal, shape (n,).

    Args:
        joint: A `reduction.MultivariateNormal` or `reduction.LowRankNormal`.

    Raises:
        TypeError: For another family.
    """
    raise TypeError(f"marginals: {type(joint).__name__} is not a joint normal.")


@marginals.register(MultivariateNormal)
def _(joint: MultivariateNormal) -> Normal:
    return Normal(joint.loc, jnp.linalg.norm(joint.scale_tril, axis=1))


@marginals.register(LowRankNormal)
def _(joint: LowRankNormal) -> Normal:
    variance = jnp.sum(jnp.square(joint.cov_factor), axis=1) + joint.cov_diag
    return Normal(joint.loc, jnp.sqrt(variance))

"""Weights whose posterior means cluster: soft weight sharing, as a NumPyro distribution."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import validate_sample

from bmrjax import reduction
from bmrjax.families.base import stored


def mixture_log_prob(
    value: Float[Array, "..."],
    log_weights: Float[Array, " k"],
    means: Float[Array, " k"],
    log_precisions: Float[Array, " k"],
) -> Float[Array, "... k"]:
    """Return ln π_k N(value; μ_k, 1/λ_k) of each component, along a last axis."""
    scaled = (value[..., None] - means) * jnp.exp(0.5 * log_precisions)
    log_scale = 0.5 * (log_precisions - math.log(2 * math.pi))
    return log_weights + log_scale - 0.5 * jnp.square(scaled)


class SharedCenters(dist.Distribution):
    r"""A prior over weights w and their centres m: p(w) times a mixture of normals over m, to a power.

    .. math:: p(w, m) = p(w) \Big[ \sum_k π_k N(m; μ_k, 1/λ_k) \Big]^τ

    The centre is the mean of the posterior, q(m) = δ(m − E w), so the divergence of a normal posterior is
    that from p(w), and −τ times the log mixture at its mean. A point is its own centre.

    Args:
        base_dist: p(w), independent elements; None for no prior but the mixture.
        log_weights: ln π_k.
        means: μ_k.
        log_precisions: ln λ_k.
        factor: τ.
        batch_shape: Shape of the weights.

    References:
        Nowlan and Hinton (1992); Ullrich, Meeds and Welling (2017); Federici, Ullrich and Welling (2017),
        equations 2 and 5, of which the last two lines have the wrong sign.
    """

    arg_constraints: dict[Any, Any] = {}
    support: Any = constraints.real
    pytree_data_fields: tuple[str, ...] = ("base_dist", "log_weights", "means", "log_precisions")
    pytree_aux_fields: tuple[str, ...] = ("factor",)

    def __init__(
        self,
        base_dist: dist.Distribution | None,
        log_weights: Float[Array, " k"],
        means: Float[Array, " k"],
        log_precisions: Float[Array, " k"],
        *,
        factor: float = 1.0,
        batch_shape: tuple[int, ...] = (),
        validate_args: bool | None = None,
    ):
        self.base_dist: Any = base_dist
        self.factor: float = factor
        self.log_weights: Array = log_weights
        self.means: Array = means
        self.log_precisions: Array = log_precisions
        super().__init__(tuple(batch_shape), (), validate_args=validate_args)

    def log_mixture(self, center: ArrayLike) -> Array:
        """Return the log density of the mixture, nats."""
        parts = self.log_weights, self.means, self.log_precisions
        return jax.nn.logsumexp(mixture_log_prob(jnp.asarray(center), *parts), axis=-1)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw centres from the mixture; not from p(w), which may have no draws."""
        pick, noise = jax.random.split(key)
        shape = sample_shape + self.batch_shape
        which = jax.random.categorical(pick, self.log_weights, shape=shape)
        spread = jnp.exp(-0.5 * self.log_precisions)[which]
        return self.means[which] + spread * jax.random.normal(noise, shape)

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density in nats of a weight that is its own centre."""
        shared = self.factor * self.log_mixture(value)
        if self.base_dist is None:
            return shared
        return shared + jnp.asarray(self.base_dist.log_prob(value))


@kl_divergence.register(dist.Normal, SharedCenters)
def _(q: Any, p: SharedCenters) -> Array:
    if p.base_dist is None:
        raise ValueError(
            "SharedCenters: a normal posterior needs a prior of the weights beside that of their centres, or "
            "nothing holds its width. Give base_dist, such as ImproperReciprocal; or use a point posterior."
        )
    shared = -p.factor * p.log_mixture(q.loc)
    return shared + jnp.asarray(kl_divergence(q, p.base_dist))


@stored.register(SharedCenters)
def _(fn: SharedCenters) -> Any:
    # Its divergence has a part of its own, so that it is no other prior of the same name.
    found = None if fn.base_dist is None else stored(fn.base_dist)
    return found if isinstance(found, reduction.ImproperLogUniform) else None

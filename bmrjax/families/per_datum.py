"""Noise that is a variable of the model, and is drawn anew for every data point."""

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Bool
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from bmrjax.families.base import center, stored
from bmrjax.families.elements import Prunable
from bmrjax.families.pruned import PrunedElements


class PerDatum(Prunable):
    """A global positive variable of which every data point of a batch sees a draw of its own.

    The expected log likelihood is a sum over data, so each may have its own draw of the posterior: the
    estimate stays unbiased and varies less. The variable is still one, so the Kullback-Leibler
    divergence counts once, times `kl_weight`.

    Args:
        base_dist: Independent elements: `TruncatedLogUniform` or `TruncatedLogNormal`.
        num_data: Draws, along a leading axis; None for a single one without that axis.
        at_mean: Be the mean instead of a draw.
        kl_weight: Factor on the divergence; the one of the prior counts.
        is_per_datum: Whether a guide may draw it per data point.

    References:
        Kingma, Salimans and Welling (2015), for a draw per data point; Neklyudov et al. (2017).
    """

    arg_constraints: dict[Any, Any] = {}
    pytree_data_fields: tuple[str, ...] = ("base_dist",)
    pytree_aux_fields: tuple[str, ...] = ("num_data", "at_mean", "kl_weight", "is_per_datum")

    def __init__(
        self,
        base_dist: dist.Distribution,
        *,
        num_data: int | None = None,
        at_mean: bool = False,
        kl_weight: float = 1.0,
        is_per_datum: bool = True,
        validate_args: bool | None = None,
    ):
        self.base_dist: Any = base_dist
        self.num_data: int | None = num_data
        self.at_mean: bool = at_mean
        self.kl_weight: float = kl_weight
        self.is_per_datum: bool = is_per_datum
        draws = () if num_data is None else (num_data,)
        super().__init__((), draws + base_dist.batch_shape, validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        """Whether samples are differentiable."""
        return self.base_dist.has_rsample

    @property
    def support(self) -> Any:
        """The positive numbers, so that a guide learns the logarithm."""
        return constraints.independent(constraints.positive, self.event_dim)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """See `Prunable.element_shape`."""
        return self.base_dist.batch_shape

    def without(self, keep: Bool[Array, "..."]) -> "PerDatum":
        """See `Prunable.without`."""
        return self.of(PrunedElements(self.base_dist, keep))

    def of(self, base_dist: dist.Distribution) -> "PerDatum":
        """Return the same for other elements."""
        return PerDatum(
            base_dist,
            num_data=self.num_data,
            at_mean=self.at_mean,
            kl_weight=self.kl_weight,
            is_per_datum=self.is_per_datum,
        )

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw once for every data point."""
        shape = (*sample_shape, *self.event_shape)
        if self.at_mean:
            return jnp.broadcast_to(self.base_dist.mean, shape)
        draws = shape[: len(shape) - len(self.base_dist.batch_shape)]
        return jnp.asarray(self.base_dist.sample(key, draws))

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density in nats, averaged over the data."""
        rank = len(self.base_dist.batch_shape)
        each: Any = self.base_dist.log_prob(value)
        total = jnp.sum(each, range(each.ndim - rank, each.ndim))
        return total if self.num_data is None else jnp.mean(total, -1)

    @property
    def mean(self) -> Array:
        """E[θ], shaped as a draw."""
        return jnp.broadcast_to(jnp.asarray(self.base_dist.mean), self.event_shape)

    @property
    def variance(self) -> Array:
        """Var[θ], shaped as a draw."""
        return jnp.broadcast_to(jnp.asarray(self.base_dist.variance), self.event_shape)


@kl_divergence.register(PerDatum, PerDatum)
def _(q: PerDatum, p: PerDatum) -> Array:
    return p.kl_weight * jnp.sum(kl_divergence(q.base_dist, p.base_dist))


@kl_divergence.register(dist.Delta, PerDatum)
def _(q: Any, p: PerDatum) -> Array:
    # A point estimate of the noise, as of an AutoDelta guide.
    point: Any = center(q)
    return -p.kl_weight * jnp.sum(jnp.asarray(p.base_dist.log_prob(point)))


@stored.register(PerDatum)
def _(fn: PerDatum) -> Any:
    return stored(fn.base_dist)

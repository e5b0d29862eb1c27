"""The log-uniform prior of sparse variational dropout, as a NumPyro distribution."""

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import validate_sample

from bmrjax import reduction
from bmrjax.families.base import FamilyFacts, facts, stored


class ImproperReciprocal(dist.Distribution):
    """p(w) ∝ 1/|w| on the whole line: heavy tails, and a pole at zero that draws in what the data leave.

    It has no integral, so it cannot be drawn from; a program that has it needs a guide of normals, whose
    divergence from it is registered: `bmrjax.reduction.log_uniform_divergence`.

    Args:
        batch_shape: Shape of the independent variables.

    Example:
        >>> from bmrjax.families import ImproperReciprocal
        >>> ImproperReciprocal().log_prob(-0.5).round(3)
        Array(0.693, dtype=float32)

    References:
        Kingma, Salimans and Welling (2015), section 4; Molchanov, Ashukha and Vetrov (2017).
    """

    arg_constraints: dict[Any, Any] = {}
    support: Any = constraints.real

    def __init__(self, batch_shape: tuple[int, ...] = (), *, validate_args: bool | None = None):
        super().__init__(tuple(batch_shape), (), validate_args=validate_args)

    def tree_flatten(self) -> tuple[tuple, Any]:
        """Return no arrays: the shape says everything."""
        return (), (self.batch_shape, self._validate_args)

    @classmethod
    def tree_unflatten(cls, aux_data: Any, params: Any) -> "ImproperReciprocal":
        """Undo `tree_flatten`."""
        del params
        return cls(aux_data[0], validate_args=aux_data[1])

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Raise NotImplementedError: an improper prior has no draws."""
        raise NotImplementedError(
            "ImproperReciprocal cannot be sampled: 1/|w| has no integral. Draw from a posterior, or give the "
            "site a value."
        )

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density in nats, up to a constant that does not exist."""
        size = jnp.abs(jnp.asarray(value, float))
        return -jnp.log(jnp.maximum(size, jnp.finfo(size.dtype).tiny))


@kl_divergence.register(dist.Normal, ImproperReciprocal)
def _(q: Any, p: ImproperReciprocal) -> Array:
    found = reduction.log_uniform_divergence(reduction.Normal(q.loc, q.scale))
    return jnp.broadcast_to(found, jnp.broadcast_shapes(q.batch_shape, p.batch_shape))


@stored.register(ImproperReciprocal)
def _(fn: ImproperReciprocal) -> reduction.ImproperLogUniform:
    del fn
    return reduction.ImproperLogUniform(jnp.ones(()))


@facts.register(reduction.ImproperLogUniform)
def _(q: Any) -> FamilyFacts:
    del q
    return FamilyFacts("log-uniform")

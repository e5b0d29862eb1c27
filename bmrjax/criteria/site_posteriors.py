"""What a criterion reads: the posterior and the prior of each site."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jaxtyping import Array


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class SitePosteriors:
    """The sites that can be reduced in closed form; a pytree of their parameters.

    Attributes:
        posterior: Site name to its posterior, shaped as the site: `reduction.Normal`,
            `reduction.ZeroOrNormal`, `reduction.LogNormal` or `reduction.Laplace`.
        prior: The same sites, of the same shapes or broadcastable to them: the prior that the posterior was
            fitted under (log-uniform for log-normal; Laplace also for normal), given the centres of its
            parents.
        layers: Site name to the name of the layer whose statistics it shares; None if each site is a layer
            of its own.
        unread: Names of the other latent sites, with the reason why they cannot be reduced.
        factors: For a joint normal posterior, the rows of a square root of its covariance by site, shape
            ``(*site, n)``: the covariance of two elements, of any sites, is the inner product of their rows.
            None where elements are independent, or no such root is at hand.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> posterior = {"w": reduction.Normal(jnp.array([0.01, 3.0]), jnp.array([0.1, 0.1]))}
        >>> prior = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> found = criteria.SitePosteriors(posterior, prior)
        >>> criteria.SpikeAndSlab()(found).keep["w"]
        Array([False,  True], dtype=bool)
    """

    posterior: Mapping[str, Any]
    prior: Mapping[str, Any]
    layers: Mapping[str, str] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, Array] | None = None

    def only(self, sites: Iterable[str]) -> "SitePosteriors":
        """Return the posteriors of some sites."""
        names = list(sites)
        layers, factors = self.layers, self.factors
        return SitePosteriors(
            {name: self.posterior[name] for name in names},
            {name: self.prior[name] for name in names},
            None if layers is None else {name: layers[name] for name in names},
            self.unread,
            None if factors is None else {name: factors[name] for name in names},
        )

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Return the children, with what is text as static data."""
        layers = None if self.layers is None else tuple(sorted(self.layers.items()))
        key = jax.tree_util.GetAttrKey
        children = (
            (key("posterior"), self.posterior),
            (key("prior"), self.prior),
            (key("factors"), self.factors),
        )
        return children, (layers, tuple(sorted(self.unread.items())))

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> "SitePosteriors":
        """Return the object of the children."""
        layers, unread = static
        posterior, prior, factors = children
        layers = None if layers is None else dict(layers)
        return cls(posterior, prior, layers, dict(unread), factors)

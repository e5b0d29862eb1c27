"""A guide that says what the posteriors of its sites are."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array

from bmrjax.infer.arguments import Keep


class ReadableGuide:
    """A guide that reads the posteriors of its sites off its parameters. To be mixed into a NumPyro guide.

    The posteriors of any other guide are read off the distributions of its sites.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax import reduction
        >>> from bmrjax.infer import ReadableGuide
        >>> class Half(ReadableGuide):
        ...     def __call__(self):
        ...         loc = numpyro.param("half_loc", jnp.zeros(2))
        ...         return {"w": numpyro.sample("w", dist.Normal(loc, 0.5).to_event(1))}
        ...
        ...     def posterior(self, params, keep):
        ...         return {"w": reduction.Normal(params["half_loc"], jnp.full(2, 0.5))}
        >>> Half().posterior({"half_loc": jnp.array([1.0, 3.0])}, {})["w"].snr
        Array([2., 6.], dtype=float32)
    """

    def posterior(self, params: Mapping[str, Any], keep: Keep) -> dict[str, Any]:
        """Return the family of the posterior of each latent site that has one, element by element.

        Correlated elements are given that those which the masks drop are zero. The parameters of dropped
        elements are what the guide has stored, with a positive scale; `families.removed` puts them at zero.

        Args:
            params: Constrained parameters.
            keep: The masks in force, by site; may be traced.

        Returns:
            Site name to posterior, a class of `bmrjax.reduction`, shaped as the site.
        """
        raise NotImplementedError

    def covariance_factors(self, params: Mapping[str, Any], keep: Keep) -> dict[str, Array] | None:
        """Return the rows of a square root of the covariance, by site; see `criteria.SitePosteriors`.

        Args:
            params: Constrained parameters.
            keep: The masks in force, by site; may be traced.

        Returns:
            Site name to rows, shape ``(*site, n)``; None if elements are independent.
        """
        del params, keep

    @classmethod
    def with_params(cls, params: Mapping[str, Any]) -> Callable[[Callable], Any] | None:
        """Return what makes a guide of this class for a program, if these are the parameters of one.

        Args:
            params: Parameters of a fit by name, with the default prefix ``auto``.

        Returns:
            A function of the program; None for parameters of any other guide.
        """
        del params
        return None

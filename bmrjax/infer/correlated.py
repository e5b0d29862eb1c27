"""What `sparsify` needs of a guide whose elements depend on each other."""

from collections.abc import Mapping

from jaxtyping import Array

from bmrjax.infer.arguments import Keep
from bmrjax.infer.readable_guide import ReadableGuide
from bmrjax.reduction import Normal


class CorrelatedGuide(ReadableGuide):
    """A guide in which a removal moves what stays. To be mixed into a NumPyro guide.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax.infer import AutoMultivariate, CorrelatedGuide
        >>> def program():
        ...     numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        >>> guide = AutoMultivariate(program)
        >>> _ = numpyro.handlers.seed(guide, 0)()
        >>> isinstance(guide, CorrelatedGuide)
        True
        >>> params = {"auto_loc": jnp.ones(2), "auto_scale_tril": jnp.array([[1.0, 0.0], [-0.9, 0.4]])}
        >>> before, after = {"w": jnp.array([True, True])}, {"w": jnp.array([True, False])}
        >>> moved = guide.condition(params, before, after)
        >>> guide.marginals(moved, after)["w"].loc[0].round(1)  # was 1, and took over what the second did
        Array(1.9, dtype=float32)
    """

    def marginals(self, params: Mapping[str, Array], keep: Keep) -> dict[str, Normal]:
        """Return the normal marginal posteriors of the sites whose elements are correlated.

        Args:
            params: Constrained parameters.
            keep: The masks in force.
        """
        raise NotImplementedError

    def condition(self, params: Mapping[str, Array], before: Keep, after: Keep) -> dict[str, Array]:
        """Return the parameters of the posterior given that what `after` drops is zero.

        Args:
            params: Constrained parameters.
            before: The masks under which they were fitted.
            after: The masks to be put in force.
        """
        raise NotImplementedError

"""A fitted guide without the elements that were removed."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.infer.autoguide import AutoGuide

from bmrjax.families import atoms_are_known
from bmrjax.handlers import both_masks, inference, known_masks, prune
from bmrjax.infer.arguments import Keep
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.joint_guide import JointGuide
from bmrjax.infer.tracing import is_latent, sites_of


class PrunedGuide(prune):
    """A guide from which elements are removed, in everything that it returns.

    Called in a program, it is ``handlers.prune(guide, keep)``. `sample_posterior`, `median` and `quantiles`
    give zero for removed elements; those that are kept are drawn from the posterior given these zeros. All
    other attributes are those of the guide itself, which `fn` holds.

    Args:
        fn: An automatic guide, or one that is written by hand.
        keep: Site name to boolean mask, True = kept, each shaped as the whole site.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax.infer import PrunedGuide
        >>> def guide():
        ...     numpyro.sample("w", dist.Normal(5.0, 1.0).expand([2]).to_event(1))
        >>> half = PrunedGuide(guide, {"w": jnp.array([True, False])})
        >>> half.sample_posterior(jax.random.key(0), {}, sample_shape=(3,))["w"][:, 1]
        Array([0., 0., 0.], dtype=float32)
    """

    keep: dict[str, Any]

    def __init__(self, fn: Callable, keep: Keep):
        super().__init__(fn, keep)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "fn" not in vars(self):  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.fn, name)

    def sample_posterior(
        self,
        rng_key: Array,
        params: Mapping[str, Any],
        *args: Any,
        sample_shape: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draw from the pruned posterior, as NumPyro's `AutoGuide.sample_posterior` does.

        Args:
            rng_key: PRNG key.
            params: Fitted (constrained) parameters.
            *args: Arguments of the guide, where it needs any.
            sample_shape: Shape of the draws.
            **kwargs: Its keyword arguments.

        Returns:
            Latent sites by name, and for automatic guides the deterministic sites of the model too; each
            with the leading axes `sample_shape`.
        """

        def one(key: Array) -> dict[str, Array]:
            sites = sites_of(self, args, kwargs, key=key, values=params)
            latents = {name: site["value"] for name, site in sites.items() if is_latent(site)}
            return self._with_deterministic(params, latents)

        if not sample_shape:
            return one(rng_key)
        drawn = jax.lax.map(one, jax.random.split(rng_key, math.prod(sample_shape)))
        return jax.tree.map(lambda x: jnp.reshape(x, sample_shape + jnp.shape(x)[1:]), drawn)

    def median(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Return the median of each latent site; removed elements are zero.

        Args:
            params: Fitted (constrained) parameters.

        Returns:
            Latent sites by name, and the deterministic sites of the model at these values.

        Raises:
            AttributeError: For a guide that is written by hand, which has no medians.
        """
        guide = self._automatic("median")
        if isinstance(guide, JointGuide):
            latents = guide.centre(params)
        else:
            with known_masks(self.keep):
                latents = self._latents(guide.median(dict(params)))
        return self._with_deterministic(params, self._zeroed(latents))

    def quantiles(
        self, params: Mapping[str, Any], quantiles: Float[Array, " q"] | list[float]
    ) -> dict[str, Array]:
        """Return quantiles of the marginal posterior of each latent element; of removed ones, zero.

        Args:
            params: Fitted (constrained) parameters.
            quantiles: Levels between 0 and 1.

        Returns:
            Latent sites by name, each with the levels along a leading axis. Deterministic sites are left
            out, since their quantiles are not those of the latent sites; take them from draws.

        Raises:
            AttributeError: For a guide that is written by hand, which has no quantiles.
        """
        guide = self._automatic("quantiles")
        levels = jnp.asarray(quantiles, float)
        if isinstance(guide, JointGuide):
            loc, scale = guide.flat_marginals(params, self.keep)
            z = dist.Normal().icdf(levels)
            return self._zeroed(jax.vmap(lambda at: guide.constrained(loc + scale * at))(z))
        with known_masks(self.keep):
            latents = self._latents(guide.quantiles(dict(params), levels))
        if isinstance(guide, CorrelatedGuide):
            for name, q in guide.marginals(params, self.keep).items():
                z = dist.Normal().icdf(levels.reshape((-1,) + (1,) * jnp.ndim(q.loc)))
                latents[name] = q.loc + q.scale * z
        return self._zeroed(latents)

    def _automatic(self, method: str) -> Any:
        if not hasattr(self.fn, method):
            raise AttributeError(
                f"{method}: the guide is written by hand and has no {method}. Draw from it, by "
                "sample_posterior or Result.sample, or read the posteriors of its sites, by Result.posterior."
            )
        return self.fn

    def _latents(self, values: Mapping[str, Array]) -> dict[str, Array]:
        guide: Any = self.fn
        return {name: value for name, value in values.items() if name in guide._init_locs}

    def _zeroed(self, latents: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: jnp.where(self.keep[name], value, 0) if name in self.keep else value
            for name, value in latents.items()
        }

    def _with_deterministic(
        self, params: Mapping[str, Any], latents: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the latent sites and what the model of an automatic guide makes of them."""
        guide: Any = self.fn
        if not isinstance(guide, AutoGuide):
            return latents
        given = numpyro.handlers.substitute(data={**params, **latents})
        with numpyro.handlers.block(), atoms_are_known(), inference(), given:
            # The values that it is called with are replaced, and it returns the others with them.
            found: Any = guide._postprocess_fn(guide._init_locs)
        return {**found, **latents}


def unpruned(program: Any) -> tuple[Any, dict[str, Array]]:
    """Return a program without the `handlers.prune` around it, and the masks of these.

    Args:
        program: A model or a guide, such as `Result.model` or `Result.guide`, or any other.

    Returns:
        The program itself, and a mask for every site that had one; several of one site are combined.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import handlers
        >>> from bmrjax.infer import unpruned
        >>> def program():
        ...     pass
        >>> inner = handlers.prune(program, {"w": jnp.array([True, True, False])})
        >>> found, masks = unpruned(handlers.prune(inner, {"w": jnp.array([True, False, True])}))
        >>> found is program, masks["w"]
        (True, Array([ True, False, False], dtype=bool))
    """
    masks: dict[str, Array] = {}
    while isinstance(program, prune) and program.fn is not None:
        masks = both_masks(masks, program.keep)
        program = program.fn
    return program, masks

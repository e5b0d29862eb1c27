"""Draws from the posterior of a fitted program, and from its posterior predictive."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.primitives import Messenger

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.families import inside
from bmrjax.handlers import draws, inference, prune
from bmrjax.infer.arguments import Data, Keep, arguments
from bmrjax.infer.tracing import is_latent, sites_of


def posterior_draws(
    guide: Callable,
    params: Mapping[str, Any],
    keep: Keep,
    key: Array,
    num_samples: int,
    data: Data,
) -> dict[str, Array]:
    """Draw the latent sites of a model from its pruned guide, without the guide's auxiliary sites.

    Args:
        guide: NumPyro guide.
        params: Constrained parameters.
        keep: Masks by site.
        key: PRNG key.
        num_samples: Number of draws.
        data: Arguments of the guide; ``()`` for none.

    Returns:
        Site name to draws, with a leading axis of `num_samples`; removed elements are zero.
    """

    @quick_jit
    def run(keys: Array, params: Mapping[str, Any], keep: Keep, data: Data) -> dict[str, Array]:
        program = prune(guide, keep)
        args, kwargs = arguments(data)

        def one(key: Array) -> dict[str, Array]:
            sites = sites_of(program, args, kwargs, key=key, values=params)
            return {name: site["value"] for name, site in sites.items() if is_latent(site)}

        return jax.lax.map(one, keys)

    return run(jax.random.split(key, num_samples), dict(params), dict(keep), data)


def model_draws(
    model: Callable,
    latents: Mapping[str, Array],
    params: Mapping[str, Any],
    keep: Keep,
    key: Array,
    data: Data,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Run a model at each draw of its latent sites, with networks as at test time.

    Observed sites are drawn anew, also where the arguments hold their values; those inside
    `numpyro.contrib.control_flow.scan` cannot be, and are left out if they have values.

    Args:
        model: NumPyro program.
        latents: Draws of its latent sites, along a leading axis.
        params: Constrained parameters and mutable sites.
        keep: Masks by site.
        key: PRNG key.
        data: Arguments of the program.

    Returns:
        Draws of the sites that are not latent (observed ones, and those that only the model draws), and
        the deterministic sites; each with the leading axis of the draws.
    """

    @quick_jit
    def run(
        keys: Array, latents: Mapping[str, Array], params: Mapping[str, Any], keep: Keep, data: Data
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        program = _redrawn(draws(inference(prune(model, keep)), at_mean=True))
        args, kwargs = arguments(data)

        def one(at: tuple[Array, dict[str, Array]]) -> tuple[dict[str, Array], dict[str, Array]]:
            key, values = at
            sites = sites_of(program, args, kwargs, key=key, values={**params, **values})
            drawn = {
                name: site["value"]
                for name, site in sites.items()
                if site["type"] == "sample" and name not in values and not site["is_observed"]
            }
            kinds = {n: s["value"] for n, s in sites.items() if s["type"] == "deterministic"}
            return drawn, kinds

        return jax.lax.map(one, (keys, dict(latents)))

    count = jax.tree.leaves(dict(latents))[0].shape[0]
    return run(jax.random.split(key, count), dict(latents), dict(params), dict(keep), data)


def log_likelihoods(
    model: Callable,
    latents: Mapping[str, Array],
    params: Mapping[str, Any],
    keep: Keep,
    data: Data,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the log likelihood of each observed value at each draw, in nats, and the observed values.

    Args:
        model: NumPyro program.
        latents: Draws of its latent sites, along a leading axis.
        params: Constrained parameters and mutable sites.
        keep: Masks by site.
        data: Arguments of the program, with its targets.
    """

    @quick_jit
    def run(
        latents: Mapping[str, Array], params: Mapping[str, Any], keep: Keep, data: Data
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        program = draws(inference(prune(model, keep)), at_mean=True)
        args, kwargs = arguments(data)

        def observed(values: dict[str, Array]) -> dict[str, Any]:
            sites = sites_of(program, args, kwargs, values={**params, **values})
            return {
                name: site
                for name, site in sites.items()
                if site["type"] == "sample" and site["is_observed"] and not is_factor(site["fn"])
            }

        def one(values: dict[str, Array]) -> dict[str, Array]:
            return {n: s["fn"].log_prob(s["value"]) for n, s in observed(values).items()}

        first = jax.tree.map(lambda x: x[0], dict(latents))
        values = {name: jnp.asarray(site["value"]) for name, site in observed(first).items()}
        return jax.lax.map(one, dict(latents)), values

    return run(dict(latents), dict(params), dict(keep), data)


def is_factor(fn: Any) -> bool:
    """Say whether a distribution is that of `numpyro.factor`, which has no values."""
    around = (dist.ExpandedDistribution, dist.MaskedDistribution, dist.Independent)
    return isinstance(inside(fn, around), dist.Unit)


class _redrawn(Messenger):
    """Draw observed sites anew."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not is_factor(msg["fn"]):
            msg["is_observed"], msg["value"] = False, None

"""Natural gradients in a training loop of one's own: init, sample, update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from bmrjax.backend.noise import normal_noise
from bmrjax.backend.random_keys import split_keys
from bmrjax.infer.natural_gradient import NaturalGradient, SiteState


class WeightsState(NamedTuple):
    """A normal posterior of weights, and what its next step needs, in trees of the structure of the weights.

    Attributes:
        loc: Means.
        log_scale: Log standard deviations.
        sites: A `SiteState` for each array.
        num_steps: Steps taken.
    """

    loc: Any
    log_scale: Any
    sites: Any
    num_steps: Int[Array, ""]


class NaturalWeights(NamedTuple):
    """A triple of pure functions; see `natural_weights`.

    Attributes:
        init: ``init(weights) -> state``.
        sample: ``sample(key, state) -> weights``.
        update: ``update(gradient, weights, state) -> state``.
    """

    init: Callable[[Any], WeightsState]
    sample: Callable[[Array, WeightsState], Any]
    update: Callable[[Any, Any, WeightsState], WeightsState]


def natural_weights(
    *,
    num_data: int,
    prior_scale: float,
    scale: float,
    optimizer: NaturalGradient = NaturalGradient(),  # noqa: B008 - frozen, and holds no array
) -> NaturalWeights:
    r"""Return variational online Newton for a loss of one's own, without a NumPyro program.

    The posterior of the weights is N(m, s²), element by element, under a normal prior with mean zero and
    standard deviation `prior_scale`. A step draws weights, takes the gradient of the mean loss at them, and
    updates::

        weights = method.sample(key, state)
        gradient = jax.grad(mean_loss)(weights, batch)
        state = method.update(gradient, weights, state)

    For several samples per step, stack the weights and their gradients along a leading axis.

    Args:
        num_data: Number of data; so many times the mean loss is the negative log likelihood.
        prior_scale: Standard deviation of the prior.
        scale: Standard deviation that the posterior starts with.
        optimizer: Rates and momentum; its `others` is not used.

    Raises:
        ValueError: For a number that is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax.infer import natural_weights
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> y = x @ jnp.array([2.0, 0.0, -1.0])
        >>> loss = lambda w: 0.5 * jnp.mean((x @ w - y) ** 2) / 0.1**2
        >>> method = natural_weights(num_data=100, prior_scale=1.0, scale=0.1)
        >>> def step(state, key):
        ...     weights = method.sample(key, state)
        ...     return method.update(jax.grad(loss)(weights), weights, state), None
        >>> state = method.init(jnp.zeros(3))
        >>> state, _ = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 1000))
        >>> (state.loc.round(1) + 0.0).tolist()
        [2.0, 0.0, -1.0]
    """
    for name, value in (("num_data", num_data), ("prior_scale", prior_scale), ("scale", scale)):
        if not value > 0:
            raise ValueError(f"natural_weights: {name} must be positive, got {value}.")

    def init(weights: Any) -> WeightsState:
        loc = jax.tree.map(lambda w: jnp.array(w, copy=True), weights)
        log_scale = jax.tree.map(lambda w: jnp.full_like(w, jnp.log(scale)), loc)
        sites = jax.tree.map(lambda w: SiteState(jnp.zeros_like(w), jnp.zeros(2, w.dtype)), loc)
        return WeightsState(loc, log_scale, sites, jnp.zeros((), jnp.int32))

    def sample(key: Array, state: WeightsState) -> Any:
        leaves, structure = jax.tree.flatten(state.loc)
        keys = split_keys(key, len(leaves))
        drawn = [
            m + jnp.exp(s) * normal_noise(k, m.shape, m.dtype)
            for k, m, s in zip(keys, leaves, jax.tree.leaves(state.log_scale), strict=True)
        ]
        return jax.tree.unflatten(structure, drawn)

    def update(gradient: Any, weights: Any, state: WeightsState) -> WeightsState:
        def one(g: Array, w: Array, loc: Array, log_scale: Array, site: SiteState) -> Any:
            of_log_scale = g * (w - loc)
            if g.ndim > loc.ndim:
                g, of_log_scale = jnp.mean(g, 0), jnp.mean(of_log_scale, 0)
            shrinks = jnp.exp(2 * log_scale) / prior_scale**2 - 1
            step, site = optimizer.step(
                site,
                log_scale,
                num_data * g + loc / prior_scale**2,
                num_data * of_log_scale + shrinks,
                state.num_steps,
            )
            return loc + step[0], log_scale + step[1], site

        leaves, structure = jax.tree.flatten(state.loc)
        sites = structure.flatten_up_to(state.sites)
        trees = (*map(jax.tree.leaves, (gradient, weights)), leaves)
        moved = [
            one(*parts)
            for parts in zip(*trees, jax.tree.leaves(state.log_scale), sites, strict=True)
        ]
        loc, log_scale, sites = (
            jax.tree.unflatten(structure, part) for part in zip(*moved, strict=True)
        )
        return WeightsState(loc, log_scale, sites, state.num_steps + 1)

    return NaturalWeights(init, sample, update)

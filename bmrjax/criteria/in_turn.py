"""Removing the elements of a joint posterior one after the other, each given those before it."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import Normal, delta_f_each
from bmrjax.reduction.full_precision import full_precision
from bmrjax.reduction.multivariate_normal import without_one

# A turn costs O(n²) for n elements, and each element takes one.
LARGEST_IN_TURN = 300


def has_turns(found: SitePosteriors) -> bool:
    """Return whether these posteriors are joint, and of few enough elements to be removed in turn."""
    return bool(found.factors) and few_enough(found.posterior)


def few_enough(posterior: Mapping[str, Any]) -> bool:
    """Return whether there are elements, and so few that they can be removed in turn."""
    sizes = [q.loc.size for q in posterior.values() if isinstance(q, Normal)]
    return 0 < sum(sizes) <= LARGEST_IN_TURN


@full_precision
def in_turn(
    found: SitePosteriors, first: Mapping[str, Bool[Array, "..."]]
) -> dict[str, Float[Array, "..."]]:
    """Return the turn of each element, by site: next is the one whose removal costs the least evidence.

    Evidence is that of removing the element from the posterior that those before it have left, so of two
    elements that stand in for each other one is removed early and the other late. The sum of it over the
    turns is the evidence of removing all of them; see `reduction.prune_greedily`, which ends where nothing
    gains.

    Args:
        found: Normal posteriors with `factors`.
        first: Which elements have their turns before the others, shaped as the sites.

    Returns:
        Turns from 0 on, as floats.
    """
    names = list(found.posterior)
    shapes = [found.posterior[name].loc.shape for name in names]
    assert found.factors is not None
    rows = jnp.concatenate(
        [found.factors[n].reshape(-1, found.factors[n].shape[-1]) for n in names]
    )
    loc = jnp.concatenate([found.posterior[name].loc.ravel() for name in names])
    early = jnp.concatenate([first[name].ravel() for name in names])
    # In units of the marginal scales, so that no square underflows.
    norms = jnp.linalg.norm(rows / _largest_of(rows), axis=1, keepdims=True) * _largest_of(rows)
    unit = jnp.where(norms > 0, norms, 1.0)
    rows, unit = (rows / unit).astype(loc.dtype), unit[:, 0].astype(loc.dtype)
    loc, correlation = loc / unit, rows @ rows.T
    # Conditioning takes a variance to zero by rounding only; it stops at the rounding error.
    least = jnp.finfo(loc.dtype).eps

    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))[:-1]

    def parted(flat: Array) -> dict[str, Array]:
        parts = zip(names, jnp.split(flat, ends), shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in parts}

    def gains(loc: Array, covariance: Array) -> Array:
        locs = parted(loc * unit)
        scales = parted(jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), least)) * unit)
        by_site = [delta_f_each(Normal(locs[n], scales[n]), found.prior[n]) for n in names]
        return jnp.concatenate([gain.ravel() for gain in by_site])

    def take(
        i: Array, state: tuple[Array, Array, Array, Array]
    ) -> tuple[Array, Array, Array, Array]:
        loc, covariance, left, turns = state
        open_ = jnp.where(jnp.any(left & early), left & early, left)
        one = jnp.argmax(jnp.where(open_, gains(loc, covariance), -jnp.inf))
        left = left & (jnp.arange(loc.size) != one)
        loc, covariance = without_one(loc, covariance, one, least)
        return loc, covariance, left, turns.at[one].set(i.astype(turns.dtype))

    state = (loc, correlation, jnp.ones(loc.shape, bool), jnp.zeros(loc.shape, jnp.float32))
    return parted(lax.fori_loop(0, loc.size, take, state)[-1])


def _largest_of(rows: Array) -> Array:
    """Return the largest magnitude of each row, or one if all are zero."""
    largest = jnp.max(jnp.abs(rows), axis=1, keepdims=True)
    return jnp.where(largest > 0, largest, 1.0)

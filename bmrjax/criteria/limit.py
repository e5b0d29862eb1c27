"""How much of what a criterion decides is done at once."""

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from bmrjax.criteria.base import Decision, Masks, masks
from bmrjax.criteria.groups import Groups
from bmrjax.criteria.order import Order, smallest_snr_first
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.criteria.smallest import smallest


def limit(
    found: SitePosteriors,
    decision: Decision,
    keep: Masks,
    fraction: ArrayLike = 1.0,
    *,
    order: Order = smallest_snr_first,
    groups: Groups | None = None,
    beyond: Bool[ArrayLike, ""] = False,
) -> dict[str, Bool[Array, "..."]]:
    """Return the masks after part of a decision: at most a fraction of what is kept is removed at once.

    The evidence differences of a decision are those of single elements. Of elements that stand in for each
    other, each may look removable, though not all of them are: remove a part, fit again, and decide anew.

    Pure and jittable: all but `order` and `groups` may be traced.

    Args:
        found: Posteriors and priors that the decision was made on.
        decision: Decision of a criterion on `found`.
        keep: The masks before, by site.
        fraction: Largest fraction of the kept elements to remove, from 0 to 1; rounded up to whole elements.
        order: Order in which elements are removed.
        groups: Which elements go together, if any do: `Criterion.groups`. The group that the fraction ends in
            is removed as a whole.
        beyond: Whether elements that the decision keeps may be removed too, up to the fraction.

    Returns:
        The new masks: those of `keep` that `found` has no site for are returned unchanged. Elements that the
        decision lets return are back, however many they are.

    Raises:
        ValueError: For a fraction outside of 0 to 1, or masks that miss a site.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> from bmrjax.reduction import Normal
        >>> posterior = {"w": Normal(jnp.array([0.02, 0.01, 3.0]), jnp.array([0.1, 0.1, 0.1]))}
        >>> prior = {"w": Normal(jnp.zeros(3), jnp.ones(3))}
        >>> found = bmr.criteria.SitePosteriors(posterior, prior)
        >>> keep = {"w": jnp.array([True, True, True])}
        >>> decision = bmr.criteria.SpikeAndSlab()(found, keep)
        >>> decision.keep["w"].tolist()
        [False, False, True]
        >>> bmr.limit(found, decision, keep, 0.3)["w"].tolist()
        [True, False, True]
    """
    keep = masks(found, keep)
    for name, q in found.posterior.items():
        if jnp.shape(keep[name]) != q.loc.shape:
            raise ValueError(
                f"limit: the mask of '{name}' has shape {jnp.shape(keep[name])}, and the site {q.loc.shape}."
            )
    if not isinstance(fraction, Tracer) and not np.all(
        (0 <= np.asarray(fraction)) & (np.asarray(fraction) <= 1)
    ):
        raise ValueError(f"limit: fraction must be from 0 to 1, got {fraction}.")
    going = leaving(found, decision, keep, fraction, order=order, groups=groups, beyond=beyond)
    return {**keep, **without(going, decision, keep)}


def leaving(
    found: SitePosteriors,
    decision: Decision,
    keep: Masks,
    fraction: ArrayLike,
    *,
    order: Order,
    groups: Groups | None,
    beyond: Bool[ArrayLike, ""] = False,
) -> dict[str, Bool[Array, "..."]]:
    """Return which elements are removed, by site; see `limit`."""
    names = list(found.posterior)
    candidates = {
        name: keep[name] & (~decision.keep[name] | jnp.asarray(beyond, bool)) for name in names
    }
    kept = count({name: keep[name] for name in names})
    most = jnp.asarray(fraction, jnp.float32)
    part = jnp.ceil(most * kept.astype(jnp.float32)).astype(jnp.int32)
    number = jnp.where(most >= 1.0, kept, part)
    # Turns are those of single elements.
    scores = _scores(order, found if groups is None else replace(found, factors=None), decision)
    if groups is not None:
        # The Euclidean length of a group: to first order, what its removal moves.
        squares = {name: jnp.where(keep[name], jnp.square(scores[name]), 0.0) for name in names}
        scores = groups.spread(jnp.sqrt(groups.sum(squares)), squares)
    listed = [candidates[name] for name in names]
    going = dict(
        zip(names, smallest([scores[name] for name in names], listed, number), strict=True)
    )
    if groups is not None:
        # The fraction may end within a group; then all of it is removed.
        touched = groups.spread(groups.any(going), scores)
        going = {name: candidates[name] & touched[name] for name in names}
    return going


def _scores(order: Order, found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
    try:
        return order(found, decision)
    except AttributeError as error:
        if "SitePosteriors" not in str(error):
            raise
        raise TypeError(
            "An order is called with the SitePosteriors and the decision. Write found.posterior.items() for "
            f"the posteriors by site; got: {error}."
        ) from error


def without(going: Masks, decision: Decision, keep: Masks) -> dict[str, Bool[Array, "..."]]:
    """Return the masks once these elements are gone, and those that the decision lets return are back."""
    return {name: jnp.where(keep[name], ~gone, decision.keep[name]) for name, gone in going.items()}


def count(masks: Masks) -> Int[Array, ""]:
    """Return how many elements are True, over all sites."""
    return sum((jnp.sum(mask) for mask in masks.values()), jnp.zeros((), jnp.int32))

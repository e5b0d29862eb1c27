"""One reduction: call the criterion, cap the round, return the new masks."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.criteria import Criterion, Decision, SitePosteriors
from bmrjax.criteria.base import Masks
from bmrjax.criteria.select import smallest
from bmrjax.schedules import Order


class Round(NamedTuple):
    """What one reduction did.

    Attributes:
        keep: The new masks.
        decision: The criterion's decision, before the cap.
        removed: How many elements went.
        proposed: How many the criterion would have removed.
    """

    keep: dict[str, Bool[Array, "..."]]
    decision: Decision
    removed: Int[Array, ""]
    proposed: Int[Array, ""]


def reduce_once(
    criterion: Criterion,
    order: Order,
    found: SitePosteriors,
    keep: Masks,
    memory: Any,
    fraction: Float[Array, ""],
    beyond: Bool[Array, ""] | bool = False,  # noqa: FBT001, FBT002 - traced
) -> Round:
    """Ask `criterion`, and remove at most `fraction` of what is kept, by `order`; a group goes whole.

    Pure and jittable in everything but the criterion and the order. With `beyond`, what
    the criterion would keep may go too, if the fraction asks for it.
    """
    decision = criterion(found, keep, memory)
    names = list(found.posterior)
    proposals = [keep[name] & ~decision.keep[name] for name in names]
    candidates = [
        going | (keep[name] & beyond) for name, going in zip(names, proposals, strict=True)
    ]
    kept = sum((jnp.sum(keep[name]) for name in names), jnp.zeros((), jnp.int32))
    proposed = sum((jnp.sum(c) for c in proposals), jnp.zeros((), jnp.int32))
    count = jnp.where(
        fraction >= 1.0, kept, jnp.ceil(fraction * kept.astype(jnp.float32)).astype(jnp.int32)
    )
    scores = order(found.posterior, decision)
    groups = criterion.groups
    if groups is not None:
        # The Euclidean length of what goes together: to first order, what its removal moves.
        squares = {name: jnp.where(keep[name], jnp.square(scores[name]), 0.0) for name in names}
        scores = groups.spread(jnp.sqrt(groups.sum(squares)), squares)
    going = smallest([scores[name] for name in names], candidates, count)
    if groups is not None:
        # The cap may end within a group; then all of it goes.
        touched = groups.spread(groups.any(dict(zip(names, going, strict=True))), scores)
        going = [c & touched[name] for name, c in zip(names, candidates, strict=True)]
    # A returning element (`regrow`) is kept by the criterion although its mask was False.
    new = {
        name: jnp.where(keep[name], ~gone, decision.keep[name])
        for name, gone in zip(names, going, strict=True)
    }
    removed = sum((jnp.sum(gone) for gone in going), jnp.zeros((), jnp.int32))
    return Round(new, decision, removed, proposed)


def jit_reduce(criterion: Criterion, order: Order) -> Any:
    """Return `reduce_once` compiled for a criterion and an order."""

    def run(
        found: SitePosteriors,
        keep: Masks,
        memory: Any,
        fraction: Array,
        beyond: bool = False,  # noqa: FBT001, FBT002 - traced
    ) -> Round:
        return reduce_once(criterion, order, found, keep, memory, fraction, beyond)

    return quick_jit(run)

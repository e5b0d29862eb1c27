"""One reduction: ask the criterion, cap the round, return the new masks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from bmrjax.criteria import Criterion, Decision
from bmrjax.criteria.base import Sites
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


def smallest(
    scores: list[Float[Array, "..."]], candidates: list[Bool[Array, "..."]], count: Int[Array, ""]
) -> list[Bool[Array, "..."]]:
    """Mark the `count` candidates with the smallest scores, or all if there are fewer.

    A bisection over the bit patterns of non-negative floats: 32 passes, no sort, no host round
    trip. Among equal scores at the threshold the first go, so that a round never stalls on them.

    Args:
        scores: Non-negative float32 arrays; a score that is not a number comes after infinity.
        candidates: Which elements may be marked; shaped as the scores.
        count: How many, over all arrays.
    """
    bits = [lax.bitcast_convert_type(s.astype(jnp.float32), jnp.uint32) for s in scores]

    def below(threshold: Array) -> list[Array]:
        return [c & (b < threshold) for b, c in zip(bits, candidates, strict=True)]

    def narrow(i: Array, threshold: Array) -> Array:
        trial = threshold | (jnp.uint32(1) << (jnp.uint32(31) - i.astype(jnp.uint32)))
        marked = sum((jnp.sum(m) for m in below(trial)), jnp.zeros((), jnp.int32))
        return jnp.where(marked <= count, trial, threshold)

    threshold = lax.fori_loop(0, 32, narrow, jnp.zeros((), jnp.uint32))
    marked = below(threshold)
    spare = count - sum((jnp.sum(m) for m in marked), jnp.zeros((), jnp.int32))
    for i, (b, c) in enumerate(zip(bits, candidates, strict=True)):
        ties = c & (b == threshold)
        rank = jnp.cumsum(ties.ravel(), dtype=jnp.int32).reshape(ties.shape)
        first = ties & (rank <= spare)
        marked[i] = marked[i] | first
        spare = spare - jnp.sum(first, dtype=jnp.int32)
    return marked


def reduce_once(
    criterion: Criterion,
    order: Order,
    posterior: Sites,
    prior: Sites,
    layers: Mapping[str, str],
    state: Any,
    keep: Mapping[str, Bool[Array, "..."]],
    fraction: Float[Array, ""],
) -> Round:
    """Ask `criterion`, and remove at most `fraction` of what is kept, by `order`.

    Pure and jittable in everything but the criterion, the order and the layers.
    """
    decision = criterion(posterior, prior, state, layers=layers)
    names = list(posterior)
    candidates = [keep[name] & ~decision.keep[name] for name in names]
    kept = sum((jnp.sum(keep[name]) for name in names), jnp.zeros((), jnp.int32))
    proposed = sum((jnp.sum(c) for c in candidates), jnp.zeros((), jnp.int32))
    count = jnp.where(
        fraction >= 1.0, kept, jnp.ceil(fraction * kept.astype(jnp.float32)).astype(jnp.int32)
    )
    scores = order(posterior, decision)
    going = smallest([scores[name] for name in names], candidates, count)
    # A returning element (`regrow`) is kept by the criterion although its mask was False.
    new = {
        name: jnp.where(keep[name], ~gone, decision.keep[name])
        for name, gone in zip(names, going, strict=True)
    }
    removed = sum((jnp.sum(gone) for gone in going), jnp.zeros((), jnp.int32))
    return Round(new, decision, removed, proposed)


def jit_reduce(criterion: Criterion, order: Order, layers: Mapping[str, str]) -> Any:
    """Return `reduce_once` compiled for a criterion, an order and a layer map."""

    def run(posterior: Sites, prior: Sites, state: Any, keep: Any, fraction: Array) -> Round:
        return reduce_once(criterion, order, posterior, prior, layers, state, keep, fraction)

    return jax.jit(run)

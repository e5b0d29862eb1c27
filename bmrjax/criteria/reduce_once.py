"""One round: a criterion's decision, capped."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.criteria.base import Criterion, Decision, Masks
from bmrjax.criteria.limit import count, leaving, without
from bmrjax.criteria.order import Order
from bmrjax.criteria.site_posteriors import SitePosteriors

# About as many as a run has. With more in view, a program that takes a thousandth of a second was compiled a
# second longer than it ran in all.
_ROUNDS_OF_A_RUN = 20


class Round(NamedTuple):
    """What one reduction did.

    Attributes:
        keep: The new masks.
        decision: The criterion's decision, before the cap.
        removed: How many elements were removed.
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
    """Evaluate `criterion`, and remove at most `fraction` of what is kept, by `order`; groups as a whole.

    Pure and jittable in everything but the criterion and the order. With `beyond`, what
    the criterion would keep may go too, if the fraction asks for it.
    """
    decision = criterion(found, keep, memory)
    groups = criterion.groups
    going = leaving(found, decision, keep, fraction, order=order, groups=groups, beyond=beyond)
    proposed = {name: keep[name] & ~decision.keep[name] for name in going}
    return Round(without(going, decision, keep), decision, count(going), count(proposed))


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

    return quick_jit(run, num_calls=_ROUNDS_OF_A_RUN)

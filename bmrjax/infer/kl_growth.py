"""How the weight of the divergence grows at the start of a fit."""

import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

# Pairs of a step and the weight there, straight lines between them, from zero at the first step.
KLGrowth = tuple[tuple[float, float], ...]

_HOW = (
    "kl_warmup must be a number of steps, or pairs of a step and the weight there, such as "
    "[(500, 0.1), (1000, 1.0)], with rising steps and 1 as the last weight; got {!r}."
)


def as_growth(kl_warmup: int | Sequence[tuple[float, float]] | None) -> KLGrowth:
    """Return the pairs that `kl_warmup` stands for; none where the whole divergence counts from the start.

    Args:
        kl_warmup: Steps of a straight line to 1, or pairs of a step and the weight there.

    Raises:
        ValueError: For steps that do not rise, or weights that are negative or not finite, or do not end
            at 1.

    Example:
        >>> as_growth(60), as_growth([(10, 0.1), (60, 1.0)]), as_growth(0)
        (((60.0, 1.0),), ((10.0, 0.1), (60.0, 1.0)), ())
    """
    if kl_warmup is None:
        return ()
    if isinstance(kl_warmup, numbers.Real):
        steps = math.nan if isinstance(kl_warmup, bool) else float(kl_warmup)
        if not 0 <= steps < math.inf:
            raise ValueError(_HOW.format(kl_warmup))
        return ((steps, 1.0),) if steps else ()
    given: Any = kl_warmup
    try:
        pairs = tuple((float(step), float(weight)) for step, weight in given)
    except (TypeError, ValueError) as error:
        raise ValueError(_HOW.format(kl_warmup)) from error
    ends, weights = [step for step, _ in pairs], [weight for _, weight in pairs]
    rises = all(a < b < math.inf for a, b in itertools.pairwise((0.0, *ends)))
    if not (rises and all(0 <= w < math.inf for w in weights) and weights[-1:] == [1.0]):
        raise ValueError(_HOW.format(kl_warmup))
    return pairs


def last_step(growth: KLGrowth) -> float:
    """Return the step from which the whole divergence counts.

    Args:
        growth: See `as_growth`.

    Example:
        >>> last_step(as_growth([(10, 0.1), (20, 1.0), (30, 1.0)])), last_step(())
        (20.0, 0.0)
    """
    found = 0.0
    for step, weight in reversed(growth):
        if weight != 1:
            break
        found = step
    return found


def kl_factor(growth: KLGrowth, step: ArrayLike) -> Array:
    """Return the weight of the divergence at a step, the first of which is 1.

    Args:
        growth: See `as_growth`; not empty.
        step: Number of the step.

    Example:
        >>> growth = as_growth([(10, 0.1), (20, 1.0)])
        >>> [round(float(kl_factor(growth, step)), 2) for step in (5, 10, 15, 99)]
        [0.05, 0.1, 0.55, 1.0]
    """
    step = jnp.asarray(step, float)
    total, start, before = jnp.zeros((), step.dtype), 0.0, 0.0
    for end, weight in growth:
        total = total + (weight - before) * jnp.clip((step - start) / (end - start), 0.0, 1.0)
        start, before = end, weight
    return total

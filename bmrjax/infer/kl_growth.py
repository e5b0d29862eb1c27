"""How the weight of the divergence grows at the start of a fit."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

# Pairs of a step and the weight there, straight lines between them, from zero at the first step.
KLGrowth = tuple[tuple[float, float], ...]


def as_growth(kl_warmup: int | Sequence[tuple[float, float]] | None) -> KLGrowth:
    """Return the pairs that `kl_warmup` stands for; none where the whole divergence counts from the start.

    Args:
        kl_warmup: Steps of a straight line to 1, or pairs of a step and the weight there.

    Raises:
        ValueError: For steps that do not rise, or weights that are negative or not finite, or do not end
            at 1.

    Example:
        >>> as_growth(60), as_growth([(10, 0.1), (60, 1.0)]), as_growth(0)
        (((60, 1.0),), ((10.0, 0.1), (60.0, 1.0)), ())
    """
    if not kl_warmup:
        return ()
    if isinstance(kl_warmup, int):
        if kl_warmup < 0:
            raise ValueError(f"kl_warmup must be at least 0 steps, got {kl_warmup}.")
        return ((kl_warmup, 1.0),)
    pairs = tuple((float(step), float(weight)) for step, weight in kl_warmup)
    steps, weights = zip(*pairs, strict=True)
    rises = all(a < b for a, b in zip((0.0, *steps), steps, strict=False))
    if not (rises and all(0 <= w < math.inf for w in weights) and weights[-1] == 1):
        raise ValueError(
            "kl_warmup must be a number of steps, or pairs of a step and the weight there, such as "
            f"[(500, 0.1), (1000, 1.0)], with rising steps and 1 as the last weight; got {kl_warmup!r}."
        )
    return pairs


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

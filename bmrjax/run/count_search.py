"""How many elements to remove: a search along an order, by a measured value."""

import math
from collections.abc import Callable

# What is left shrinks by this factor from one trial to the next.
_SHRINK = 0.75


def lowest(value: Callable[[int], float], proposed: int, kept: int) -> int:
    """Return how many of `kept` elements to remove so that `value` is low.

    Of a proposal, all goes, or a half, a quarter, ... where that is lower. Where nothing is proposed,
    one element is removed, and then ever more while the value falls. The counts beside the best are then
    bisected, a few times.

    Args:
        value: Of a count; not a number counts as high. ``value(0)`` is where things are.
        proposed: The most that is removed, unless it is 0.
        kept: The most that can be removed.

    Returns:
        The count with the lowest value that was met, 0 if none is below ``value(0)``.

    Example:
        >>> lowest(lambda count: (count - 37) ** 2, proposed=50, kept=100)
        37
    """
    if not kept:
        return 0
    values = {0: value(0)}

    def falls(count: int) -> bool:
        if count not in values:
            values[count] = value(count)
        return values[count] < min(v for c, v in values.items() if c != count)

    if proposed:
        count = proposed
        while not falls(count) and count > 1:
            count //= 2
    else:
        count = 1
        while falls(count) and count < kept:
            count = kept - min(int(_SHRINK * (kept - count)), kept - count - 1)
    for _ in range(4):
        best = _lowest_of(values)
        tried = sorted(values)
        at = tried.index(best)
        for other in tried[max(at - 1, 0) : at + 2] if best else ():
            falls((best + other) // 2)
    return _lowest_of(values)


def _lowest_of(values: dict[int, float]) -> int:
    return min(values, key=lambda c: values[c] if not math.isnan(values[c]) else math.inf)

"""How many elements to remove: a search along an order, by a measured value."""

from collections.abc import Callable

# What is left shrinks by this factor from one trial to the next.
_SHRINK = 0.75


def lowest(value: Callable[[int], float], proposed: int, kept: int) -> int:
    """Return how many of `kept` elements to remove so that `value` is low.

    It starts at what is proposed. If that is lower than removing nothing, ever more goes while the
    value falls; if not, ever less until it does. The two counts beside the best are then bisected, a
    few times.

    Args:
        value: Of a count; not a number counts as high. ``value(0)`` is where things are.
        proposed: Where to start; where nothing is proposed, one element.
        kept: The most that can go.

    Returns:
        The count with the lowest value that was met, 0 if none is below ``value(0)``.

    Example:
        >>> lowest(lambda count: (count - 70) ** 2, proposed=50, kept=100)
        70
    """
    values = {0: value(0)}

    def falls(count: int) -> bool:
        if count not in values:
            values[count] = value(count)
        return values[count] < min(v for c, v in values.items() if c != count)

    count = max(proposed, 1)
    if falls(count):
        while count < kept:
            count = kept - min(int(_SHRINK * (kept - count)), kept - count - 1)
            if not falls(count):
                break
    else:
        while count > 1 and not falls(count := count // 2):
            pass
    for _ in range(4):
        best = min(values, key=lambda c: values[c] if values[c] == values[c] else float("inf"))
        if best == 0:
            break
        tried = sorted(values)
        at = tried.index(best)
        beside = [tried[i] for i in (at - 1, at + 1) if 0 <= i < len(tried)]
        for other in beside:
            falls((best + other) // 2)
    return min(values, key=lambda c: values[c] if values[c] == values[c] else float("inf"))

"""What the networks of the points of a path cost once they are cut to what they use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Points whose networks are cut, at most; each takes about a second of a core.
MOST_POINTS = 24
_BATCH, _REPEATS = 256, 20


@dataclass(frozen=True)
class PointCost:
    """What the networks of one point cost.

    Attributes:
        bytes: Of the arrays of the compact networks.
        flops: Floating-point operations for one data point.
        latency: Milliseconds for a batch of 256, median; None if it was not measured.
        device: Where it was measured.
    """

    bytes: int
    flops: float
    latency: float | None = None
    device: str = ""


def path_costs(
    result: Any,
    cut: Callable[[Any], Mapping[str, Any]],
    *,
    always: int,
    with_latency: bool,
) -> dict[int, PointCost]:
    """Return the cost of points, by their numbers; empty for a program without networks.

    Args:
        result: A `Result`.
        cut: Returns the `Compact` of each network of a result, by name.
        always: Number of a point that is measured in any case.
        with_latency: Whether calls are timed.

    Raises:
        ValueError: If a network cannot be cut; the message says why.
        TypeError: The same, for a network that is not made of arrays.
    """
    count = len(result.path)
    numbers = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))
    found: dict[int, PointCost] = {}
    for number in sorted({*numbers.tolist(), always}):
        networks = cut(result.at(number))
        if not networks:
            return {}
        times = [
            network.latency(batch_sizes=(_BATCH,), repeats=_REPEATS)[0]
            for network in (networks.values() if with_latency else ())
        ]
        found[number] = PointCost(
            bytes=sum(network.after.bytes for network in networks.values()),
            flops=sum(network.after.flops for network in networks.values()),
            latency=sum(time.after for time in times) if times else None,
            device=times[0].device if times else "",
        )
    return found

"""Points on the path of a run, and what their masks keep."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Point:
    """A state on the path of a run, which can be restored.

    Attributes:
        epoch: Epochs done when it was reached.
        vfe: Its VFE on the training data, in nats for the whole set.
        kept: Elements kept, of `total`.
        total: Elements of all reducible sites.
        metrics: Held-out metrics at this point.
        params: Constrained parameters and mutable sites, on the host.
        keep: Masks, on the host.
        mask_cost: Minus the log prior probability of the masks, in nats, if the schedule counts it
            (`schedules.Verified`, `mask_prior`); else 0.
        taken_back: Whether the run went back to a point before it.
        judged: What the schedule's `judge` measured, in nats for all data; None where it is the VFE.
        vfe_error: Standard error of `vfe`, if it was measured on a part of the batches; 0 if on all rows.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> keep = {"w": np.array([True, False])}
        >>> points = [
        ...     bmr.Point(3, 120.0, kept=2, total=2, metrics={}, params={}, keep=keep),
        ...     bmr.Point(6, 118.5, kept=1, total=2, metrics={}, params={}, keep=keep, mask_cost=0.7),
        ... ]
        >>> [point.objective for point in points], min(points, key=lambda point: point.objective).kept
        ([120.0, 119.2], 1)
    """

    epoch: int
    vfe: float
    kept: int
    total: int
    metrics: dict[str, float]
    params: dict[str, Any] = field(repr=False)
    keep: dict[str, np.ndarray] = field(repr=False)
    mask_cost: float = 0.0
    taken_back: bool = False
    judged: float | None = None
    vfe_error: float = 0.0

    @property
    def objective(self) -> float:
        """What points are compared by: `vfe`, or `judged` in its place, plus `mask_cost`, in nats."""
        return (self.vfe if self.judged is None else self.judged) + self.mask_cost


def kept_counts(keep: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many elements the masks keep, and how many there are."""

    def count(mask: Any) -> int:
        # Another process has a part of a mask that is not addressable, and counts it.
        here = getattr(mask, "is_fully_addressable", True)
        return int(np.sum(np.asarray(mask)) if here else jnp.sum(mask))

    kept = sum(count(mask) for mask in keep.values())
    return kept, sum(math.prod(mask.shape) for mask in keep.values())


def layer_sparsities(keep: Mapping[str, Any], layers: Mapping[str, str]) -> dict[str, float]:
    """Return the removed fraction of each layer."""
    found: dict[str, list[Any]] = {}
    for name, mask in keep.items():
        found.setdefault(layers.get(name, name), []).append(mask)
    result = {}
    for layer, masks in found.items():
        kept, total = kept_counts(dict(enumerate(masks)))  # type: ignore[arg-type]
        result[layer] = 1.0 - kept / total if total else 0.0
    return result


def best(path: list[Point]) -> int:
    """Return the position of the point with the best objective; one that is not finite comes last."""
    values = [point.objective for point in path]
    return min(range(len(path)), key=lambda i: values[i] if math.isfinite(values[i]) else math.inf)

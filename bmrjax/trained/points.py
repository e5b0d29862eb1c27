"""Points of a path: what was measured at them."""

from collections.abc import Sequence

import numpy as np

from bmrjax.trained.choice import PathPoint, as_good, is_fine
from bmrjax.trained.evaluation import increase

RowScores = dict[str, np.ndarray]

# Share at which a path ends where nothing else ends it.
SMALLEST = 0.02

# Where nothing says how far the path shall go, it goes on for so many rounds after the first point that has
# lost too much, and after the point of highest evidence.
AFTER_LOSS = 3
AFTER_EVIDENCE = 2


def dense_point(dense: RowScores) -> PathPoint:
    """Return the point of the given network."""
    means = {name: float(rows.mean()) for name, rows in dense.items()}
    return PathPoint(1.0, 0.0, 0.0, 0.0, 0.0, means, as_good=True)


def measured_point(dense: RowScores, scores: RowScores, like: PathPoint) -> PathPoint:
    """Return a point with what was measured there, row by row.

    Args:
        dense: Loss and metrics of the given network.
        scores: Those of the network at the point.
        like: The rest.
    """
    mean, error = increase(dense["loss"], scores["loss"])
    means = {name: float(rows.mean()) for name, rows in scores.items()}
    fine = as_good(dense, scores)
    return PathPoint(like.kept, like.predicted, mean, error, like.delta_f, means, fine, like.flops)


def is_over(points: Sequence[PathPoint], lose_at_most: float | None) -> bool:
    """Say whether neither held-out rows nor the evidence speak for going on.

    A point that has lost too much lies some rounds back, and so does the point of highest evidence.

    Args:
        points: So far, the dense network first.
        lose_at_most: See `bmrjax.reduce_network`.
    """
    lost = [i for i, point in enumerate(points) if not is_fine(point, points[0], lose_at_most)]
    best = int(np.argmax([point.delta_f for point in points]))
    now = len(points) - 1
    return bool(lost) and now >= lost[0] + AFTER_LOSS and now >= best + AFTER_EVIDENCE

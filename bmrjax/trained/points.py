"""Points of a path: what was measured at them."""

import numpy as np

from bmrjax.trained.choice import PathPoint, as_good
from bmrjax.trained.evaluation import increase

RowScores = dict[str, np.ndarray]


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

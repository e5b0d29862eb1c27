"""How well rows are predicted."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array


class PredictiveScores(NamedTuple):
    """How well rows are predicted.

    Attributes:
        metrics: Means over the rows; see `Evaluator.metrics`.
        log_prob: Log predictive density of each row that counts, in nats.
        correct: Whether each value that counts is of the class with the highest probability; None if the
            values are not classes.
    """

    metrics: dict[str, float]
    log_prob: Array
    correct: np.ndarray | None = None

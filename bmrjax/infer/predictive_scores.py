"""How well rows are predicted."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array


class PredictiveScores(NamedTuple):
    """How well rows are predicted.

    Attributes:
        metrics: Means over the rows; see `Evaluator.metrics`.
        log_prob: Log predictive density of each row that counts, in nats.
        probs: Probabilities of the classes of each value that counts; None if the values are not classes.
        labels: The classes.
    """

    metrics: dict[str, float]
    log_prob: Array
    probs: Array | None = None
    labels: Array | None = None

    @property
    def correct(self) -> np.ndarray | None:
        """Whether each value is of the class with the highest probability; None without classes."""
        if self.probs is None or self.labels is None:
            return None
        return np.argmax(np.asarray(self.probs), -1) == np.asarray(self.labels)
